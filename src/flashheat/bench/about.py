"""On what, with what and of what a row of results was measured; the same for every benchmark."""

import datetime
import os
import platform
from importlib import metadata, util

import torch


def about(commit: str) -> dict[str, str]:
    """Device, versions, commit and date, to be merged into a row measured on a GPU.

    Args:
        commit: the commit that was measured.
    """
    versions = {"torch": torch.__version__, "triton": metadata.version("triton")}
    return {"device": torch.cuda.get_device_name(), **versions, **_when(commit)}


def about_cpu(commit: str) -> dict[str, str]:
    """The same for a row measured on the CPU; a package that is not installed has no version."""
    packages = [name for name in ("numpy", "scipy", "cholespy") if util.find_spec(name)]
    versions = {name: metadata.version(name) for name in packages}
    return {"device": f"{os.cpu_count()} cores, {platform.machine()}", **versions, **_when(commit)}


def _when(commit: str) -> dict[str, str]:
    return {"commit": commit, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
