"""What an encoder learns beside malicious clients, in minutes and hours."""

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import pytest

from sofed_flwr.build import build_device, build_server
from sofed_flwr.config.compose import compose
from sofed_flwr.core.records import Update
from sofed_flwr.storage.metrics_log import Row, read_rows
from sofed_flwr.strategies.fedavg import fedavg
from tests.server.test_attackers import ATTACKS, ROBUST, Attack, attacked, backwards, flipped
from tests.support.replies import aggregate, combined

pytestmark = pytest.mark.soak

IMAGES = os.environ.get("SOFED_NPZ")
"""A file of real images, for what generated ones cannot show: make soak SOFED_NPZ=FILE.npz ARGS="-k real_images"."""
real_images = pytest.mark.skipif(not IMAGES, reason="SOFED_NPZ names no file of real images")
SEEDS = range(6)
"""Runs of one setting differ by up to 5 points from seed to seed."""
SPREAD = 5.0
"""Points by which rounds of one and the same run on the generated images differ."""
SMALL = ["experiment=table3_policies", "scale=small", "dataset=npz", f"dataset.path={IMAGES}", "policy.lazy_interval=8"]
QUICK = [*SMALL, "method=fedsimclr", "encoder.stem=half", "stream.segments=12", "rounds=10", "evaluation.every=10"]
"""A minute or two per run: SimCLR learns in fewer steps than BYOL."""


@pytest.mark.parametrize(("strategy", "absent"), [("fedmedian", [4]), ("multikrum", [])])
def test_an_encoder_learns_beside_an_attacker_what_it_learns_without_one(
    tmp_path: Path, strategy: str, absent: list[int]
) -> None:
    """The demo with five devices; by the linear probe, as kNN jumps from round to round.

    `fedmedian` drops the attacker, so the run without one has the other four devices; `multikrum` averages two of five
    in any case.
    """
    setting = ["rounds=12", "evaluation.every=1", *ROBUST[strategy]]
    untrained, clean = accuracies(run(tmp_path / "clean", setting, malicious=absent), last=4)
    found = {
        attack.__name__: accuracies(run(tmp_path / attack.__name__, setting, attack, malicious=[4]), last=4)[1]
        for attack in ATTACKS
    }
    print(f"\n{strategy}: untrained {untrained}, clean {clean}, attacked {found}")
    assert clean["linear_1.0"] >= untrained["linear_1.0"] + 2 * SPREAD, "training works"
    assert all(values["linear_1.0"] >= clean["linear_1.0"] - SPREAD for values in found.values())


@real_images
@pytest.mark.parametrize("strategy", ROBUST)
def test_on_real_images_knn_beside_an_attacker_is_within_a_point_of_clean(tmp_path: Path, strategy: str) -> None:
    """The small scale with five devices, where kNN rises; mean over the seeds. Figures: docs/reliability.md."""
    setting = [*SMALL, *ROBUST[strategy], "rounds=18", "evaluation.every=18"]
    untrained: list[float] = []
    trained: dict[str, list[float]] = {}
    for seed in SEEDS:
        for name, attack in {"clean": None, **{attack.__name__: attack for attack in ATTACKS}}.items():
            malicious = [] if attack is None else [4]
            rows = run(tmp_path / f"{seed}-{name}", [*setting, f"seed={seed}"], attack, malicious)
            first, last = accuracies(rows)
            print(f"\n{strategy}, seed {seed}, {name}: {first} -> {last}")
            untrained.append(first["knn"])
            trained.setdefault(name, []).append(last["knn"])
    assert mean(trained["clean"]) > mean(untrained) + 4, "training works"
    assert all(mean(found) >= mean(trained["clean"]) - 1 for found in trained.values())


CASES: dict[str, tuple[list[str], list[str], Attack, list[int]]] = {
    "one turns the model back": ([], ["federation.clip_norm_ratio=1"], backwards, [4]),
    "two agree": (["strategy=fedmedian"], ["strategy=fedmedian"], flipped, [3, 4]),
}
"""Settings of the clean run and of the attacked one. One of five sends nine times what it learned, backwards, just
below the limit of ten; or two of five send one and the same flipped update.
"""


@real_images
@pytest.mark.parametrize("case", CASES)
def test_on_real_images_knn_after_ten_rounds_beside_malicious_clients(tmp_path: Path, case: str) -> None:
    """Mean over three seeds. Figures: docs/reliability.md."""
    without, against, attack, malicious = CASES[case]
    differences = []
    for seed in range(3):
        setting = [*QUICK, f"seed={seed}"]
        untrained, clean = accuracies(run(tmp_path / f"clean-{seed}", [*setting, *without]))
        rows = run(tmp_path / f"attacked-{seed}", [*setting, *against], attack, malicious)
        found = accuracies(rows)[1]
        out = [row["device"] for row in rows if row["name"] == "dropped"]
        print(f"\n{case}, seed {seed}: untrained {untrained}, clean {clean}, attacked {found}, dropped {sorted(out)}")
        assert clean["knn"] > untrained["knn"] + 3, "training works"
        assert set(out) <= set(malicious), "no honest device is dropped"
        differences.append(found["knn"] - clean["knn"])
    assert mean(differences) >= -1


def run(out: Path, overrides: Sequence[str], attack: Attack | None = None, malicious: Sequence[int] = ()) -> list[Row]:
    """A federation of five without Flower; malicious ones all send the same: the mean of what they learned, turned.

    Without an attack they send nothing.
    """
    config = compose(["clients=5", "partition=iid", "evaluation.linear.fractions=[1.0]", *overrides, f"out={out}"])
    server = build_server(config)
    server.close_round(0)
    for number in range(1, config.rounds + 1):
        crowd = [build_device(config, server.run, k).train_round(number, server.shared) for k in range(5)]
        if attack is None:
            crowd = [update for update in crowd if update.device not in malicious]
        else:
            common = combined(fedavg(), [crowd[k] for k in malicious], server.shared)
            for k in malicious:
                crowd[k] = attacked(Update(k, number, common, crowd[k].metrics), server.shared, attack)
        aggregate(server, number, crowd, {})
        server.close_round(number)
    return read_rows(server.directory.log.path)


def accuracies(rows: Sequence[Row], last: int = 1) -> tuple[dict[str, float], dict[str, float]]:
    """In percent: of the untrained encoder, and the mean of the `last` evaluations."""
    values = {name: [row["value"] for row in rows if row["name"] == name] for name in ("knn", "linear_1.0")}
    first = {name: found[0] for name, found in values.items()}
    return first, {name: round(mean(found[-last:]), 1) for name, found in values.items()}
