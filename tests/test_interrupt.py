"""Ctrl-C sent to a real process: one line and exit status 130 whenever it comes, never a traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from flashheat.mesh import icosphere
from tests.test_data_folder import write_off

COMMAND = """
import sys
from flashheat.__main__ import main
class Door:  # `main` imports this first: before that, Ctrl-C is the interpreter's and would be no word of ours
    def find_spec(self, name, *_):
        if name == "flashheat.interrupt":
            print("at the door", flush=True)
sys.meta_path.insert(0, Door())
main()
"""

IMPORT = """
from flashheat import interrupt
interrupt.end_at_once_on_ctrl_c()
interrupt.raise_on_ctrl_c()
import sys, time
print("at the door", flush=True)
try:
    import swallows
    time.sleep(20)
except KeyboardInterrupt:
    print("raised when the import was", sys.modules["swallows"].DONE)
"""

SWALLOWS = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    DONE = "whole"
except KeyboardInterrupt:
    DONE = "swallowed"
"""


def start(code: str, *words: object, folder: Path) -> subprocess.Popen:
    """A process that has run the first lines of `code`; it heeds SIGINT even where these tests' own do not."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "at the door\n"
    return process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two meshes with a field each; a command that trains on them or checks them is not done within minutes."""
    folder = tmp_path_factory.mktemp("meshes")
    for name in "ab":
        write_off(folder / f"{name}.off", icosphere(2).verts, icosphere(2).faces)
        np.save(folder / f"{name}.npy", icosphere(2).verts[:, 0])
    return folder


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05, 0.1, 0.15, 0.3, 0.6, 1.0, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("command", ["check", "train"])
def test_ctrl_c_is_one_line_whenever_it_comes(folder: Path, tmp_path: Path, command: str, seconds: float) -> None:
    train = ["train", "pressure", "--data-root", folder, "--k-eig", 8, "--epochs", 10**6, "--store", tmp_path / "store"]
    words = train if command == "train" else ["check", *[folder / "a.off"] * 20_000]
    process = start(COMMAND, *words, folder=tmp_path)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.count("interrupted") == 1, err
    assert err.splitlines()[-1].startswith("flashheat: interrupted"), err
    assert not any(word in err for word in ("Traceback", "Exception", "Error")), err


def test_ctrl_c_amid_an_import_waits_for_its_end(tmp_path: Path) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    out, err = start(IMPORT, folder=tmp_path).communicate(timeout=60)
    assert (out, err) == ("raised when the import was whole\n", "")


def test_a_process_that_was_started_to_ignore_ctrl_c_still_does(tmp_path: Path) -> None:
    code = f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{COMMAND}"
    process = start(code, "check", "absent.off", folder=tmp_path)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "absent.off" in err
