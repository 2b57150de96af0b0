"""How far a long stage is, how fast it goes and when it will end: a bar on a terminal, plain log lines elsewhere.

It is separate so that the loop counts and nothing else, and a library user sees nothing that was not asked for.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("flashheat")

SECONDS_BETWEEN_LINES = 5.0

Advance = Callable[[str], None]  # called once a step, with a word on how it goes


class LogProgress:
    """A line in the log `flashheat` at most every five seconds, and one at the end."""

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0, unit: str = "steps") -> Iterator[Advance]:
        """Follow `total` steps, of which `done` were done before."""
        start = last = time.monotonic()
        count = done

        def advance(note: str = "") -> None:
            nonlocal count, last
            count += 1
            now = time.monotonic()
            if now - last >= SECONDS_BETWEEN_LINES or count == total:
                last = now
                rate = (count - done) / max(now - start, 1e-9)
                logger.info("%s", _line(name, count, total, rate, unit, note))

        yield advance


class RichProgress:
    """A bar on the terminal (standard error) with the rate and the time left."""

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0, unit: str = "steps") -> Iterator[Advance]:
        """Follow `total` steps, of which `done` were done before."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(name, total=total, completed=done, note="")
            start, count = time.monotonic(), done

            def advance(note: str = "") -> None:
                nonlocal count
                count += 1
                rate = (count - done) / max(time.monotonic() - start, 1e-9)
                bar.update(task, completed=count, note=f"{_pace(count, total, rate, unit)}  {note}")

            yield advance


Progress = LogProgress | RichProgress


def make_progress() -> Progress:
    """A bar where standard error is a terminal and rich is installed; else log lines."""
    from importlib.util import find_spec

    return RichProgress() if sys.stderr.isatty() and find_spec("rich") is not None else LogProgress()


def _line(name: str, count: int, total: int, rate: float, unit: str, note: str) -> str:
    return f"{name}: {count}/{total} {unit}, {_pace(count, total, rate, unit)}{', ' if note else ''}{note}"


def _pace(count: int, total: int, rate: float, unit: str) -> str:
    left = round((total - count) / rate)
    hours, minutes, seconds = left // 3600, left // 60 % 60, left % 60
    clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
    return f"{rate:.3g} {unit}/s, {clock} left"
