"""`summary.json`, the result of a finished run: read as data of known types, since the directory may be anybody's."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from sofed_flwr.core.errors import DamagedFileError
from sofed_flwr.core.redaction import one_line
from sofed_flwr.storage.plain_files import LARGEST_RECORD, read_plain_file

log = logging.getLogger(__name__)


def _share(text: str) -> str:
    if not 0 < float(text) <= 1:
        raise ValueError("expected a share of the labels")
    return text


Number = Annotated[float, Field(ge=-1e100, le=1e100)]
"""Bounded by what can be drawn."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, AfterValidator(one_line)]
Share = Annotated[str, Field(max_length=20), AfterValidator(_share)]


class Accuracies(BaseModel):
    """The linear probe by label fraction, kNN, and other evaluators' by their names."""

    linear: dict[Share, Number] = {}
    knn: Number | None = None
    other: dict[Text, Number] = {}


class Summary(Accuracies):
    """What is shown of a finished run; other keys are kept, and not shown."""

    model_config = ConfigDict(extra="allow")

    method: Text = ""
    policy: Text = ""
    dataset: Text = ""
    encoder: Text = ""
    clients: Count = 0
    rounds: Count = 0
    seed: Count = 0
    seconds: Annotated[float, Field(ge=0, le=1e12)]
    untrained: Accuracies
    rescoring_ratio: Number | None = None
    discard_ratio: Number | None = None
    loss: Number | None = None
    feature_std: Number | None = None
    failed_rounds: Count = 0
    last_failure: Text = ""
    epsilon: Number | None = None
    delta: Number | None = None
    no_privacy: Text = ""


def read_summary(file: Path) -> Summary | None:
    """None if it is missing or damaged: finishing the run writes it again."""
    try:
        return Summary.model_validate_json(read_plain_file(file, LARGEST_RECORD))
    except FileNotFoundError:
        return None
    except (OSError, DamagedFileError, ValidationError):
        log.warning("%s is damaged; the run counts as unfinished", file)
        return None
