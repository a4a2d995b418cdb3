"""`sofed export | predict`: models that are taken away and used; argument parsing only."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sofed_flwr.cli.exit_codes import exit_codes
from sofed_flwr.cli.options import Trust, extended
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.redaction import one_line

if TYPE_CHECKING:
    from sofed_flwr.classifier.model import Predictor
    from sofed_flwr.classifier.model_directory import Model
    from sofed_flwr.classifier.predictions import Prediction


def export(
    source: Annotated[Path, typer.Argument(metavar="RUN|ENCODER|MODEL", help="directory of a run or model, or a file")],
    out: Annotated[Path, typer.Option(help="what is written: a directory, or FILE.onnx")],
    form: Annotated[str, typer.Option("--format", help="dir or onnx")] = "dir",
    encoder_only: Annotated[
        bool, typer.Option("--encoder-only", help="features, without the classifier's head")
    ] = False,
    layout: Annotated[str | None, typer.Option(help="onnx: order of the input's axes, NHWC (default) or NCHW")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="onnx: convolutions in 8-bit integers")] = False,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER|OVERRIDE", help="onnx: images for int8 and comparison; dataset=NAME, repeatable"),
    ] = None,
    trusted: Trust = None,
) -> None:
    """Turn a run's encoder, or a classifier, into what other tools read."""
    with exit_codes(), extended(trusted, None):
        if form not in ("dir", "onnx"):
            raise ConfigError(f"--format {form}: expected dir or onnx")
        from sofed_flwr.classifier.model import Classifier
        from sofed_flwr.classifier.model_directory import open_model, write_model

        opened = open_model(source)
        model = opened.encoder if encoder_only and isinstance(opened, Classifier) else opened
        if form == "onnx":
            _export_onnx(model, source, out, layout, int8, calibrate or [])
        elif layout or int8 or calibrate:
            raise ConfigError("--layout, --int8 and --calibrate: only with --format onnx")
        else:
            write_model(out, model)
            typer.echo(f"{out}: model.safetensors, config.json, README.md")


def _export_onnx(model: "Model", source: Path, out: Path, layout: str | None, int8: bool, calibrate: list[str]) -> None:
    from sofed_flwr.classifier.onnx_export import as_layout, export_onnx  # onnx is an extra
    from sofed_flwr.launch.progress import console, plain_table
    from sofed_flwr.launch.watched import busy

    order = as_layout(layout)
    if int8 and not calibrate:
        raise ConfigError("--int8 needs images such as the model will see: --calibrate FOLDER, or dataset=NAME")
    with busy("exporting") as step:
        material = None
        if calibrate:
            from sofed_flwr.analysis.export_images import images_for

            step("reading images")
            material = images_for(model, source, calibrate)
        remarks, rows = export_onnx(model, out, order, material, int8, step)
    for line in remarks:
        console.print(line, soft_wrap=True, highlight=False)
    console.print(plain_table("", rows, lines=False))
    typer.echo(str(out))


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="directory of a classifier, or FILE.onnx")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE_OR_DIR...", help="files of any size, or folders")],
    top: Annotated[int, typer.Option(min=1, help="how many classes are named")] = 3,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, metavar="P", help="the answer is `unsure` if no class is as probable as this")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per line and image")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="one row per image, with a header")] = False,
    trusted: Trust = None,
) -> None:
    """Name what is on images. Exit code 1 if some of them could not be read, 2 if none could."""
    with exit_codes(), extended(trusted, None):
        if as_json and as_csv:
            raise ConfigError("--json and --csv: expected one of them")
        if threshold != threshold:  # NaN is within no range that typer checks
            raise ConfigError("--threshold nan: expected a probability")
        from sofed_flwr.classifier.predictions import find_files, predict_files
        from sofed_flwr.launch.watched import watched

        failures: list[str] = []
        files = find_files(images, failures)
        found = predict_files(_predictor(model), files, top, threshold, failures, watched)
        if not found:
            raise ConfigError(f"none of the images can be read; {failures[0]}")
        _print(found, "json" if as_json else "csv" if as_csv else "table")
        for failure in failures:
            typer.echo(f"sofed: {one_line(failure)}", err=True)
        if failures:
            raise typer.Exit(1)


def _predictor(path: Path) -> "Predictor":
    if path.suffix == ".onnx":
        from sofed_flwr.classifier.onnx_model import OnnxClassifier  # onnx is an extra

        return OnnxClassifier(path)
    from sofed_flwr.classifier.model_directory import load_classifier

    return load_classifier(path)


def _print(predictions: "list[Prediction]", form: str) -> None:
    from sofed_flwr.classifier import predictions as formats
    from sofed_flwr.launch.progress import console, plain_table

    if form == "table":
        console.print(plain_table("", formats.as_rows(predictions)))
    elif form == "csv":
        typer.echo(formats.as_csv(predictions), nl=False)
    else:
        typer.echo("\n".join(map(formats.as_json, predictions)))
