"""Legends for several runs: the settings in which they differ.

The keys are those that any of the runs overrode; the values are resolved ones, so a run with the default is labelled as
well. Comparing whole configurations would also list every key that is derived from an overridden one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sofed_flwr.analysis.report.read import Run
from sofed_flwr.core.redaction import one_line

NOT_IN_LABELS = {"out", "resume", "tracking", "trace"}
"""Keys on which no value in the report depends, and what is below them."""
LONGEST = 200
"""Characters of a label."""


def label(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by label, in the order given; equal runs get their directory and position as well."""
    keys = dict.fromkeys(key for run in runs for key in run.overridden if key.split(".")[0] not in NOT_IN_LABELS)
    differing = [key for key in keys if len({str(_value(run, key)) for run in runs}) > 1]
    differing.sort(key=lambda key: "." in key)  # a component before its arguments
    labels = [one_line(_label(run, differing) or run.name, LONGEST) for run in runs]
    for name in (one_line(run.name, LONGEST) for run in runs), map(str, range(1, len(runs) + 1)):
        often = Counter(labels)
        labels = [f"{text} ({more})" if often[text] > 1 else text for text, more in zip(labels, name, strict=True)]
    return dict(zip(labels, runs, strict=True))


def _label(run: Run, keys: Sequence[str]) -> str:
    values = [(key, _value(run, key)) for key in keys]
    return " ".join(f"{key}={value}" for key, value in values if value is not None)


def _value(run: Run, key: str) -> Any:
    """The component chosen for a group, or the value at a dotted key."""
    if key in run.choices:
        return run.choices[key]
    node: Any = run.config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
