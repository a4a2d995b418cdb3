"""Data flows one way: the layers of the package as one ordered list, and one home for every library."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.federation import ROOT

LAYERS = [
    {"core"},
    {"config", "images"},
    {"storage", "views"},
    {"datasets", "sources", "models", "methods", "policies", "strategies", "codecs", "evaluation", "tracking"},
    {"encoder"},
    {"classifier"},
    {"device", "server"},
    {"build"},
    {"flower"},
    {"launch"},
    {"fleet", "analysis"},
    {"cli"},
    {"__main__"},
]
"""A part imports itself and what stands before it; parts of one layer do not know each other, but for COMPONENTS."""
COMPONENTS = {("methods", "models")}
"""A method is made around an encoder."""
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
PACKAGE = ROOT / "sofed_flwr"
MODULES = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]
APPS = [ROOT / "client_app.py", ROOT / "server_app.py"]


@cache
def imported(path: Path) -> set[str]:
    """Dotted names of everything a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def part_of(name: str) -> str:
    return name.split(".")[1]


def allowed(part: str, other: str) -> bool:
    return part == other or LEVEL[other] < LEVEL[part] or (part, other) in COMPONENTS


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_stands_before_it(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    others = {part_of(name) for name in imported(path) if name.startswith("sofed_flwr.")}
    assert not {other for other in others if not allowed(part, other)}


def test_the_two_apps_only_unpack_call_and_pack() -> None:
    for app in APPS:
        assert len(app.read_text().splitlines()) <= 40


def test_policies_see_records_and_a_scorer_only() -> None:
    for path in (PACKAGE / "policies").glob("*.py"):
        own = {name for name in imported(path) if name.startswith("sofed_flwr.")}
        assert all(name.startswith(("sofed_flwr.core.records", "sofed_flwr.policies.")) for name in own), path


HOMES = {
    "hydra": {"config/compose"},
    "omegaconf": {"config/compose"},
    "flwr": {"flower", "strategies", "client_app", "server_app", "launch/private_superlink", "fleet/doctor/apps"},
    "kornia": {"views/training"},
    "cryptography": {"fleet/provision"},
    "fcntl": {"storage/file_lock"},
    "grpc": {"fleet/doctor/clock"},
    "torchvision": {"models/mobilenet", "datasets/vision", "datasets/download"},
    "PIL": {"images/decoding"},
    "safetensors": {"storage/tensor_file"},
    "rich": {"launch/progress", "launch/watched"},
    "IPython": {"launch/progress"},
    "typer": {"cli"},
    "psutil": {"launch"},
    "onnx": {f"classifier/onnx_{part}" for part in ("graph", "int8", "limits")},
    "onnxruntime": {"classifier/onnx_model", "classifier/onnx_int8"},
    "onnxscript": {"classifier/onnx_graph"},
    "torch.utils.tensorboard": {"tracking/tensorboard"},
    "matplotlib": {"analysis/charts"},
    "dp_accounting": {"strategies/differential_privacy"},
}


@pytest.mark.parametrize("library", HOMES)
def test_a_library_has_one_home(library: str) -> None:
    users = {
        str(path.relative_to(PACKAGE if PACKAGE in path.parents else ROOT).with_suffix(""))
        for path in [*MODULES, *APPS]
        if any(f"{name}.".startswith(f"{library}.") for name in imported(path))
    }
    assert users
    assert all(any(f"{user}/".startswith(f"{home}/") for home in HOMES[library]) for user in users), users


def test_only_the_edges_see_labels() -> None:
    """Labels end at the stream's order, the evaluation and the classifier: what trains an encoder cannot name them."""
    users = {
        path.relative_to(PACKAGE).parts[0]
        for path in MODULES
        if "LabeledImages" in path.read_text() or "Labels" in path.read_text()
    }
    assert users == {"core", "datasets", "evaluation", "classifier", "build.py"}


def test_tests_with_processes_are_where_make_looks_for_them() -> None:
    """`make test` collects only these places for them: the others take ten seconds to import."""
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("PROCESSES :="))
    places = [ROOT / name for name in line.partition(":=")[2].partition("#")[0].split()]
    marked = [
        path for path in (ROOT / "tests").rglob("test_*.py") if re.search(r"mark\.(flower|fleet)\b", path.read_text())
    ]
    assert marked
    assert all(any(path.is_relative_to(place) for place in places) for path in marked if path != Path(__file__))


def test_no_file_of_the_package_has_more_than_200_lines() -> None:
    assert {path.name: lines for path in MODULES if (lines := len(path.read_text().splitlines())) > 200} == {}
