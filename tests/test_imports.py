"""Data flows one way: who may import whom (style guide, "Target architecture"), read off the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sofed_flwr"

FOUNDATION = {"contracts", "rng", "store", "runlog", "component"}
ALLOWED = {
    "contracts": set(),
    "rng": set(),
    "component": set(),
    "tensor_file": {"contracts"},
    "store": {"contracts", "tensor_file"},
    "prefixes": {"contracts"},
    "runlog": {"store"},
    "views": set(),
    "parameters": set(),
    "jury": {"contracts", "parameters"},
    "gate": {"contracts", "jury"},
    "summary": {"runlog"},
    "run_config": {"component"},
    "config": {"component", "run_config"},
    "models": set(),
    "decoding": {"contracts"},
    "novelty": {"contracts"},
    "collect": {"component", "decoding", "novelty", "collect"},
    "datasets": {"contracts", "rng", "decoding"},
    "sources": {"contracts", "decoding", "novelty"},
    "node": {"component"},
    "evaluation": {"contracts"},
    "tracking": set(),
    "aggregators": {"contracts", "parameters", "prefixes"},
    "policies": {"contracts"},
    "losses": set(),
    "methods": {"contracts", "losses", "models", "prefixes", "views"},
    "stream": {"sources.base"},
    "buffer": {"contracts"},
    "sgd": set(),
    "trainer": {"contracts", "sgd", "sources.base", "stream", "buffer", "policies.base", "methods.base"},
    "score_trace": {"contracts", "store", "policies.base"},
    "device": {"contracts", "prefixes", "rng", "store", "tensor_file", "buffer", "stream", "trainer"},
    "encoder_file": {"component", "store", "views"},
    "run_lock": {"component"},
    "run_directory": {"contracts", "prefixes", "store", "runlog", "run_lock"},
    "server": {
        *("contracts", "component", "runlog", "summary", "run_directory", "encoder_file", "gate", "stops"),
        *("aggregators.base", "methods.base", "evaluation.suite", "evaluation.collapse", "tracking.base"),
    },
    "assembly": {
        *(FOUNDATION | {"run_config", "buffer", "stream", "trainer", "device", "server", "run_directory"}),
        *("datasets.base", "datasets.cache", "datasets.ordering", "datasets.subset", "node"),
        *("sources.base", "sources.dataset", "sources.folder", "evaluation.suite"),
        *("methods.base", "aggregators.base", "tracking.base", "score_trace"),
    },
    "flower": {"contracts", "tensor_file"},
    "node_directory": {"stops"},
    "exchange": set(),
    "discretion": {"component", "device"},
    "strategy": {"contracts", "rng", "flower", "node_directory", "exchange", "server"},
    "launcher": {"flower_commands"},
    "display": {"runlog"},
    "provision": {"component", "provision"},
    "doctor": {"component", "provision", "doctor"},
    "report": {"charts", "component", "store", "tensor_file", "runlog", "summary", "report"},
    "flower_commands": set(),
    "fleet": {"flower_commands", "run_directory", "run_lock"},
    "app_files": {"component"},
    "running": {
        *("app_files", "assembly", "component", "config", "run_config", "display", "run_directory"),
        *("flower_commands", "launcher", "fleet"),
    },
    "stops": set(),
    "charts": {"component"},
    "reproduce": {
        *("component", "config", "run_config", "run_directory", "runlog", "store", "rng", "flower_commands", "running"),
        *("assembly", "device", "trainer", "reproduce", "charts"),
    },
    "cli": {
        *("assembly", "component", "config", "display", "encoder_file", "exit_codes", "flower_commands", "running"),
        *("run_directory", "report", "reproduce", "cli_devices"),
    },
    "exit_codes": {"component", "flower_commands", "provision", "running", "stops", "tensor_file"},
    "cli_devices": {
        *("component", "display", "exit_codes"),
        *("collect", "provision", "doctor"),
    },
    "client_app": {"assembly", "run_config", "flower", "node", "node_directory", "discretion"},
    "server_app": {"assembly", "config", "strategy"},
}
MODULES = [*PACKAGE.rglob("*.py"), ROOT / "client_app.py", ROOT / "server_app.py"]


def imported(path: Path) -> set[str]:
    """Dotted names of everything a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner if node.module == "sofed_flwr" else {node.module}
    return names


def own(path: Path) -> set[str]:
    return {name.removeprefix("sofed_flwr.") for name in imported(path) if name.startswith("sofed_flwr.")}


def room(path: Path) -> str:
    """The rule a file falls under: its folder in the package, else its own name."""
    return path.parent.name if path.parent not in (PACKAGE, ROOT) else path.stem


def allows(rule: set[str], name: str) -> bool:
    return name in rule or name.split(".")[0] in rule


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    here = room(path)
    if path.stem == "__init__":
        assert not own(path)
        return
    # inside a folder, components know their base; a few files are the folder's own tools
    # and FedU, FedEMA and centralized BYOL are BYOL
    tools = (
        "base",
        "ordering",
        "cache",
        "collapse",
        "features",
        "suite",
        "flower_strategy",
        "momentum",
        "byol",
        "divergence",
    )
    siblings = {f"{here}.{name}" for name in tools} if here != path.stem else set()
    strangers = {name for name in own(path) if not allows(ALLOWED[here], name) and name not in siblings}
    assert not strangers


@pytest.mark.parametrize(
    ("library", "owners"),
    [
        ("hydra", {"config"}),
        ("omegaconf", {"config"}),
        (
            "flwr",
            {
                *("flower", "node_directory", "exchange", "discretion", "strategy", "client_app", "server_app"),
                *("flower_strategy", "robust", "server_optimizers", "differential_privacy"),
            },
        ),
        ("kornia", {"views"}),
        ("cryptography", {"certificates"}),
        ("grpc", {"clock"}),
        ("torchvision", {"mobilenet", "vision"}),
        ("PIL", {"decoding"}),
        ("cv2", {"camera"}),
        ("safetensors", {"tensor_file"}),
        ("rich", {"display"}),
        ("typer", {"cli", "cli_devices", "exit_codes"}),
        ("psutil", {"launcher"}),
        ("torch.utils.tensorboard", {"tensorboard"}),
        ("matplotlib", {"charts"}),
        ("dp_accounting", {"differential_privacy"}),
    ],
)
def test_a_library_has_one_home(library: str, owners: set[str]) -> None:
    users = {path.stem for path in MODULES if any(f"{name}.".startswith(f"{library}.") for name in imported(path))}
    assert users == owners


def test_only_the_edges_see_labels() -> None:
    """`LabeledImages` and labels end at the stream order and at the evaluation."""
    users = {room(path) for path in MODULES if "LabeledImages" in path.read_text() or "Labels" in path.read_text()}
    assert users == {"contracts", "datasets", "evaluation", "assembly"}
