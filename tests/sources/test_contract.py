"""What every kind of source keeps to, and how node config names one."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import sofed_flwr.sources
from sofed_flwr.core.errors import DeviceError
from sofed_flwr.sources.base import Setting, Source
from sofed_flwr.sources.camera import CameraSource
from sofed_flwr.sources.schemes import check_source, open_source, schemes
from tests.support.frames import fill, jpeg

SIZE = 16
SHOW = "import sys; [sys.stdout.buffer.write(open(name, 'rb').read()) for name in sys.argv[1:]]"


def setting(folder: Path) -> Setting:
    images = np.random.default_rng(0).integers(256, size=(9, 3, SIZE, SIZE), dtype=np.uint8)
    return Setting(SIZE, 10**6, folder, lambda: (images, np.arange(9)))


def spool(folder: Path) -> Source:
    fill(folder / "spool", *range(9))
    return open_source(f"spool:{folder}/spool", setting(folder))


def dataset(folder: Path) -> Source:
    return open_source("dataset", setting(folder))


def camera(folder: Path) -> Source:
    for seed in range(9):
        (folder / f"{seed}.jpg").write_bytes(jpeg(seed))
    return CameraSource([sys.executable, "-c", SHOW, *map(str, sorted(folder.glob("*.jpg")))], SIZE, every=0)


Kind = Callable[[Path], Source]
KINDS: dict[str, Kind] = {"spool": spool, "dataset": dataset, "camera": camera}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def test_every_scheme_is_tested_here() -> None:
    assert schemes().keys() == KINDS.keys()


@every_kind
def test_images_come_in_order_and_no_more_than_wanted(kind: Kind, tmp_path: Path) -> None:
    source = kind(tmp_path)
    assert source.waiting(None) >= 0
    portion = source.read(None, 4)
    assert (portion.images.shape, portion.images.dtype) == ((4, 3, SIZE, SIZE), torch.uint8)
    assert len({image.numpy().tobytes() for image in portion.images}) == 4
    assert (portion.unreadable, portion.rejected) == (0, 0)
    everything = source.read(None, 9).images
    assert torch.equal(everything[:4], portion.images)


@every_kind
def test_a_cursor_survives_json_and_the_next_image_is_another_one(kind: Kind, tmp_path: Path) -> None:
    source = kind(tmp_path)
    first = source.read(None, 1)
    second = source.read(json.loads(json.dumps(first.cursor)), 1)
    assert len(second.images) == 1
    assert not torch.equal(first.images, second.images)


@every_kind
@pytest.mark.parametrize("cursor", [-1, 10**40, "12", [], {}, {"taken": 5}, {"spool": "/x"}, {"taken": None}])
def test_a_cursor_of_another_source_is_the_beginning(kind: Kind, cursor: object, tmp_path: Path) -> None:
    source = kind(tmp_path)
    assert torch.equal(source.read(cursor, 3).images, source.read(None, 3).images)


# by scheme


def test_a_new_kind_of_source_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "microscope.py").write_text(
        'FORM = "microscope:LENS"\n'
        "def check_source(text): pass\ndef open_source(text, setting): return text, setting.image_size\n"
    )
    monkeypatch.setattr(sofed_flwr.sources, "__path__", [*sofed_flwr.sources.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "sofed_flwr.sources.microscope", raising=False)
    assert "microscope" in schemes()
    assert open_source("microscope:a:b", setting(tmp_path)) == ("a:b", SIZE)
    with pytest.raises(DeviceError, match="write spool:DIRECTORY, microscope:LENS, camera:INDEX or dataset"):
        check_source("microscope")
    sys.modules.pop("sofed_flwr.sources.microscope")


@pytest.mark.parametrize("source", ["/secret/spool", "spool", "camera", "secret", "", "C", "secret/x"])
def test_a_source_without_a_kind_is_told_what_to_write(source: str) -> None:
    with pytest.raises(DeviceError) as refusal:
        check_source(source)
    expected = "node config source does not say of which kind it is; write spool:DIRECTORY, camera:INDEX or dataset"
    assert str(refusal.value) == expected


@pytest.mark.parametrize(
    "source", ["secret:x", "os:x", "base:x", "unfinished:x", "schemes:x", ":x", "Spool:x", "spool.x:y", ".spool:x"]
)
def test_a_kind_is_a_module_of_the_package_that_opens_sources(source: str, tmp_path: Path) -> None:
    for refused in (check_source, lambda text: open_source(text, setting(tmp_path))):
        with pytest.raises(DeviceError) as refusal:
            refused(source)
        assert str(refusal.value) == "node config source is of no known kind; there are camera, dataset, spool"
