"""Values become a colour scale: colours, the range they cover, and the words beside the colour bar.

It is separate because truth and prediction must share one scale, and because every choice of colour is made here: all
scales keep their order for colour-blind readers and in grey.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

# Indigo to cream in even steps of lightness (OKLab, 0.40 to 0.96): no dark end, so that shading can show the shape.
SEQUENTIAL = ("#43378c", "#2859a3", "#0478a5", "#0394a6", "#06afa4", "#61c59a", "#9dd692", "#d5e593", "#fff2c2")
SIGNED = ("#123f7a", "#3f7fc0", "#a3c8e6", "#f3f1ec", "#f5b983", "#d9702a", "#8a3206")
RIGHT_WRONG = ("#cdd6e0", "#d1440c")
# Okabe and Ito's colours, which colour-blind readers can tell apart; grey in the place of black, which has no shading.
CLASSES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8b9099")
MAX_LEGEND = 3 * len(CLASSES)
PERCENTILES = (1.0, 99.0)

Scale = dict[str, Any]


def field_scale(fields: Sequence[np.ndarray], label: str) -> Scale:
    """One scale for all `fields` together, from their 1st to their 99th percentile."""
    low, high = (float(value) for value in np.percentile(np.concatenate(fields), PERCENTILES))
    if not high > low:
        half = 0.5 * abs(low) or 0.5
        low, high = low - half, high + half
    ends = min(field.min() for field in fields) < low, max(field.max() for field in fields) > high
    return _continuous(SEQUENTIAL, low, high, label, ends)


def error_scale(error: np.ndarray, label: str) -> Scale:
    """A scale with 0 in its middle, to the 99th percentile of |error| on both sides."""
    limit = float(np.percentile(np.abs(error), PERCENTILES[1])) or float(np.abs(error).max()) or 1.0
    return _continuous(SIGNED, -limit, limit, label, (error.min() < -limit, error.max() > limit))


def class_scale(names: Sequence[str], used: np.ndarray) -> Scale:
    """A palette with a legend of the classes in `used`; over 24 classes, a colour bar along their numbers."""
    n = len(names)
    if n > MAX_LEGEND:
        scale = _continuous(
            SEQUENTIAL, 0.0, n - 1.0, f"class number ({n} classes; near numbers have near colours)", (False, False)
        )
        return scale | {"ticks": [names[0], names[n // 2], names[-1]], "names": list(names)}
    colours = [class_colour(index) for index in range(n)]
    legend = [[colours[index], names[index]] for index in used]
    return _discrete(colours, "class", legend) | {"names": list(names)}


def right_wrong_scale(n_right: int, n_wrong: int, what: str) -> Scale:
    """Two colours, with how many vertices or faces each stands for."""
    legend = [[RIGHT_WRONG[0], f"right: {n_right:,} {what}"], [RIGHT_WRONG[1], f"wrong: {n_wrong:,} {what}"]]
    return _discrete(RIGHT_WRONG, "", legend) | {"names": ["right", "wrong"]}


def class_colour(index: int) -> str:
    """The palette, then a lighter, then a darker version of it."""
    base = CLASSES[index % len(CLASSES)]
    other, share = ((0, 0.0), (255, 0.55), (0, 0.5))[index // len(CLASSES) % 3]
    channels = (int(base[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(channel + share * (other - channel)):02x}" for channel in channels)


def readable(name: str) -> str:
    """The name of a measure as people write it: relative_l2 is relative L2."""
    return re.sub(r"\b(l[12]|r2|rmse|mae|mse|iou)\b", lambda found: found[0].upper(), name.replace("_", " ")).replace(
        "IOU", "IoU"
    )


def short(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def _continuous(colours: Sequence[str], low: float, high: float, label: str, beyond: tuple[bool, bool]) -> Scale:
    signs = ("≤ " if beyond[0] else "", "≥ " if beyond[1] else "")
    low_text, middle, high_text = (_tick(value, high - low) for value in (low, (low + high) / 2, high))
    ticks = [signs[0] + low_text, middle, signs[1] + high_text]
    stops = [[index / (len(colours) - 1), colour] for index, colour in enumerate(colours)]
    return {"label": label, "low": low, "high": high, "stops": stops, "ticks": ticks, "legend": []}


def _tick(value: float, span: float) -> str:
    """As many decimals as make a hundredth of the range visible."""
    decimals = max(0, 2 - math.floor(math.log10(span)))
    return f"{value:.{decimals}f}" if decimals <= 6 and abs(value) < 1e9 else short(value)


def _discrete(colours: Sequence[str], label: str, legend: list[list[str]]) -> Scale:
    n = len(colours)
    stops = [[(index + side) / n, colour] for index, colour in enumerate(colours) for side in (0, 1)]
    return {"label": label, "low": -0.5, "high": n - 0.5, "stops": stops, "ticks": [], "legend": legend}
