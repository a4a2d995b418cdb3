"""The wheel by itself: a run in an empty directory, on a machine without the clone."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.federation import ROOT
from tests.support.packages import write_package

BIN = Path(sys.executable).parent
FLOWER = ("flwr", "flower")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Without the clone: what the tests were started with must not lead back to it."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SOFED_TRUST")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean | environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin of a fresh environment: the wheel, and everything else from the present one by a path file.

    Path files of the present environment are not read there, so its editable install of the clone is not seen.
    """
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, cwd=folder)
    home = folder / "venv"
    venv.create(home, symlinks=True)
    (wheel,) = folder.glob("sofed_flwr-*.whl")
    run(*pip, "--python", home / "bin" / "python", "install", "--no-deps", "--no-index", wheel, cwd=folder)
    libraries = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    own = sysconfig.get_path("purelib", vars={"base": str(home)})
    Path(own, "present.pth").write_text("\n".join(libraries) + "\n")
    for script in (path for path in BIN.iterdir() if path.name.startswith(FLOWER)):
        copy = home / "bin" / script.name
        copy.write_text(script.read_text().replace(str(BIN), str(copy.parent)))
        copy.chmod(0o755)
    return home / "bin"


@pytest.mark.flower
def test_a_run_without_a_clone_takes_a_users_own_yaml_and_code_and_leaves_an_encoder(
    installed: Path, tmp_path: Path
) -> None:
    where = run(installed / "python", "-c", "import sofed_flwr; print(sofed_flwr.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(installed.parent)
    packages = write_package(tmp_path / "packages")
    (tmp_path / "own" / "policy").mkdir(parents=True)
    (tmp_path / "own" / "policy" / "mine.yaml").write_text("_target_: own_package.first.First\n")
    sofed = (installed / "sofed", "run", "--config-dir", "own", "--trust", "own_package")
    run(*sofed, "scale=smoke", "policy=mine", "rounds=1", cwd=tmp_path, PYTHONPATH=str(packages))
    (encoder,) = tmp_path.glob("outputs/*/*/encoder.safetensors")
    assert "_target_: own_package.first.First" in (encoder.parent / "config.yaml").read_text()
    load = f"import sofed_flwr; print(sofed_flwr.load_encoder({str(encoder)!r}).facts['version'])"
    version = run(installed / "python", "-c", load, cwd=tmp_path)
    assert run(installed / "sofed", "--version", cwd=tmp_path) == f"sofed {version}"
    run(installed / "sofed", "report", encoder.parent, cwd=tmp_path)
    assert "<h2>Overview" in (encoder.parent / "report.html").read_text(), "the wheel holds page.html"
    assert "table3_policies" in run(installed / "sofed", "reproduce", "--list", cwd=tmp_path)


def test_a_wheel_holds_the_templates_of_a_site(installed: Path, tmp_path: Path) -> None:
    said = run(installed / "sofed", "provision", "site", "--host", "localhost", "--devices", "1", cwd=tmp_path)
    assert "holds a server and 1 devices" in said
    assert (tmp_path / "site" / "device-0" / "sofed-supernode.service").is_file()
