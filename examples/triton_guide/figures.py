"""The rows of `run.py` become the table of docs/kernels.md and its plot, so that no figure is typed by hand.

It is separate because it needs no GPU.
"""

import json
from pathlib import Path
from typing import Any

from flashheat.errors import FlashheatError
from flashheat.files import write_atomically

BEGIN, END = "<!-- guide: begin -->", "<!-- guide: end -->"
FINISHED = "finished"  # in the place of a step's name: what the steps lead to
# The way from the five lines to the finished operator: a line each in the plot.
PATH = {
    ("step_01_five_lines", "eager"): ":",
    ("step_01_five_lines", "torch.compile"): "--",
    ("step_03_naive", "naive fused kernel"): "-",
    ("step_09_split_over_v", "partial sums"): "-",
    ("step_11_expansion", "expansion, last vertex first"): "-",
    ("step_13_one_launch", "one launch, two barriers"): "-",
    (FINISHED, "flashheat.diffuse"): "-",
}

NEEDED = {"step", "variant", "dtype", "V", "K", "gpu_us", "error", "device", "torch", "triton", "date"}

Row = dict[str, Any]


def remake(results: Path, docs: Path) -> None:
    """Draw `kernels.svg` in the folder `docs` and replace what stands between the marks of its `kernels.md`.

    Raises:
        FlashheatError: a file cannot be read, the rows are none of `run.py`, or the text has not its two marks.
    """
    try:
        rows = [json.loads(line) for line in results.read_text().splitlines() if line.strip()]
        text = (docs / "kernels.md").read_text(encoding="utf-8")
    except OSError as error:
        raise FlashheatError(f"the rows and kernels.md must be files: {error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise FlashheatError(f"the results must hold one JSON object a line: {results}: {error}") from error
    if not rows or not all(isinstance(row, dict) and row.keys() >= NEEDED for row in rows):
        raise FlashheatError(
            f"the results must be rows of run.py --out, each with {', '.join(sorted(NEEDED))}: {results}"
        )
    before, begun, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (begun and closed):
        raise FlashheatError(f"the text must have the lines {BEGIN} and {END} in this order: {docs / 'kernels.md'}")
    plot(rows, docs / "kernels.svg")
    picture = "![GPU time of the main steps](kernels.svg)"
    block = f"{BEGIN}\n{about(rows)}\n\n{table(rows)}\n\n{picture}\n{END}"
    write_atomically(docs / "kernels.md", before + block + after)


def about(rows: list[Row]) -> str:
    """On what the rows were measured; several runs are told apart."""
    runs = dict.fromkeys((row["device"], row["torch"], row["triton"], row["date"]) for row in rows)
    words = "; ".join(f"{device}, torch {torch}, triton {triton}, {date}" for device, torch, triton, date in runs)
    return f"GPU time in us, K = C = {rows[0]['K']}: {words}."


def table(rows: list[Row]) -> str:
    """Markdown: a line for each step, variant and dtype, a column for each size, and the largest error."""
    sizes = sorted({row["V"] for row in rows})
    lines = [f"| step | variant | {' | '.join(f'{V // 1000}k' for V in sizes)} | error |"]
    lines.append("|---" * (len(sizes) + 3) + "|")
    for step, variant, dtype in dict.fromkeys((row["step"], row["variant"], row["dtype"]) for row in rows):
        here = [row for row in rows if (row["step"], row["variant"], row["dtype"]) == (step, variant, dtype)]
        us = {row["V"]: f"{row['gpu_us']:.1f}" for row in here}
        name = variant if dtype == "fp32" else f"{variant}, {dtype}"
        cells = [number(step), name, *[us.get(V, "") for V in sizes], f"{max(row['error'] for row in here):.1e}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def number(step: str) -> str:
    """The number in a step's name, or `FINISHED`."""
    return step if step == FINISHED else step.split("_")[1]


def plot(rows: list[Row], path: Path) -> None:
    """GPU time against V of the steps on the way to the finished operator."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "flashheat"  # the same rows give the same file
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for (step, variant), style in PATH.items():
        of = [row for row in rows if (row["step"], row["variant"], row["dtype"]) == (step, variant, "fp32")]
        if of:
            line = sorted((row["V"], row["gpu_us"]) for row in of)
            panel.loglog(*zip(*line, strict=True), style, marker=".", label=f"{number(step)} {variant}")
    panel.set(xlabel="V, vertices", ylabel="GPU time, us")
    panel.grid(alpha=0.3)
    panel.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
