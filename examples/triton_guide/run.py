"""Run every step on a GPU, and turn what was measured into the guide's table and plot.

python examples/triton_guide/run.py --out guide.jsonl        # a JSON object for each step, variant and size
python examples/triton_guide/run.py --figures guide.jsonl    # into docs/kernels.md and docs/kernels.svg
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from figures import FINISHED, remake
from harness import Variant, rows

from flashheat import diffuse
from flashheat.bench.about import about
from flashheat.bench.timing import require_cuda
from flashheat.errors import FlashheatError
from flashheat.files import write_atomically

FOLDER = Path(__file__).parent
DOCS = FOLDER.parents[1] / "docs"


def measure(commit: str) -> list[dict[str, Any]]:
    """The rows of all steps, in order, then of `flashheat.diffuse`."""
    found: list[dict[str, Any]] = []
    for step, variants, dtypes in (*steps(), (FINISHED, {"flashheat.diffuse": diffuse}, (torch.float32,))):
        of_step = [{"bench": "guide", **row, **about(commit)} for row in rows(step, variants, dtypes)]
        print(f"{step}: {len(of_step)} rows", flush=True)
        found += of_step
    return found


def steps() -> Iterator[tuple[str, dict[str, Variant], Sequence[torch.dtype]]]:
    """Name, variants and dtypes of each step; one whose point is another dtype names its `DTYPES`."""
    for path in sorted(FOLDER.glob("step_*.py")):
        step = importlib.import_module(path.stem)
        yield path.stem, step.variants(), getattr(step, "DTYPES", (torch.float32,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="measure, and write the rows here")
    what.add_argument("--figures", type=Path, help="make table and plot of the rows in this file")
    parser.add_argument("--commit", default="", help="the commit that is measured, for the rows")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the folder of kernels.md (default: %(default)s)")
    given = parser.parse_args()
    try:
        if given.figures is not None:
            remake(given.figures, given.docs)
            return
        require_cuda("the guide's table")
        write_atomically(given.out, "".join(json.dumps(row) + "\n" for row in measure(given.commit)))
    except FlashheatError as error:
        sys.exit(f"run.py: {error}")


if __name__ == "__main__":
    main()
