"""Fixtures shared by all tests: the real data beside the checkout, and one thread where results must repeat bitwise."""

import os
from pathlib import Path

import pytest


def shared_data_folder() -> Path:
    """The folder with real meshes and golden files: FLASHHEAT_DATA, or ../shared/data beside the checkout."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("FLASHHEAT_DATA", default))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = shared_data_folder()
    if not folder.is_dir():
        pytest.skip(f"real data not found: put it at {folder} or set FLASHHEAT_DATA")
    return folder
