"""One task a file in several processes: a failure or a killed process costs its own file and nothing else.

It is separate because nothing in it knows what the task is.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

KILLED = "its process was killed; is there enough memory? try fewer workers"

Work = Callable[[Path], str | None]  # why it failed; None when all went well


def each(files: Sequence[Path], work: Work, n_workers: int) -> Iterator[tuple[Path, str | None]]:
    """`(file, work(file))` for every file, in the order in which they end.

    The cores are shared out between the processes, unless OMP_NUM_THREADS says how many threads each has. They end with
    this one, whatever ends it; `work` must therefore leave whole files at any instant.

    Args:
        files: what to work on.
        work: a function that can be pickled.
        n_workers: processes; 1 works in this one.
    """
    if n_workers == 1:
        yield from ((file, work(file)) for file in files)
        return
    waiting = deque(files)
    while waiting:
        suspects = yield from _until_one_is_killed(waiting, work, n_workers)
        for file in suspects:  # one of these killed its process: each alone shows which
            try:
                with _processes(1) as alone:
                    why = alone.submit(work, file).result()
            except BrokenProcessPool:
                why = KILLED
            yield file, why


def _until_one_is_killed(
    waiting: deque[Path], work: Work, n_workers: int
) -> Generator[tuple[Path, str | None], None, list[Path]]:
    """Take from `waiting` until it is empty or a process was killed; return the files that were then at work."""
    at_work: dict[Future[str | None], Path] = {}
    with _processes(n_workers) as pool:
        while waiting or at_work:
            while waiting and len(at_work) < n_workers:
                try:
                    at_work[pool.submit(work, waiting[0])] = waiting[0]
                except BrokenProcessPool:
                    return list(at_work.values())
                waiting.popleft()
            for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                try:
                    why = future.result()
                except BrokenProcessPool:
                    return list(at_work.values())
                yield at_work.pop(future), why
    return []


@contextlib.contextmanager
def _processes(n_workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are ended, not waited for, when the block is left by an exception such as Ctrl-C."""
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = threads or str(max(1, (os.cpu_count() or 1) // n_workers))
    pool = ProcessPoolExecutor(n_workers, multiprocessing.get_context("spawn"), _live_and_die_with_the_parent)
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]


def _live_and_die_with_the_parent() -> None:
    """Ctrl-C is the parent's to handle; where the parent is gone (kill -9), so is this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
