"""Rows of the benchmarks become the README's table and a plot, so that no figure is typed by hand.

It is separate because it needs no GPU: a test holds the README to the rows beside it.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flashheat.errors import FlashheatError
from flashheat.files import write_atomically

SIZES = (1_000, 4_000, 8_000, 16_000, 64_000, 256_000, 1_000_000)
CLASSES = ("highest", "high", "bf16")
PASSES = {"forward": "forward", "both": "forward + backward"}
NEEDED = ("bench", "pass", "V", "K", "C", "B", "precision", "impl", "gpu_us", "floor_us")
PEERS = ("eager", "compile", "max-autotune")
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

Row = dict[str, Any]


def read_rows(path: str | Path) -> list[Row]:
    """The rows of one file of results, one JSON object a line.

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
        missing = [name for name in NEEDED if not isinstance(row, dict) or name not in row]
        if missing:
            raise FlashheatError(f"a line of results must name its {', '.join(missing)}: {path}, row {n} does not")
    return rows


def remake(results: str | Path, text: str | Path, picture: str | Path | None = None) -> None:
    """Replace the marked table of a text by that of the rows; draw the plot first, where one is wanted.

    Raises:
        FlashheatError: the rows, the text or the picture's name do not serve; then the text is as it was.
    """
    rows = read_rows(results)
    try:
        changed = insert(Path(text).read_text(encoding="utf-8"), table(rows))
        if picture is not None:
            plot(rows, picture)
    except (OSError, ValueError) as error:
        raise FlashheatError(
            f"the text must be UTF-8 and the plot an SVG or PNG that can be written: {error}"
        ) from error
    write_atomically(Path(text), changed)


def ratio(rows: Iterable[Row], **case: Any) -> float | None:
    """Time of the fastest plain PyTorch over flashheat's, for one K = C = 128 case; None where a side is missing."""
    of = {
        row["impl"]: row["gpu_us"]
        for row in rows
        if row["K"] == row["C"] == 128 and row["B"] == 1 and all(row[name] == value for name, value in case.items())
    }
    peers = [of[name] for name in PEERS if name in of]
    return min(peers) / of["flashheat"] if peers and "flashheat" in of else None


def table(rows: list[Row]) -> str:
    """Markdown: the ratio at each size, a line for each precision and pass."""
    lines = ["| precision, pass | " + " | ".join(_short(V) for V in SIZES) + " |", "|---" * (len(SIZES) + 1) + "|"]
    for precision in CLASSES:
        for name, words in PASSES.items():
            found = [ratio(rows, V=V, precision=precision, **{"pass": name}) for V in SIZES]
            cells = ["" if value is None else f"{value:.2f}" for value in found]
            lines.append(f"| {precision}, {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def insert(text: str, inner: str) -> str:
    """`text` with what stands between the two marks replaced.

    Raises:
        FlashheatError: the marks are not there, once each and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise FlashheatError(f"the text must have the lines {BEGIN} and {END} around the figures: add them")
    return f"{before}{BEGIN}\n{inner}\n{END}{after}"


def plot(rows: list[Row], path: str | Path) -> None:
    """Time of the forward pass against V, one panel a precision, with the floor of memory traffic."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "flashheat"  # the same rows give the same file
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(CLASSES), figsize=(11, 3.6), sharey=True, layout="constrained")
    for panel, precision in zip(panels, CLASSES, strict=True):
        here = [
            row
            for row in rows
            if row["precision"] == precision and row["pass"] == "forward" and row["K"] == row["C"] == 128
            and row["B"] == 1
        ]  # fmt: skip
        for impl, style in (("eager", ":"), ("compile", "--"), ("flashheat", "-")):
            line = sorted((row["V"], row["gpu_us"]) for row in here if row["impl"] == impl)
            panel.loglog(*zip(*line, strict=True), style, marker=".", label=impl)
        floor = sorted({(row["V"], row["floor_us"]) for row in here})
        panel.loglog(*zip(*floor, strict=True), color="0.7", label="floor (memory)")
        panel.set(title=precision, xlabel="V, vertices")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("GPU time of the forward pass, us")
    panels[0].legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _short(V: int) -> str:
    return f"{V // 1_000_000}M" if V >= 1_000_000 else f"{V // 1_000}k"
