"""The steps of the guide as modules, for the interpreter's and the GPU's tests alike."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "examples" / "triton_guide"
STEPS = sorted(path.stem for path in FOLDER.glob("step_*.py"))
TOLERANCES = {
    "the article's kernel": 1e-3,
    "tf32": 1e-3,
    "tf32x3": 1e-5,
    "bf16x3": 2e-5,
}  # of variants less exact than float32


def module(name: str) -> ModuleType:
    """A step, or the harness; they import one another as files of one folder."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)
