"""The commands of `flashheat bench`: as in `cli`, words are parsed, one function is called, and no logic lives here."""

from pathlib import Path
from typing import Annotated

import typer

from flashheat.interrupt import raise_on_ctrl_c

bench = typer.Typer(help="Timings, each behind a correctness gate, and the figures made of them.")


@bench.callback(invoke_without_command=True)  # typer's own `no_args_is_help` makes it an error without words
def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@bench.command()
def ops(
    out: Annotated[Path, typer.Option(help="JSON lines; cases measured again replace theirs.")],
    commit: Annotated[str, typer.Option(help="Written into every line.")] = "",
    part: Annotated[
        list[str], typer.Option(help="main: K = C = 128 at every V; columns: other K, C; ragged: many meshes.")
    ] = ["main", "columns", "ragged"],  # noqa: B006 (typer copies it)
    precision: Annotated[list[str], typer.Option(help="highest, high or bf16.")] = ["highest", "high", "bf16"],  # noqa: B006
) -> None:
    """Time `diffuse` against plain PyTorch, eager and compiled, at matched precision.

    Examples:

    - `flashheat bench ops --out ops.jsonl --commit $(git rev-parse --short HEAD)`
    """
    from flashheat.bench.ops import run

    raise_on_ctrl_c()
    run(out, commit, part, precision)


@bench.command()
def overhead(
    out: Annotated[Path, typer.Option(help="JSON lines; replaced.")],
    commit: Annotated[str, typer.Option(help="Written into every line.")] = "",
) -> None:
    """Time the layers of one call of `diffuse`: kernel, op, autograd node, eager PyTorch.

    Examples:

    - `flashheat bench overhead --out overhead.jsonl --commit $(git rev-parse --short HEAD)`
    """
    from flashheat.bench.timing import require_cuda

    require_cuda("the benchmark")  # before triton is imported, which may be absent then
    from flashheat.bench.overhead import run

    raise_on_ctrl_c()
    run(out, commit)


@bench.command()
def operators(
    out: Annotated[Path, typer.Option(help="JSON lines; cases measured again replace theirs.")],
    commit: Annotated[str, typer.Option(help="Written into every line.")] = "",
    part: Annotated[
        list[str],
        typer.Option(
            help="eigenpairs; geometry: L and gradients; many: small meshes at once; store: reading an entry."
        ),
    ] = ["eigenpairs", "geometry", "many", "store"],  # noqa: B006
    vertices: Annotated[list[int], typer.Option(help="A size for eigenpairs; again for more.")] = [  # noqa: B006
        10_000,
        41_000,
        164_000,
    ],
    mesh: Annotated[list[Path], typer.Option(help="A mesh beside the sphere and the slivers; again for more.")] = [],  # noqa: B006
    k_eig: Annotated[int, typer.Option(help="How many eigenpairs.")] = 128,
    impl: Annotated[list[str], typer.Option(help="flashheat, cuda or eigsh.")] = ["flashheat", "eigsh"],  # noqa: B006
    threads: Annotated[
        list[int], typer.Option(help="Of BLAS, on the CPU; again for more. [default: 1, 2, 4, all]")
    ] = [],  # noqa: B006
) -> None:
    """Time operators: the lowest eigenpairs against SciPy's (eigsh), at the same tolerance, and all around them.

    flashheat is ours on the CPU, cuda ours on a GPU; eigenpairs on a CPU are timed on several numbers of threads.

    Examples:

    - `flashheat bench operators --out operators.jsonl --part eigenpairs --vertices 10000 --mesh fandisk.obj`

    - `flashheat bench operators --out operators.jsonl --impl cuda --impl eigsh`
    """
    from flashheat.bench.eigenpairs import run
    from flashheat.bench.pipeline import run as run_rest

    raise_on_ctrl_c()
    if "eigenpairs" in part:
        run(out, commit, vertices, mesh, k_eig, impl, threads)
    run_rest(out, commit, [of for of in part if of != "eigenpairs"], k_eig, impl)


@bench.command()
def figures(
    results: Annotated[Path, typer.Argument(help="What `bench ops` wrote.")],
    text: Annotated[Path, typer.Option(help="Markdown whose marked tables are replaced.")],
    plot: Annotated[Path | None, typer.Option(help="The plot, .svg or .png (needs matplotlib).")] = None,
) -> None:
    """Make the tables (and the plot) of a file of results.

    Examples:

    - `flashheat bench figures benchmarks/results/h200/ops.jsonl --text README.md --plot docs/ops.svg`
    """
    from flashheat.bench.figures import remake

    remake(results, text, plot)
