"""`sofed fit`: a few labels in, a classifier and its figures out; argument parsing and tables only."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sofed_flwr.cli.exit_codes import exit_codes
from sofed_flwr.cli.options import ConfigDir, Trust, extended
from sofed_flwr.core.errors import ConfigError

if TYPE_CHECKING:
    from sofed_flwr.classifier.fit import Fit


def fit(
    encoder: Annotated[
        Path, typer.Argument(metavar="ENCODER", help="encoder.safetensors, directory of a run or model")
    ],
    labels: Annotated[
        list[str], typer.Argument(metavar="LABELS", help="class folders, a CSV (path,label), or dataset=NAME ...")
    ],
    out: Annotated[Path, typer.Option(help="directory of the classifier")],
    fraction: Annotated[float | None, typer.Option(help="use this share of every class's labels, 0.01 for 1 %")] = None,
    per_class: Annotated[int | None, typer.Option(min=1, help="use so many labels of every class")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="which labels; how they are dealt and trained")] = 0,
    finetune: Annotated[bool, typer.Option(help="train the whole network, too; the better one is kept")] = False,
    trusted: Trust = None,
    config_dir: ConfigDir = None,
) -> None:
    """Make a classifier of an encoder and a few labels."""
    with exit_codes(), extended(trusted, config_dir):
        if fraction is not None and per_class is not None:
            raise ConfigError("--fraction and --per-class: expected one of them")
        if fraction is not None and not 0 < fraction <= 1:
            raise ConfigError(f"--fraction {fraction}: expected more than 0 and at most 1")
        from sofed_flwr.analysis.fit import fit_labels
        from sofed_flwr.classifier.labels import Choice
        from sofed_flwr.classifier.model_directory import write_model
        from sofed_flwr.classifier.progress_lines import lines
        from sofed_flwr.launch.watched import watched
        from sofed_flwr.storage.model_files import refuse_to_replace

        refuse_to_replace(out)
        watch = watched if sys.stderr.isatty() else lines
        remarks, fitted = fit_labels(encoder, labels, Choice(fraction, per_class, seed), finetune, watch)
        write_model(out, fitted.classifier)
        _show(remarks, fitted)
        typer.echo(f"{out}: model.safetensors, config.json, README.md")


def _show(remarks: list[str], fitted: "Fit") -> None:
    from sofed_flwr.classifier import tables
    from sofed_flwr.launch.progress import console, plain_table

    for line in remarks:
        console.print(line, soft_wrap=True, highlight=False)
    shown = [tables.accuracies(fitted)]
    if fitted.kept.assessment is not None:
        shown += [tables.confusion(fitted.kept.assessment), tables.per_class(fitted.kept.assessment)]
    for title, rows in shown:
        if title:
            console.print(title, soft_wrap=True, highlight=False)  # a title of a narrow table would be broken
        console.print(plain_table("", rows, lines=False), "", sep="\n")
    for warning in fitted.warnings:
        names = f" (the first: {warning.names})" if warning.names else ""
        console.print(f"warning: {warning.sentence}{names}", style="yellow", soft_wrap=True, highlight=False)
