"""The steps of the guide as modules, for tests that run in processes of their own and for the rest."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "examples" / "triton_guide"
STEPS = sorted(path.stem for path in FOLDER.glob("step_*.py"))


def module(name: str) -> ModuleType:
    """A step, or the harness; they import one another as files of one folder."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)
