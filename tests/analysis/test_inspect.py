"""What the buffers hold, from states written by hand: numbers, pictures, and a state directory that stays as it is."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from matplotlib.colors import to_rgb
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from sofed_flwr.analysis.buffers.duplicates import near_duplicates
from sofed_flwr.analysis.buffers.held import read_held
from sofed_flwr.analysis.buffers.sheet import _thumbnails, order
from sofed_flwr.analysis.charts.contact_sheet import FRAME, GAP, HEADING, SIDE, Picture, draw, png
from sofed_flwr.analysis.charts.panels import COLOURS, Histogram
from sofed_flwr.analysis.report import turnover
from sofed_flwr.analysis.report.read import read_run
from sofed_flwr.cli.main import app
from sofed_flwr.device.participant import PARTS
from sofed_flwr.device.state_lock import locked_state
from sofed_flwr.storage.generations import Generation, Store
from sofed_flwr.storage.metrics_log import RunLog
from tests.analysis.test_report import cells, make_run

NAN = float("nan")


def flat(*levels: int, height: int = 8, width: int = 8) -> Tensor:
    """One image of one grey level for each."""
    return torch.tensor(levels, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, height, width).contiguous()


def save(home: Path, number: int, levels: list[int], scores: list[float], ages: list[int], **meta: Any) -> None:
    """A state as a device writes it, with a policy's column and a target that nobody here asks for."""
    buffer = {"images": flat(*levels), "scores": torch.tensor(scores), "ages": torch.tensor(ages, dtype=torch.int64)}
    tensors = {f"buffer.{name}": tensor for name, tensor in buffer.items()}
    more = {"buffer.column.arrival": torch.zeros(len(levels)), "method.target.weight": torch.ones(3)}
    about = {"run": "r", "round": number + 1, "device": 3, "cursor": None} | meta
    Store(home).save(Generation(number, tensors | more, about), PARTS)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """After round 2 the levels 0 and 40 have stayed; 40 and 48 are near-duplicates."""
    place = tmp_path / "state" / "3"
    save(place, 0, [0, 40, 80, 160], [0.1, 0.2, 0.3, 0.4], [0, 1, 2, 3])
    save(place, 1, [0, 40, 48, 240], [0.9, NAN, 0.7, 0.8], [8, 9, 0, 1])
    return place


def look(path: Path, out: Path) -> Any:
    return CliRunner().invoke(app, ["inspect", str(path), "--out", str(out)])


def test_near_duplicates_by_hand() -> None:
    """5 % of 255 are 12.75 levels. What is near a member is in its group, so 0 and 24 are, by way of 12."""
    assert near_duplicates(flat(0, 200, 12, 100, 24, 212, 113)) == [[0, 2, 4], [1, 5]]
    half = torch.cat([flat(0, 0, height=8, width=4), flat(50, 0, height=8, width=4)], dim=3)
    assert near_duplicates(half) == []  # half of the pixels differ by 50 levels: 35 as a root mean square
    assert near_duplicates(flat(5)) == near_duplicates(flat()) == []


def test_a_state_by_hand(home: Path) -> None:
    held = read_held(home)
    assert (held.device, held.now.round, held.stayed) == (3, 2, 2)
    assert held.duplicates == [[1, 2]]
    assert order(held) == [0, 3, 2, 1]
    save(home, 2, [0, 12], [NAN, NAN], [5, 4], run="another")
    held = read_held(home)
    assert held.stayed is None  # how long a round of another run took says nothing
    assert order(held) == [1, 0]


def test_the_page_holds_numbers_and_pictures_and_only_its_owner_reads_it(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "page.html"
    out.parent.mkdir()
    for stray in (out, out.with_name("page.html.tmp"), out.with_suffix(".png")):
        stray.write_text("")
        stray.chmod(0o666)
    done = look(home, out)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(
        "device 3, round 2: 4 images, scores 0.700 to 0.900, ages 0 to 9, 2 near-duplicates, 2 stayed since round 1\n"
    )
    assert sorted(path.name for path in out.parent.iterdir()) == ["page.html", "page.png"]
    assert {path.stat().st_mode & 0o777 for path in out.parent.iterdir()} == {0o600}
    page = out.read_text()
    row = ["3", "2", "4", "8 x 8", "0.700", "0.800", "0.900", "1", "9", "2 in 1 group", "2 of 4 since round 1"]
    assert row in cells(page)
    assert "may show people" in page
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(picture) == out.with_suffix(".png").read_bytes()
    foreign = re.sub(r' xmlns(:\w+)?="http://www\.w3\.org/[\w/]+"| src="data:image/png;base64,[^"]+"', "", page)
    assert not re.search(r"https?:|src=|@import|<link|<script|url\((?!#)|href=\"(?!#)", foreign)


def test_a_running_devices_state_is_read_without_its_lock_and_left_as_it_is(home: Path, tmp_path: Path) -> None:
    def everything() -> dict[str, tuple[int, bytes]]:
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in home.iterdir()}

    with locked_state(home, {"run": "r", "round": 3}):
        before, changed = everything(), home.stat().st_mtime_ns
        assert look(home, tmp_path / "page.html").exit_code == 0
        assert (everything(), home.stat().st_mtime_ns) == (before, changed)
    assert look(home.parent, tmp_path / "page.html").exit_code == 0  # the device's state-dir


def test_of_a_run_every_device_is_shown_and_one_that_is_damaged_is_left_out(home: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=1)
    (run / "devices").mkdir()
    home.rename(run / "devices" / "3")
    save(run / "devices" / "12", 0, [], [], [], device=12)
    (run / "devices" / "1").mkdir()
    (run / "devices" / "1" / "00000000.safetensors").write_bytes(b"torn")
    done = look(run, tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    assert [line[:10] for line in done.output.splitlines()[:2]] == ["device 3, ", "device 12,"]
    page = (tmp_path / "page.html").read_text()
    assert "<h2>How fast images come and go" in page
    assert ["12", "1", "0", *["–"] * 6, "0", "–"] in cells(page)


def test_the_report_of_a_simulation_shows_its_buffers_unless_told_otherwise(home: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=1)
    (run / "devices").mkdir()
    home.rename(run / "devices" / "3")
    (run / "metrics.jsonl").unlink()  # which has charts enough
    page = run / "report.html"
    for option, shown in (("--images", True), ("--no-images", False)):
        assert CliRunner().invoke(app, ["report", str(run), option]).exit_code == 0
        assert ("<h2>Images in the buffers" in page.read_text()) == shown
        assert "<h2>Buffers at the end" in page.read_text()
        assert (page.stat().st_mode & 0o077 == 0) == shown
    assert CliRunner().invoke(app, ["report", str(run), str(run), "--out", str(page)]).exit_code == 0
    assert "data:image" not in page.read_text()


def torn(home: Path) -> Path:
    for path in home.iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return home


def foreign(home: Path) -> Path:
    Store(home.parent / "checkpoint").save(Generation(1, {"online.weight": torch.ones(2)}, {"run": "r", "round": 1}))
    return home.parent / "checkpoint"


def fleet(home: Path) -> Path:
    (home.parent / "config.yaml").write_text(yaml.safe_dump({"rounds": 3}))
    return home.parent


def empty(home: Path) -> Path:
    save(home.parent / "4", 0, [], [], [])
    return home.parent / "4"


def two_channels(home: Path) -> Path:
    images = {"buffer.images": flat(1)[:, :2], "buffer.scores": torch.ones(1), "buffer.ages": torch.ones(1).long()}
    Store(home).save(Generation(2, images, {"run": "r", "round": 3}), PARTS)
    return home


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (torn, "none of the states in it can be read"),
        (foreign, "not the state of a device (it holds no buffer)"),
        (two_channels, "not the state of a device (its images have the shape (2, 8, 8), expected (3, H, W))"),
        (fleet, "a run without the buffers of simulated devices; of a fleet each device has its own"),
        (empty, "none of 1 buffers holds an image that can be read"),
        (lambda home: home / "nowhere", "there is no such directory"),
        (lambda home: home.parents[1], "neither a run's directory nor that of a device's state"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(change: Any, sentence: str, home: Path, tmp_path: Path) -> None:
    path = change(home)
    done = look(path, tmp_path / "page.html")
    assert done.exit_code == 2
    assert done.output.startswith(f"sofed: {path}: {sentence}")
    assert done.output.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_nothing_is_written_into_a_state_directory(home: Path) -> None:
    done = look(home.parent, home / "page.html")
    assert (done.exit_code, "which is only read" in done.output) == (2, True)
    assert not (home / "page.html").exists()
    assert "ends in .html" in look(home, home.parent / "page.png").output


def test_a_sheet_has_every_pixel_in_its_place() -> None:
    ramp = np.arange(SIDE * SIDE * 3).reshape(SIDE, SIDE, 3).astype(np.uint8)
    small = np.full((4, 8, 3), 77, np.uint8)
    sheet = draw("two", [Picture(ramp, "0.500 · 3"), Picture(small, "$x$", mark=1)])
    top, left = HEADING + FRAME, GAP + FRAME
    assert (sheet[top : top + SIDE, left : left + SIDE] == ramp).all()
    left += SIDE + 2 * FRAME + GAP
    colour = [int(255 * part) for part in to_rgb(COLOURS[1])]
    assert sheet[top - 1, left - 1].tolist() == colour
    assert sheet[top + SIDE // 2, left + SIDE // 2].tolist() == [77, 77, 77]
    assert (sheet[:HEADING] < 128).any(), "the heading"
    both = np.asarray(Image.open(io.BytesIO(png([sheet, sheet[:, :100]]))).convert("RGB"))
    assert (both[: len(sheet)] == sheet).all()
    assert (both[len(sheet) :, :100] == sheet[:, :100]).all()
    assert (both[len(sheet) :, 100:] == 255).all()


def test_thumbnails_are_whole_multiples_or_averages() -> None:
    (large,) = _thumbnails(torch.arange(3 * 4 * 2, dtype=torch.uint8).reshape(1, 3, 4, 2))
    assert large.shape == (SIDE, SIDE // 2, 3)
    assert large[0, 0].tolist() == large[23, 23].tolist() == [0, 8, 16]
    assert large[24, 0].tolist() == [2, 10, 18]
    stripes = torch.tensor([0, 100], dtype=torch.uint8).repeat(SIDE).expand(1, 3, 10, -1)
    (small,) = _thumbnails(stripes)
    assert small.shape == (5, SIDE, 3)
    assert (small == 50).all()


def test_bins_are_whole_where_numbers_are() -> None:
    assert Histogram({"a": [3, 5], "b": [4]}, x_label="", whole=True)._edges() == [2.5, 3.5, 4.5, 5.5]
    assert Histogram({"a": [0, 47]}, x_label="", whole=True)._edges() == [-0.5 + 2 * number for number in range(25)]
    edges = Histogram({"a": [0.5, 0.5]}, x_label="")._edges()
    assert (edges[0], len(edges), edges[-1] > 0.5) == (0.5, 25, True)


def test_how_long_an_image_stays_by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Device 0 keeps 10 of 100 images in 5 iterations with a buffer of 16: 2 of 16 are new each time, one stays 8."""
    run = make_run(tmp_path / "run", rounds=1, buffer=16)
    RunLog(run / "metrics.jsonl").write(1, {"steps": 5}, 0)
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(turnover, "over_rounds", lambda curves, _, title, **more: drawn.update({title: curves}) or [])
    turnover.turnover({"run": read_run(run)})
    assert drawn["new images"] == {"device 0": {1: 100}, "device 1": {1: 100}}
    assert drawn["discarded"] == {"device 0": {1: 0.9}, "device 1": {1: 0.6}}
    assert drawn["mean stay"] == {"device 0": {1: 8.0}, "device 1": {}}
    turnover.turnover({"a": read_run(run), "b": read_run(run)})
    assert drawn["discarded"]["b"] == {1: 0.75}
