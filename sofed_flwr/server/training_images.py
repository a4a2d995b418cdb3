"""What the encoder file of a run records of the images it was trained on.

A file that is given to others must not reveal paths of its owner; these are only in `config.yaml` of the run directory.
"""

import re
from collections.abc import Callable
from typing import Any

from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.records import Split
from sofed_flwr.evaluation.suite import Suite

PLACES = {"path", "root"}


def trained_on(config: RunConfig, suite: Suite, split: Callable[[], Split]) -> dict[str, Any]:
    """Dataset, settings and size of the images.

    Their size is that of the evaluation's images, or without evaluation that of the fleet's own images.
    """
    settings = {
        name: value
        for name, value in config.dataset.items()
        if name not in PLACES | {"_target_"} and not (isinstance(value, str) and re.search(r"[/\\]", value))
    }
    data = {"dataset": config.choices.get("dataset"), "settings": settings, "subset": config.subset.model_dump()}
    if suite.due(0, config.rounds):
        height, width = split().train.images.shape[-2:]
        return {"data": data, "image_size": [height, width]}
    return {"data": data, "image_size": [config.stream.image_size] * 2}
