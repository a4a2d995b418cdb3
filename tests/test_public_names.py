"""What `import sofed_flwr` offers, and what it costs."""

import subprocess
import sys
import tomllib

import pytest

import sofed_flwr
from sofed_flwr import encoder
from tests.support.federation import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def python(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_package_is_imported_without_what_trains() -> None:
    """`__version__`, too, and only asking for the encoder loads torch."""
    heavy = "{'torch', 'flwr', 'numpy', 'hydra', 'pydantic'} & sys.modules.keys()"
    program = f"import sys, sofed_flwr; print(sofed_flwr.__version__, {heavy} or 'nothing'); sofed_flwr.load_encoder"
    assert python("-c", f"{program}; print('torch' in sys.modules)").split() == [VERSION, "nothing", "True"]


def test_every_public_name_is_there_and_no_other() -> None:
    assert sofed_flwr.load_encoder is encoder.load_encoder
    assert all(getattr(sofed_flwr, name) for name in sofed_flwr.__all__)
    with pytest.raises(AttributeError, match="module 'sofed_flwr' has no attribute 'load_decoder'"):
        sofed_flwr.load_decoder  # noqa: B018


def test_the_module_is_the_command() -> None:
    assert python("-m", "sofed_flwr", "--version") == f"sofed {VERSION}\n"
    assert "Usage: python -m sofed_flwr" in python("-m", "sofed_flwr", "--help")
