"""What a user meets first: the import is light, the public names are there, the README is true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import flashheat

ROOT = Path(__file__).resolve().parents[1]

_IMPORT = """
import time, torch
start = time.process_time()  # of this process alone: another's load does not count
import flashheat
from flashheat import *
import flashheat.nn
print(time.process_time() - start)
import sys
print([m for m in ("scipy", "trimesh", "triton", "rich", "typer", "plotly", "tensorboard") if m in sys.modules])
"""


def _run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_import_costs_under_0_3_s_beyond_torch_and_loads_nothing_heavy():
    runs = [_run(sys.executable, "-c", _IMPORT).splitlines() for _ in range(3)]
    assert min(float(seconds) for seconds, _ in runs) < 0.3
    assert runs[0][1] == "[]"


def test_the_command_line_and_plain_import_do_not_wait_for_torch():
    loaded = _run(sys.executable, "-c", "import flashheat.cli, sys; print('torch' in sys.modules)")
    assert loaded.strip() == "False"


@pytest.mark.parametrize("name", flashheat.__all__)
def test_public_names_are_there_and_documented(name):
    assert getattr(flashheat, name).__doc__


def test_dir_lists_the_public_names():
    script = "import flashheat, sys; print(*dir(flashheat)); assert 'torch' not in sys.modules"
    names = _run(sys.executable, "-c", script).split()
    assert {*flashheat.__all__, "nn", "operators", "ops", "mesh", "__version__"} <= set(names)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = flashheat.no_such_name


def _python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("index", range(len(_python_blocks((ROOT / "README.md").read_text()))))
def test_the_readmes_python_runs(index, tmp_path, monkeypatch):
    from flashheat.mesh import icosphere

    monkeypatch.chdir(tmp_path)
    sphere = icosphere(2)
    lines = [f"v {x} {y} {z}" for x, y, z in sphere.verts] + [f"f {a} {b} {c}" for a, b, c in sphere.faces + 1]
    Path("body.obj").write_text("\n".join(lines))
    exec(compile(_python_blocks((ROOT / "README.md").read_text())[index], f"README block {index}", "exec"), {})


def test_the_readmes_example_is_twelve_lines_at_most():
    first = _python_blocks((ROOT / "README.md").read_text())[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 12


def test_every_command_the_readme_names_exists():
    words = re.findall(r"flashheat ([a-z]+)", (ROOT / "README.md").read_text())
    help_text = _run(sys.executable, "-m", "flashheat", "--help")
    assert words
    assert not [word for word in words if word not in help_text]
