"""Rows of the benchmarks become the README's table and a plot, so that no figure is typed by hand.

It is separate because it needs no GPU: a test holds the README to the rows beside it.
"""

import json
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from flashheat.errors import FlashheatError, MissingExtraError
from flashheat.files import write_atomically

logger = logging.getLogger("flashheat")

SIZES = (1_000, 4_000, 8_000, 16_000, 64_000, 256_000, 1_000_000)
CLASSES = ("highest", "high", "bf16")
PASSES = {"forward": "forward", "both": "forward + backward"}
NEEDED = {
    "ops": ("pass", "V", "K", "C", "B", "precision", "impl", "gpu_us", "floor_us"),
    "operators": ("mesh", "V", "K", "impl", "threads", "seconds", "residual"),
    "geometry": ("mesh", "V", "impl", "seconds"),
    "many": ("V", "meshes", "K", "impl", "seconds", "residual"),
    "store": ("V", "K", "cache", "impl", "seconds", "bytes"),
}
PEERS = ("eager", "compile", "max-autotune")

Row = dict[str, Any]


def read_rows(path: str | Path) -> list[Row]:
    """The rows of one file of results, one JSON object a line, of a benchmark that is known, with what it needs.

    Raises:
        FlashheatError: the file is absent, or a line is no JSON object.
    """
    try:
        rows = [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]
    except OSError as error:
        reason = error.strerror or error
        raise FlashheatError(
            f"the results must be a file: {path}: {reason}; make it with flashheat bench ops"
        ) from error
    except ValueError as error:
        raise FlashheatError(f"the results must hold one JSON object a line: {path}: {error}") from error
    if not rows:
        raise FlashheatError(
            f"the results must hold at least one row: {path} is empty; make it with flashheat bench ops"
        )
    for n, row in enumerate(rows, 1):
        bench = row.get("bench") if isinstance(row, dict) else None
        if bench is not None and bench not in NEEDED:
            raise FlashheatError(f"tables are made of bench {', '.join(NEEDED)}: {path}, row {n} is of {bench!r}")
        missing = [name for name in NEEDED[bench] if name not in row] if bench else ["bench"]
        if missing:
            raise FlashheatError(f"a line of results must name its {', '.join(missing)}: {path}, row {n} does not")
    return rows


def keep_row(path: Path, case: Row, found: Row) -> None:
    """Write a row into a file of results at once: it replaces the one of its case, all others stay."""
    row = case | found
    logger.info("%s", ", ".join(f"{name} {value}" for name, value in row.items()))
    rows = [old for old in (read_rows(path) if path.exists() else []) if not _is(old, **case)]
    write_atomically(path, "".join(json.dumps(of) + "\n" for of in [*rows, row]))


def remake(results: str | Path, text: str | Path, picture: str | Path | None = None) -> None:
    """Replace the marked tables of a text by those of the rows; draw the plot first, where one is wanted.

    Raises:
        FlashheatError: the rows, the text or the picture's name do not serve; then the text is as it was.
    """
    rows = read_rows(results)
    changed = insert(_read(Path(text)), rows)
    if picture is not None:
        plot(rows, Path(picture))
    write_atomically(Path(text), changed)


def _read(text: Path) -> str:
    try:
        return text.read_text(encoding="utf-8")
    except OSError as error:
        raise FlashheatError(f"the text must be a file that can be read: {text}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FlashheatError(f"the text must be UTF-8: {text}: {error}; save it as UTF-8") from error


def ratio(rows: Iterable[Row], *, peers: str | None = None, **case: Any) -> float | None:
    """Time of the fastest plain PyTorch over flashheat's, for one case; None where a side is missing.

    Args:
        rows: of any cases.
        peers: the precision of plain PyTorch; left out, that of the case.
        case: what the rows must say; left out, K = C = 128 and one mesh.
    """
    case = {"K": 128, "C": 128, "B": 1} | case
    others = case if peers is None else case | {"precision": peers}
    ours = [row["gpu_us"] for row in rows if row["impl"] == "flashheat" and _is(row, **case)]
    theirs = [row["gpu_us"] for row in rows if row["impl"] in PEERS and _is(row, **others)]
    return min(theirs) / ours[0] if ours and theirs else None


def table(rows: list[Row]) -> str:
    """Markdown: the ratio at each size for K = C = 128, a line for each precision and pass.

    "high" stands there twice, since PyTorch's is far less exact: also beside PyTorch in "highest".
    """
    lines = _head(["precision, pass", *map(_short, SIZES)])
    for precision, peers in (*((p, p) for p in CLASSES), ("high", "highest")):
        beside = "" if peers == precision else f" (PyTorch: {peers})"
        for name, words in PASSES.items():
            found = [ratio(rows, peers=peers, V=V, precision=precision, **{"pass": name}) for V in SIZES]
            lines.append(_line([f"{precision}{beside}, {words}", *["" if r is None else f"{r:.2f}" for r in found]]))
    return "\n".join(lines)


def column_table(rows: list[Row]) -> str:
    """Markdown: the ratio of forward + backward for other K and C; a ratio in brackets is that of cuBLAS's path."""
    sizes = sorted({row["V"] for row in rows if row["B"] == 1 and (row["K"], row["C"]) != (128, 128)})
    lines = _head(["K, C", *[f"{precision} {_short(V)}" for precision in CLASSES for V in sizes]])
    for K, C in sorted({(row["K"], row["C"]) for row in rows} - {(128, 128)}):
        cells = []
        for case in ({"precision": precision, "V": V, "pass": "both"} for precision in CLASSES for V in sizes):
            found = ratio(rows, K=K, C=C, **case)
            paths = [row.get("path") for row in rows if _is(row, K=K, C=C, B=1, impl="flashheat", **case)]
            cells.append("" if found is None else f"({found:.2f})" if paths == ["cuBLAS"] else f"{found:.2f}")
        lines.append(_line([f"{K}, {C}", *cells]))
    return "\n".join(lines)


def ragged_table(rows: list[Row]) -> str:
    """Markdown: GPU time in us of each way to serve a batch of meshes of different sizes."""
    packed = [row for row in rows if row["B"] > 1]
    impls = list(dict.fromkeys(row["impl"] for row in sorted(packed, key=lambda row: row["impl"] != "flashheat")))
    lines = _head(["us, forward", *impls])
    for precision in CLASSES:
        of = {row["impl"]: f"{row['gpu_us']:.0f}" for row in packed if row["precision"] == precision}
        lines.append(_line([precision, *[of.get(impl, "") for impl in impls]]))
    return "\n".join(lines)


def eigenpair_table(rows: list[Row], impl: str = "flashheat") -> str:
    """Markdown: seconds of flashheat and of eigsh on their best number of threads, their ratio, the residuals reached.

    Args:
        rows: of the benchmark of operators.
        impl: "flashheat" on the CPU, or "cuda".
    """
    lines = _head(["mesh", "V", "K", "flashheat, s", "eigsh, s", "ratio", "residual", "of eigsh"])
    for K, V, mesh in sorted({(row["K"], row["V"], row["mesh"]) for row in rows}):
        here = [row for row in rows if _is(row, K=K, V=V, mesh=mesh)]
        ours, theirs = (
            min((row for row in here if row["impl"] == of), key=lambda row: row["seconds"], default=None)
            for of in (impl, "eigsh")
        )
        if ours:
            of_theirs = (
                (f"{theirs['seconds']:.2f}", f"{theirs['seconds'] / ours['seconds']:.1f}") if theirs else ("", "")
            )
            reached = f"{ours['residual']:.0e}", f"{theirs['residual']:.0e}" if theirs else ""
            lines.append(_line([mesh, f"{V:,}", str(K), f"{ours['seconds']:.3g}", *of_theirs, *reached]))
    return "\n".join(lines)


def pipeline_table(rows: list[Row], device: str) -> str:
    """Markdown: what is not eigenpairs alone, a line a row, on "cpu" or "cuda"."""
    rows = [row for row in rows if row["impl"].startswith(device)]
    lines = _head(["what", "V", "on", "seconds", "rate"])
    for row in sorted(rows, key=lambda row: (row["bench"], row["V"], row["impl"], row.get("cache", ""))):
        if row["bench"] == "geometry":
            what, rate = f"L, mass and gradients of {row['mesh']}", ""
        elif row["bench"] == "many":
            what, rate = f"all of {row['meshes']:,} meshes", f"{row['meshes'] / row['seconds']:.0f} a second"
        else:
            what, rate = (
                f"an entry of the store, {row['cache']} cache",
                f"{row['bytes'] / row['seconds'] / 1e9:.2f} GB/s",
            )
        lines.append(_line([what, f"{row['V']:,}", row["impl"], f"{row['seconds']:.3g}", rate]))
    return "\n".join(lines)


TABLES: dict[str, tuple[str, Callable[[list[Row]], str]]] = {  # the mark in a text: the benchmarks, and what makes it
    "figures": ("ops", table),
    "columns": ("ops", column_table),
    "ragged": ("ops", ragged_table),
    "eigenpairs": ("operators", eigenpair_table),
    "eigenpairs-cuda": ("operators", partial(eigenpair_table, impl="cuda")),
    "pipeline-cpu": ("geometry many store", partial(pipeline_table, device="cpu")),
    "pipeline-cuda": ("geometry many store", partial(pipeline_table, device="cuda")),
}


def _has_figures(made: str) -> bool:
    """Whether any line below the head has a digit after its first cell."""
    return any(any(map(str.isdigit, "".join(line.split("|")[2:]))) for line in made.splitlines()[2:])


def insert(text: str, rows: list[Row]) -> str:
    """`text` with what stands between the marks of each of `TABLES` replaced; a table without a row stays as it is.

    Raises:
        FlashheatError: no table has its two marks there, or one has but one of them, or none has a row.
    """
    found, marked = 0, False
    for name, (bench, make) in TABLES.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if begin not in text and end not in text:
            continue
        before, _, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not closed:
            raise FlashheatError(f"the text must have the lines {begin} and {end} in this order: mend them")
        marked, made = True, make([row for row in rows if row["bench"] in bench.split()])
        if _has_figures(made):
            text, found = f"{before}{begin}\n{made}\n{end}{after}", found + 1
    if marked and not found:
        raise FlashheatError(
            "the rows must be those of a table of the text: there is none for any; the text is as it was"
        )
    if not found:
        marks = ", ".join(f"<!-- {name}: begin -->" for name in TABLES)
        raise FlashheatError(f"the text must mark a table by one of {marks} and the end mark: add them")
    return text


def _is(row: Row, **case: Any) -> bool:
    return all(row.get(name) == value for name, value in case.items())


def _head(cells: list[str]) -> list[str]:
    return [_line(cells), "|---" * len(cells) + "|"]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plot(rows: list[Row], path: Path) -> None:
    """Time of the forward pass against V, one panel a precision, with the floor of memory traffic.

    Raises:
        FlashheatError: the file is no SVG or PNG or cannot be written, no row is of the plot, or matplotlib is absent.
    """
    if path.suffix not in (".svg", ".png"):
        raise FlashheatError(f"the plot must be an SVG or PNG file: got {path}; let its name end in .svg or .png")
    rows = [row for row in rows if row["bench"] == "ops" and _is(row, K=128, C=128, B=1, **{"pass": "forward"})]
    if not rows:
        raise FlashheatError("the plot must have rows of bench ops, forward, K = C = 128: there is none; measure them")
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("the plot needs matplotlib, which is absent: pip install matplotlib") from error

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "flashheat"  # the same rows give the same file
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(CLASSES), figsize=(11, 3.6), sharey=True, layout="constrained")
    for panel, precision in zip(panels, CLASSES, strict=True):
        here = [row for row in rows if row["precision"] == precision]
        for impl, style in (("eager", ":"), ("compile", "--"), ("flashheat", "-")):
            line = sorted((row["V"], row["gpu_us"]) for row in here if row["impl"] == impl)
            panel.loglog(*zip(*line, strict=True), style, marker=".", label=impl)
        floor = sorted({(row["V"], row["floor_us"]) for row in here})
        panel.loglog(*zip(*floor, strict=True), color="0.7", label="floor (memory)")
        panel.set(title=precision, xlabel="V, vertices")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("GPU time of the forward pass, us")
    panels[0].legend()
    try:
        figure.savefig(path, metadata={"Date": None})
    except OSError as error:
        raise FlashheatError(f"the plot must be written: {path}: {error.strerror}; choose another place") from error
    finally:
        pyplot.close(figure)


def _short(V: int) -> str:
    return f"{V // 1_000_000}M" if V >= 1_000_000 else f"{V // 1_000}k"
