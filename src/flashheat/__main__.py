"""The door of `flashheat` and `python -m flashheat`: it needs nothing, so that a missing extra is one clear line."""

import os
import sys


def main() -> None:
    """Run the command line, or say which extra brings it; Ctrl-C at any moment is one line and exit status 130."""
    try:
        from flashheat import interrupt

        interrupt.end_at_once_on_ctrl_c()
        try:
            from flashheat.cli import main as run
        except ModuleNotFoundError as error:
            sys.exit(f'flashheat: the command line needs {error.name}; install it with: pip install "flashheat[app]"')
        run()
    except KeyboardInterrupt:
        _end("flashheat: interrupted\n")
    except SystemExit as stop:
        if stop.code == interrupt.STATUS:
            _end()
        raise
    finally:
        interrupt.ignore_ctrl_c()


def _end(line: str = "") -> None:
    """End without the interpreter's own farewell, in which it kills itself where Ctrl-C came amid an `exec`."""
    sys.stderr.write(line)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
