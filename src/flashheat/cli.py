"""The command line: words are parsed, one function is called, its answer is printed. No logic lives here.

Each command imports what it needs when it runs, so that `flashheat --help` answers at once.
"""

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import flashheat
from flashheat.bench.commands import bench
from flashheat.errors import FlashheatError
from flashheat.interrupt import LINE, STATUS, raise_on_ctrl_c

app = typer.Typer(
    name="flashheat",
    help="Learned heat diffusion on surfaces: from a mesh file to a trained network and a field on your own mesh.\n\n"
    "Start with `flashheat demo`; with your own data: `check`, `train`, `evaluate`, `predict`.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


UsageError: Any = typer.BadParameter.__base__  # click's; newer versions of typer have a click of their own inside


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flashheat {flashheat.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and no more.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only warnings and the result, no progress.")] = False,
) -> None:
    logging.basicConfig(level=logging.WARNING, format="flashheat: %(message)s")
    logging.getLogger("flashheat").setLevel(logging.WARNING if quiet else logging.INFO)


StoreOption = Annotated[str, typer.Option(help="Folder that keeps operators; default: in your cache folder.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")]
StreamOption = Annotated[
    tuple[float, float, float] | None,
    typer.Option(help="Direction of the free stream in the mesh's coordinates, such as 1 0 0."),
]


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/demo-SEED.")] = None,
    store: StoreOption = "",
) -> None:
    """Train on embedded data (pressure of a flow past ellipsoids) for a minute or two; write a report page.

    Examples:

    - `flashheat demo --out runs/first`
    """
    from flashheat.train import demo, describe

    raise_on_ctrl_c()
    typer.echo(describe(demo(out or Path("runs") / f"demo-{seed}", seed, store)))


@app.command()
def check(
    meshes: Annotated[list[Path], typer.Argument(help="OBJ, PLY, OFF or STL files.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object a mesh instead of text.")] = False,
) -> None:
    """Report what a mesh is and what is wrong with it; exit 1 where one cannot be read or used.

    Examples:

    - `flashheat check body.stl`

    - `flashheat check meshes/*.obj --json`
    """
    import json as jsonlib

    from flashheat.mesh import Mesh

    raise_on_ctrl_c()
    usable = True
    for path in meshes:
        try:
            report = Mesh.read(path).check()
        except (FlashheatError, OSError) as error:
            usable = False
            _tell(error)
            continue
        usable &= report.usable
        typer.echo(jsonlib.dumps({"file": str(path), **report.to_dict()}) if json else f"{path}\n{report}")
    if not usable:
        raise typer.Exit(1)


@app.command()
def precompute(
    meshes: Annotated[list[Path], typer.Argument(help="Mesh files, or folders of them.")],
    k_eig: Annotated[int, typer.Option(help="Eigenpairs of each mesh.")] = 128,
    store: StoreOption = "",
    workers: Annotated[int, typer.Option(help="Meshes to work on at once, a process each.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, or cuda: there, many meshes at once.")] = "cpu",
) -> None:
    """Compute the operators of meshes ahead of training; what the store has is not computed again.

    Examples:

    - `flashheat precompute meshes --k-eig 64 --workers 4`
    - `flashheat precompute meshes --device cuda`
    """
    from flashheat.train import precompute as run

    raise_on_ctrl_c()
    failures = run(meshes, k_eig, store, workers, device=device)
    for file, why in failures.items():
        typer.echo(f"failed: {file}: {why}", err=True)
    if failures:
        raise typer.Exit(1)


@app.command()
def train(
    context: typer.Context,
    task: Annotated[str | None, typer.Argument(help="segmentation or pressure.")] = None,
    dataset: Annotated[str, typer.Option(help="flow (embedded), rna, car, or folder (your own).")] = "folder",
    data_root: Annotated[Path | None, typer.Option(help="The data's folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/TASK-DATASET-SEED.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this run; only data root, device, threads and store may change.")
    ] = None,
    inputs: Annotated[str, typer.Option(help="xyz, hks, flow (n.U and x.U), or several joined by +.")] = "",
    stream: StreamOption = None,
    labels_at: Annotated[str | None, typer.Option(help="vertices or faces, where the counts do not tell.")] = None,
    test_fraction: Annotated[float, typer.Option(help="Part of a folder that is kept for testing.")] = 0.2,
    k_eig: Annotated[int, typer.Option(help="Eigenvectors of each mesh.")] = 128,
    width: Annotated[int, typer.Option(help="Channels of the network.")] = 64,
    depth: Annotated[int, typer.Option(help="Blocks of the network.")] = 4,
    dropout: Annotated[bool, typer.Option(help="Dropout in the blocks.")] = False,
    rotate: Annotated[bool, typer.Option(help="Turn each mesh at random in each step (inputs xyz).")] = False,
    epochs: Annotated[int, typer.Option(help="Passes over the training meshes.")] = 50,
    batch_size: Annotated[int, typer.Option(help="Meshes a step.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Of the first step; falls to 0.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: DeviceOption = None,
    threads: Annotated[int, typer.Option(help="Of torch on the CPU; 0: torch decides. 1 repeats bitwise.")] = 0,
    store: StoreOption = "",
) -> None:
    """Train a network and its baselines into a run folder, or go on with a run (`--resume RUN`).

    Examples:

    - `flashheat train segmentation --data-root meshes --out runs/parts`

    - `flashheat train --resume runs/parts`
    """
    from flashheat.train import TrainConfig, describe
    from flashheat.train import resume as go_on
    from flashheat.train import train as start

    raise_on_ctrl_c()
    if resume is not None:
        given = _given(context) - {"resume"}
        if refused := given - {"data_root", "device", "threads", "store"}:
            names = ", ".join(sorted("a task" if name == "task" else f"--{name.replace('_', '-')}" for name in refused))
            raise typer.BadParameter(f"a run goes on with its own settings; leave out {names}", param_hint="--resume")
        moved = {name: value for name, value in context.params.items() if name in given}
        typer.echo(describe(go_on(resume, **moved)))
        return
    if task is None:
        raise typer.BadParameter("name a task (segmentation or pressure), or a run with --resume")
    config = TrainConfig(
        task=task,
        dataset=dataset,
        data_root=None if data_root is None else str(data_root),
        inputs=inputs,
        stream=stream,
        labels_at=labels_at,  # type: ignore[arg-type]
        test_fraction=test_fraction,
        k_eig=k_eig,
        width=width,
        depth=depth,
        dropout=dropout,
        rotate=rotate,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
        device=device or "cpu",
        threads=threads,
        store=store,
    )
    typer.echo(describe(start(config, out or Path("runs") / f"{task}-{dataset}-{seed}")))


def _given(context: typer.Context) -> set[str]:
    """The parameters that the user wrote."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    meshes: Annotated[
        Path | None, typer.Option(help="Folder of meshes with arrays; default: the held-out ones.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the result, each mesh's included.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="The data's folder, where it has moved.")] = None,
    device: DeviceOption = None,
    store: StoreOption = "",
) -> None:
    """Score a trained network on meshes whose truth is known.

    Examples:

    - `flashheat evaluate runs/parts`

    - `flashheat evaluate runs/parts --meshes others --out scores.json`
    """
    from flashheat.train import evaluate as score

    raise_on_ctrl_c()
    result = score(run, meshes, out, data_root, store or None, device)
    for name, value in result["metrics"].items():
        typer.echo(f"{name:24}{value:14.4g}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    mesh: Annotated[Path, typer.Argument(help="OBJ, PLY, OFF or STL file.")],
    out: Annotated[Path, typer.Option(help=".npy, .npz, .txt, or .ply with the field on the mesh.")],
    stream: StreamOption = None,
    device: DeviceOption = None,
    store: StoreOption = "",
) -> None:
    """Write a network's field on a mesh's own vertices (or faces), in the file's order.

    Examples:

    - `flashheat predict runs/parts body.stl --out labels.npy`

    - `flashheat predict runs/flow body.stl --stream 1 0 0 --out pressure.ply`
    """
    from flashheat.train import predict as answer

    raise_on_ctrl_c()
    typer.echo(f"written: {answer(run, mesh, out, stream, store or None, device)}")


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="Facts as JSON.")] = False) -> None:
    """Say what is installed, what is missing, which path each operation takes, and whether it computes exactly.

    Exit status 1 where the self-test of a device is wrong.

    Examples:

    - `flashheat doctor --json`
    """
    import json as jsonlib

    from flashheat.doctor import facts, report

    found = facts()
    typer.echo(jsonlib.dumps(found, indent=2) if json else report(found))
    if any(verdict.startswith("WRONG") for verdict in found["self-test"].values()):
        raise typer.Exit(1)


@app.command()
def tune(
    vertices: Annotated[list[int], typer.Option(help="A size to tune for, of all meshes of a batch; again for more.")],
    k: Annotated[int, typer.Option(help="Columns of the basis.")] = 128,
    c: Annotated[int, typer.Option(help="Channels.")] = 128,
    precision: Annotated[list[str], typer.Option(help="highest, high or half (bf16 and fp16).")] = ["highest"],  # noqa: B006
) -> None:
    """Find faster tiles of the kernel for your shapes on this card, and use them from then on.

    Examples:

    - `flashheat tune --vertices 5000 --vertices 20000 --k 128 --c 64 --precision half`
    """
    from flashheat.bench.tune import run

    raise_on_ctrl_c()
    run(vertices, k, c, precision)


@app.command()
def profile(
    what: Annotated[str, typer.Argument(help="op: diffuse, forward and backward; step: a training step.")] = "op",
    out: Annotated[Path, typer.Option(help="Folder for the trace and the table.")] = Path("profile"),
    vertices: Annotated[int, typer.Option(help="Size of the mesh.")] = 16_000,
    k: Annotated[int, typer.Option(help="Columns of the basis.")] = 128,
    c: Annotated[int, typer.Option(help="Channels.")] = 128,
    precision: Annotated[str, typer.Option(help="highest, high or bf16.")] = "highest",
    device: DeviceOption = None,
    plain: Annotated[bool, typer.Option("--plain", help="Only make the calls, for a profiler outside.")] = False,
    proton: Annotated[bool, typer.Option("--proton", help="Also measure by Triton's Proton.")] = False,
) -> None:
    """Show where the time of an op or a training step goes, kernel by kernel.

    Examples:

    - `flashheat profile op --vertices 20000 --precision bf16`

    - `flashheat profile step --out profile`
    """
    import torch

    from flashheat.profile import run

    raise_on_ctrl_c()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    shape = {"vertices": vertices, "k": k, "c": c}
    typer.echo(run(what, out, **shape, precision=precision, device=device, plain=plain, proton=proton))


app.add_typer(bench, name="bench")


def _tell(error: Exception) -> None:
    """One line on stderr, or with `--debug` the traceback."""
    if "--debug" in sys.argv:
        raise error
    typer.echo(f"flashheat: {' '.join(str(error).split())}", err=True)


def _usage(error: Any, words: list[str]) -> str:
    """What is wrong with the words of a command line, in one line that names the help to read."""
    named = next((f" {word}" for word in words if not word.startswith("-")), "")  # where the error does not know
    what = " ".join(error.format_message().split()).rstrip(".")
    command = error.ctx.command_path if error.ctx else f"flashheat{named}"
    return f"flashheat: {what[:1].lower()}{what[1:]}; see {command} --help"


def main() -> None:
    """The entry point: a user's problem is one line on stderr, `--debug` shows where it arose.

    Exit status: 1 for a problem, 2 for words that are no command, 130 for Ctrl-C.
    """
    words = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        status = app(words or ["--help"], prog_name="flashheat", standalone_mode=False)
    except UsageError as error:
        typer.echo(_usage(error, words), err=True)
        sys.exit(2)
    except typer.Abort:  # Ctrl-C in some versions of typer; others give its exit status
        status = STATUS
    except (FlashheatError, OSError) as error:
        _tell(error)
        sys.exit(STATUS if isinstance(error.__cause__, KeyboardInterrupt) else 1)
    if status == STATUS:
        typer.echo(LINE, err=True)
    sys.exit(status or 0)
