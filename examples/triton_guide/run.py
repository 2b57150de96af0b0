"""Run every step on the GPU and write a JSON object for each step, variant and size.

python examples/triton_guide/run.py guide.jsonl
"""

import importlib
import json
import sys
from pathlib import Path

import torch
from harness import rows

from flashheat.bench.about import about
from flashheat.bench.timing import require_cuda
from flashheat.files import write_atomically


def main(out: str) -> None:
    """Measure all steps, in order."""
    require_cuda("the guide's table")
    torch.set_float32_matmul_precision("highest")
    found = []
    for path in sorted(Path(__file__).parent.glob("step_*.py")):
        step = importlib.import_module(path.stem)
        found += [
            {"bench": "guide", "K": 128, "C": 128, **row, **about("")} for row in rows(path.stem, step.variants())
        ]
        print(f"{path.stem}: {sum(row['step'] == path.stem for row in found)} rows", flush=True)
    write_atomically(Path(out), "".join(json.dumps(row) + "\n" for row in found))


if __name__ == "__main__":
    main(sys.argv[1])
