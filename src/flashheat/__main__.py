"""The door of `flashheat` and `python -m flashheat`: it needs nothing, so that a missing extra is one clear line."""

import sys


def main() -> None:
    """Run the command line, or say which extra brings it."""
    try:
        from flashheat.cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(f'flashheat: the command line needs {error.name}; install it with: pip install "flashheat[app]"')
    run()


if __name__ == "__main__":
    main()
