"""Predictions as text: a JSON object per line (`jq`, pandas with `lines=True`), CSV, rows of a table for people.

Names of files and classes may be anybody's: no control character of theirs is written as it is.
"""

import csv
import io
import json
from collections.abc import Sequence

from sofed_flwr.classifier.predictions import Prediction
from sofed_flwr.core.redaction import printable


def as_json(prediction: Prediction) -> str:
    """One object on one line, in ASCII: control characters of a name are escaped."""
    top = [{"class": name, "probability": round(value, 6)} for name, value in prediction.top]
    return json.dumps({"file": prediction.file, "answer": prediction.answer, "top": top})


def as_csv(predictions: Sequence[Prediction]) -> str:
    """With a header; as many classes as there are in every row. Control characters are escaped as in Python."""
    count = len(predictions[0].top) if predictions else 0
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    pairs = [f"{name}_{place}" for place in range(1, count + 1) for name in ("class", "probability")]
    writer.writerow(["file", "answer", *pairs])
    for prediction in predictions:
        values = [part for name, value in prediction.top for part in (printable(name), f"{value:.6f}")]
        writer.writerow([printable(prediction.file), printable(prediction.answer), *values])
    return text.getvalue()


def as_rows(predictions: Sequence[Prediction]) -> list[list[str]]:
    """Headings, then what a person reads."""
    rows = [["file", "answer", "probabilities"]]
    for prediction in predictions:
        top = ", ".join(f"{printable(name)} {value:.2f}" for name, value in prediction.top)
        rows.append([printable(prediction.file), printable(prediction.answer), top])
    return rows
