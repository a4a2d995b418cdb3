"""What to call each of several runs: by what differs between them, in the words their users gave.

The keys are those that any of the runs overrode; the values are everybody's resolved ones, so a run with the default
is named as well. Comparing whole configurations instead would name every derived key along with the one that caused it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sofed_flwr.report.read import Run

BESIDES = {"out", "resume", "tracking", "trace"}
"""Keys that say where a run is kept and who watches it: no value in the report depends on them."""


def label(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by label, in the order given; runs that differ in nothing are told apart by directory and place."""
    keys = list(dict.fromkeys(key for run in runs for key in _overridden(run.config) if key not in BESIDES))
    differing = [key for key in keys if len({str(_value(run.config, key)) for run in runs}) > 1]
    differing.sort(key=lambda key: "." in key)  # a component before its arguments
    labels = [_label(run.config, differing) or run.name for run in runs]
    for name in (run.name for run in runs), map(str, range(1, len(runs) + 1)):
        often = Counter(labels)
        labels = [f"{text} ({more})" if often[text] > 1 else text for text, more in zip(labels, name, strict=True)]
    return dict(zip(labels, runs, strict=True))


def _label(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    values = [(key, _value(config, key)) for key in keys]
    return " ".join(f"{key}={value}" for key, value in values if value is not None)


def _overridden(config: Mapping[str, Any]) -> list[str]:
    return [str(override).partition("=")[0].lstrip("+~") for override in config.get("overrides") or []]


def _value(config: Mapping[str, Any], key: str) -> Any:
    """The component chosen for a group, or the value at a dotted key."""
    choices = config.get("choices") or {}
    if key in choices:
        return choices[key]
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
