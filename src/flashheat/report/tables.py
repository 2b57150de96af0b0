"""Metrics become a table with the net beside its baselines, a verdict in words, and what each metric means.

It is separate because it must know, for each metric, whether lower or higher is better.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping

from flashheat.report.colours import readable, short

Metrics = Mapping[str, Mapping[str, float]]

# A fragment of the metric's name, whether higher is better, and what it is. The first that fits is taken.
MEANING = (
    ("iou", True, "overlap of predicted and true regions over their union, the mean over classes; 1 is perfect"),
    ("accuracy", True, "share of right labels; 1 is perfect"),
    ("r2", True, "share of the target's variance that the prediction explains; 1 is perfect"),
    ("f1", True, "balance of missed and false labels; 1 is perfect"),
    ("relative l2", False, "size of the error over the size of the target; 0 is perfect, 1 is as bad as answering 0"),
    ("rmse", False, "root of the mean squared error, in the target's unit"),
    ("mae", False, "mean size of the error, in the target's unit"),
    ("mean absolute", False, "mean size of the error, in the target's unit"),
    ("max", False, "the largest error, in the target's unit"),
    ("loss", False, "what the training makes small"),
)


def metrics_table(metrics: Metrics) -> str:
    """An HTML table: a row for the net, one for each baseline, and the net relative to the best of them."""
    names = list(dict.fromkeys(name for row in metrics.values() for name in row))
    head = "".join(f'<th scope="col">{_text(name)}<small>{direction(name)} is better</small></th>' for name in names)
    rows = [_row(row_name, metrics, names, index == 0) for index, row_name in enumerate(metrics)]
    if len(metrics) > 1:
        cells = "".join(f"<td>{_relative(name, metrics)}</td>" for name in names)
        rows.append(f'<tr class="relative"><th scope="row">Net relative to the best baseline</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">On the same meshes</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{_meanings(names)}"
    )


def verdict(metrics: Metrics) -> str:
    """The first metric in one sentence, or nothing where there is no baseline to compare with."""
    model = next(iter(metrics.values()), {})
    name = next(iter(model), None)
    best = _best_baseline(name, metrics) if name else None
    if name is None or best is None:
        return ""
    return (
        f"In {_text(name)} ({direction(name)} is better) the net reaches {short(model[name])}, and the best baseline, "
        f"“{_text(best)}”, {short(metrics[best][name])}."
    )


def higher_is_better(name: str) -> bool:
    """Whether a metric of this name is better when it is higher."""
    return _meaning(name)[0]


def direction(name: str) -> str:
    """Which way a metric of this name gets better: "higher" or "lower"."""
    return "higher" if higher_is_better(name) else "lower"


def _meaning(name: str) -> tuple[bool, str]:
    plain = name.replace("_", " ").lower()
    return next(((higher, text) for fragment, higher, text in MEANING if fragment in plain), (False, ""))


def _best_baseline(name: str, metrics: Metrics) -> str | None:
    known = {
        row: values[name] for row, values in list(metrics.items())[1:] if math.isfinite(values.get(name, math.nan))
    }
    if not known:
        return None
    return (max if higher_is_better(name) else min)(known, key=lambda row: known[row])


def _relative(name: str, metrics: Metrics) -> str:
    value = next(iter(metrics.values())).get(name, math.nan)
    best = _best_baseline(name, metrics)
    if best is None or not math.isfinite(value):
        return "–"
    baseline = metrics[best][name]
    if value == baseline:
        return "the same"
    better = (value > baseline) == higher_is_better(name)
    word = "better" if better else "worse"
    ratio = f"{value / baseline:.2f} ×" if baseline > 0 else word
    return f'<b class="{word}">{ratio}</b><small>{word} than “{_text(best)}”</small>'


def _row(row_name: str, metrics: Metrics, names: list[str], is_model: bool) -> str:
    cells = "".join(_cell(metrics[row_name].get(name, math.nan), name, metrics) for name in names)
    return f'<tr{" class=model" if is_model else ""}><th scope="row">{_text(row_name)}</th>{cells}</tr>'


def _cell(value: float, name: str, metrics: Metrics) -> str:
    """The value, and a bar that compares it with the rest of its column."""
    if not math.isfinite(value):
        return "<td>–</td>"
    column = [values.get(name, math.nan) for values in metrics.values()]
    largest = max(other for other in column if math.isfinite(other))
    share = 100 * value / largest if value > 0 else 0
    return f'<td>{short(value)}<i style="width:{share:.1f}%"></i></td>'


def _meanings(names: list[str]) -> str:
    lines = [f"<dt>{_text(name)}</dt><dd>{_meaning(name)[1]}.</dd>" for name in names if _meaning(name)[1]]
    return f"<dl>{''.join(lines)}</dl>" if lines else ""


def _text(name: str) -> str:
    return html.escape(readable(name))
