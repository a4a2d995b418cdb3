"""How far a command is that works for longer than two seconds: a bar on stderr, so that stdout stays the result."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

BAR_DELAY_S = 2.0
"""Seconds without a bar: what is done by then needs none."""

T = TypeVar("T")


def watched(items: Sequence[T], what: str) -> Iterator[T]:
    """The items one by one; where stderr is a terminal, with a bar that is gone when they are done."""
    console = Console(stderr=True, markup=False, emoji=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,  # what is printed meanwhile goes where it belongs
        redirect_stderr=False,
        disable=not console.is_terminal,
    )
    task = bar.add_task(what, total=len(items))
    began = monotonic()
    try:
        for item in items:
            yield item
            bar.advance(task)
            if not bar.live.is_started and monotonic() - began > BAR_DELAY_S:
                bar.start()
    finally:
        bar.stop()


@contextmanager
def busy(what: str) -> Iterator[Callable[[str], None]]:
    """For work in few steps of unknown length: a line that moves, and a function that changes its text."""
    with Console(stderr=True, markup=False, emoji=False).status(what) as status:
        yield status.update
