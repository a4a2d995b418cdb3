"""Untrusted text (of a device, Flower or a file) as one short, printable line without paths.

A device cleans what it sends (`flower/device_errors.py`), but an old or hostile one does not. What fails there before
our code runs, such as the import of a damaged copy of the app, Flower sends unchanged: hundreds of lines, with paths
that contain a person's name. ESC bytes would control the operator's terminal, and bidirectional controls would reorder
what it shows. So untrusted text passes through here, on device and server, before it is logged, stored or shown.
"""

import re

LONGEST = 300
"""Characters; a sentence and its numbers have room, a traceback does not."""
SENTENCE = 2000
"""Characters of a whole sentence with its paths."""
GAP = " ... "
PATH = "<path>"
QUOTED_PATH = re.compile(r"""(['"`])(?:file:|[A-Za-z]:|~)?[/\\].*?(?:\1|$)""")
"""To the closing quote: a folder may be called `Ada Lovelace`."""
BARE_PATH = re.compile(r"""(?<![^\s=(<:'"`])[^\s=(<:'"`]*[/\\]\S*""")
"""Relative ones, too: the rest of a path that contains a space. Matched only at the start of a word, for speed."""
BROKEN_PATH = re.compile(rf"{PATH}(?:(?: \S+){{0,2}} {PATH})+")
"""What spaces in a path without quotes have left of it."""


def redacted(text: object, longest: int = LONGEST) -> str:
    """First and last line of an untrusted text, cut, printable, every path replaced.

    The last line of a traceback says what happened; what lies between is of no use to a server. Never more than a few
    times `longest` characters are looked at.
    """
    whole = str(text)
    reach = 4 * longest
    first = _printable(whole[:reach].strip().partition("\n")[0])
    last = _printable(whole[-reach:].strip().rpartition("\n")[2])
    half = (longest - len(GAP)) // 2
    if first == last or (len(whole) > reach and "\n" not in whole[-reach:]):
        return _cut(first, longest)
    return _cut(first, half) + GAP + _cut(last, half)


def one_line(text: str, longest: int = SENTENCE) -> str:
    """For the owner of the file it is about: paths stay, line ends and control characters are removed."""
    line = _printable(text[: 2 * longest])
    return line if len(line) <= longest else line[: longest - len(GAP)] + GAP.rstrip()


def printable(name: str) -> str:
    """A name as it is, but for what would command a terminal: that is written as Python would (`\\x1b`)."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in name)


def _printable(line: str) -> str:
    """Control characters of all kinds, and spaces other than the plain one, are no printable characters."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in line).split())


def _cut(line: str, longest: int) -> str:
    """Paths first: half a path is still one."""
    clean = BROKEN_PATH.sub(PATH, BARE_PATH.sub(PATH, QUOTED_PATH.sub(PATH, line)))
    return clean if len(clean) <= longest else clean[: longest - len(GAP)].rstrip() + GAP.rstrip()
