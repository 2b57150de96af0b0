"""On what, with what and of what a row of results was measured; the same for every benchmark."""

import datetime
import os
import platform
from importlib import metadata, util

import torch


def about(commit: str) -> dict[str, str]:
    """Device, versions, commit and date, to be merged into a row of kernels on a GPU.

    Args:
        commit: the commit that was measured.
    """
    return {"device": torch.cuda.get_device_name(), **_versions("torch", "triton"), **_when(commit)}


def about_gpu(commit: str) -> dict[str, str]:
    """The same for a row of operators on a GPU."""
    return {"device": torch.cuda.get_device_name(), **_versions("torch", "numpy", "scipy"), **_when(commit)}


def about_cpu(commit: str) -> dict[str, str]:
    """The same for a row of operators on the CPU."""
    device = f"{os.cpu_count()} cores, {platform.machine()}"
    return {"device": device, **_versions("numpy", "scipy", "cholespy"), **_when(commit)}


def _versions(*packages: str) -> dict[str, str]:
    """Of those that are installed."""
    return {name: metadata.version(name) for name in packages if util.find_spec(name)}


def _when(commit: str) -> dict[str, str]:
    return {"commit": commit, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
