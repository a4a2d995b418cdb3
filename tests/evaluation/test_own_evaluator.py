"""An evaluator of one's own: one class, one key of a yaml, and its accuracy is in log, summary, table and report."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sofed_flwr.analysis.report.read import read_run
from sofed_flwr.analysis.report.tables import headline
from sofed_flwr.config.instantiate import TRUST
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.launch.progress import result_table
from tests.support.federation import federate

SOURCE = """
class Majority:
    def run(self, train, test):
        yield "majority", 100 * float((test.labels == train.labels.mode().values).double().mean())
"""


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    (tmp_path / "my_evaluators.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(TRUST, "my_evaluators")
    return "my_evaluators"


def test_an_accuracy_of_ones_own_is_shown_where_ours_are(smoke: Callable[..., RunConfig], package: str) -> None:
    config = smoke(f"+evaluation.mine={{_target_: {package}.Majority}}", "rounds=1")
    federate(config).finish(config.encoder, config.facts)
    summary = json.loads((config.directory / "summary.json").read_text())
    expected = summary["other"]["majority"]
    assert expected == summary["untrained"]["other"]["majority"], "no encoder changes it"
    table = result_table(summary)
    assert table.columns[-1].header == "majority"
    assert list(table.columns[-1].cells) == [f"{expected:.1f}"] * 2
    drawn = headline({"run": read_run(config.directory)})
    assert drawn.head[-1] == "majority (%)"
    assert [row[-1] for row in drawn.rows] == [f"{expected:.1f}"] * 2
