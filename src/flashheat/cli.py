"""The command line: words are parsed, one function is called, its answer is printed. No logic lives here.

Each command imports what it needs when it runs, so that `flashheat --help` answers at once.
"""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from flashheat.errors import FlashheatError

app = typer.Typer(
    name="flashheat",
    help="Learned heat diffusion on surfaces: from a mesh file to a trained network and a field on your own mesh.\n\n"
    "Start with `flashheat demo`; with your own data: `check`, `train`, `evaluate`, `predict`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say more about what is done.")] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="flashheat: %(message)s")


@app.command()
def check(
    meshes: Annotated[list[Path], typer.Argument(help="OBJ, PLY, OFF or STL files.")],
    k_eig: Annotated[int, typer.Option(help="Eigenpairs that you mean to use: shared out among the components.")] = 128,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a mesh instead of text.")] = False,
) -> None:
    """Report what a mesh is and what is wrong with it; exit 1 where one cannot be used."""
    import json as jsonlib

    from flashheat.mesh import Mesh

    usable = True
    for path in meshes:
        report = Mesh.read(path).check(k_eig)
        usable &= report.usable
        typer.echo(jsonlib.dumps({"file": str(path), **report.to_dict()}) if json else f"{path}\n{report}")
    if not usable:
        raise typer.Exit(1)


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="Facts as JSON.")] = False) -> None:
    """Say what is installed, what is missing, and which path each operation takes."""
    import json as jsonlib

    from flashheat.doctor import facts, report

    found = facts()
    typer.echo(jsonlib.dumps(found, indent=2) if json else report(found))


def main() -> None:
    """The entry point: a user's problem is one line on stderr and exit status 1; `--debug` shows where it arose."""
    words = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        app(words)
    except (FlashheatError, OSError) as error:
        if len(words) < len(sys.argv) - 1:
            raise
        typer.echo(f"flashheat: {' '.join(str(error).split())}", err=True)
        sys.exit(1)
