"""`sofed inspect`: what the buffers of a run or of one device hold, as a page and a contact sheet.

Images never leave a device, so this runs where they are, and only its owner may read what it writes.
"""

from pathlib import Path

from sofed_flwr.analysis.buffers.held import Held, device_homes, read_all, read_held
from sofed_flwr.analysis.buffers.sheet import sheets
from sofed_flwr.analysis.charts.contact_sheet import png
from sofed_flwr.analysis.report.buffers import holdings, pictures
from sofed_flwr.analysis.report.read import read_run
from sofed_flwr.analysis.report.section import document
from sofed_flwr.analysis.report.turnover import turnover
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.redaction import one_line
from sofed_flwr.storage.atomic_files import SECRET, write_atomically
from sofed_flwr.storage.plain_files import refuse_links


def inspect(path: Path, out: Path) -> list[str]:
    """Write `out` and its .png; what they show, one line per device."""
    if out.suffix != ".html":
        raise ConfigError(f"--out={out}: the page is a file whose name ends in .html")
    refuse_links(path)
    homes = device_homes(path)
    for home in homes:
        if out.resolve().is_relative_to(home.resolve()):
            raise ConfigError(f"--out={out}: lies in a device's state, which is only read; choose another place")
    held = [read_held(homes[0])] if len(homes) == 1 else read_all(homes)
    if not any(map(len, held)):
        raise ConfigError(f"{path}: none of {len(homes)} buffers holds an image that can be read")
    name = f"device {held[0].device}" if len(homes) == 1 else one_line(path.resolve().name, 100)
    run = {name: read_run(path)} if (path / "config.yaml").is_file() else {}
    drawn = sheets(held)
    sections = [holdings({name: held}), *([turnover(run)] if run else []), pictures(drawn)]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, document(f"Buffers of {name}", sections).encode(), SECRET)
    write_atomically(out.with_suffix(".png"), png([sheet.pixels for sheet in drawn]), SECRET)
    return [_line(buffer) for buffer in held]


def _line(held: Held) -> str:
    scores = held.scores
    parts = [
        f"device {held.device}, round {held.now.round}: {len(held)} images",
        *([f"scores {scores.min():.3f} to {scores.max():.3f}"] if len(scores) else []),
        *([f"ages {held.now.ages.min()} to {held.now.ages.max()}"] if len(held) else []),
        f"{sum(map(len, held.duplicates))} near-duplicates",
        *([f"{held.stayed} stayed since round {held.before.round}"] if held.before else []),
    ]
    return ", ".join(parts)
