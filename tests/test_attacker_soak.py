"""What an encoder learns while one device of five attacks in every round: robust strategies, in minutes and hours."""

import os
from pathlib import Path
from statistics import mean

import pytest

from sofed_flwr.assembly import build_device, build_server
from sofed_flwr.config import compose
from sofed_flwr.runlog import read_rows
from tests.test_attackers import ATTACKS, ROBUST, Attack, attacked

pytestmark = pytest.mark.soak

IMAGES = os.environ.get("SOFED_NPZ")
"""A file of real images, for what generated ones cannot show: make soak SOFED_NPZ=FILE.npz ARGS="-k real_images"."""
SEEDS = range(6)
"""Runs of one setting differ by up to 5 points from seed to seed."""
SPREAD = 5.0
"""Points by which rounds of one and the same run on the generated images differ."""


@pytest.mark.parametrize("strategy", ROBUST)
def test_an_encoder_learns_beside_an_attacker_what_it_learns_without(tmp_path: Path, strategy: str) -> None:
    """The demo with five devices; by the linear probe, as kNN hardly rises here and jumps from round to round."""
    setting = ["rounds=12", "evaluation.every=1"]
    untrained, clean = accuracies(tmp_path / "clean", [*setting, *ROBUST[strategy]], None, last=4)
    found = {
        attack.__name__: accuracies(tmp_path / attack.__name__, [*setting, *ROBUST[strategy]], attack, last=4)[1]
        for attack in ATTACKS
    }
    print(f"\n{strategy}: untrained {untrained}, clean {clean}, attacked {found}")
    assert clean["linear_1.0"] >= untrained["linear_1.0"] + 2 * SPREAD, "training works"
    assert all(values["linear_1.0"] >= clean["linear_1.0"] - SPREAD for values in found.values())


@pytest.mark.skipif(not IMAGES, reason="SOFED_NPZ names no file of real images")
@pytest.mark.parametrize("strategy", ROBUST)
def test_on_real_images_knn_beside_an_attacker_is_within_a_point_of_clean(tmp_path: Path, strategy: str) -> None:
    """The small scale with five devices, where kNN rises; mean over the seeds. Figures: docs/reliability.md."""
    setting = ["experiment=table3_policies", "scale=small", "dataset=npz", f"dataset.path={IMAGES}", *ROBUST[strategy]]
    setting += ["policy.lazy_interval=8", "rounds=18", "evaluation.every=18"]
    untrained: list[float] = []
    trained: dict[str, list[float]] = {}
    for seed in SEEDS:
        for name, attack in {"clean": None, **{attack.__name__: attack for attack in ATTACKS}}.items():
            first, last = accuracies(tmp_path / f"{seed}-{name}", [*setting, f"seed={seed}"], attack)
            print(f"\n{strategy}, seed {seed}, {name}: {first} -> {last}")
            untrained.append(first["knn"])
            trained.setdefault(name, []).append(last["knn"])
    assert mean(trained["clean"]) > mean(untrained) + 4, "training works"
    assert all(mean(found) >= mean(trained["clean"]) - 1 for found in trained.values())


def accuracies(
    out: Path, overrides: list[str], attack: Attack | None, last: int = 1
) -> tuple[dict[str, float], dict[str, float]]:
    """In percent: of the untrained encoder, and the mean of the `last` evaluations; device 4 of 5 attacks."""
    config = compose(["clients=5", "partition=iid", "evaluation.linear.fractions=[1.0]", *overrides, f"out={out}"])
    server = build_server(config)
    server.close_round(0)
    for number in range(1, config.rounds + 1):
        crowd = [build_device(config, server.run, k).train_round(number, server.shared) for k in range(5)]
        if attack is not None:
            crowd[4] = attacked(crowd[4], server.shared, attack)
        server.aggregate(number, crowd, {})
        server.close_round(number)
    rows = read_rows(server.directory.log.path)
    values = {name: [row["value"] for row in rows if row["name"] == name] for name in ("knn", "linear_1.0")}
    first = {name: found[0] for name, found in values.items()}
    return first, {name: round(mean(found[-last:]), 1) for name, found in values.items()}
