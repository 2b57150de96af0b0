"""Ctrl-C is one line and exit status 130 whenever it comes: while a command loads, works, or has given its answer.

It is separate because it must be in place before anything heavy is imported. A KeyboardInterrupt amid an import may be
swallowed, or come out as another error, in libraries that are not ours, so it is never raised there.
"""

import os
import signal
from types import FrameType

STATUS = 130  # 128 + SIGINT, as a shell has it
LINE = "flashheat: interrupted"
SECONDS_UNTIL_AGAIN = 0.05


def end_at_once_on_ctrl_c() -> None:
    """While a command loads, nothing is to be cleaned up. A process that was started to ignore Ctrl-C still does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)


def raise_on_ctrl_c() -> None:
    """All is loaded and the work begins: from here Ctrl-C is a KeyboardInterrupt, so that files are left whole."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, _raise_outside_imports)
        signal.signal(signal.SIGALRM, _raise_outside_imports)


def ignore_ctrl_c() -> None:
    """The answer is given: while the interpreter ends, Ctrl-C changes nothing and would only hide the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_at_once(_signal: int, _frame: FrameType | None) -> None:
    os.write(2, f"{LINE}\n".encode())
    os._exit(STATUS)


def _raise_outside_imports(_signal: int, frame: FrameType | None) -> None:
    """What is imported late, when it is first used, is finished first: the signal comes again until that is so."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            signal.setitimer(signal.ITIMER_REAL, SECONDS_UNTIL_AGAIN)
            return
        frame = frame.f_back
    raise KeyboardInterrupt
