"""What this installation can do, as facts: versions, extras, devices, and which path each op takes.

It is separate because it asks every other part and is asked by none.
"""

import os
import platform
import sys
from importlib import metadata
from typing import Any

from flashheat import __version__

_PACKAGES = {
    "needed": ("torch", "numpy", "scipy", "safetensors"),
    "flashheat[robust]": ("robust_laplacian", "cholespy"),
    "flashheat[app]": ("typer", "rich", "pooch", "platformdirs", "plotly", "tensorboard"),
}


def facts() -> dict[str, Any]:
    """The installation in nested dicts of strings: "versions" by extra, "machine", and "paths" of the ops."""
    import torch

    versions = {extra: {name: _version(name) for name in names} for extra, names in _PACKAGES.items()}
    return {
        "flashheat": __version__,
        "python": f"{sys.version.split()[0]} on {platform.system()} {platform.machine()}",
        "versions": versions,
        "machine": {
            "cores": str(os.cpu_count()),
            "torch threads": str(torch.get_num_threads()),
            "CUDA device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        },
        "paths": {
            "diffuse, to_basis, from_basis": _path_of_diffuse(),
            "diffuse_with_gradient": "PyTorch reference, on every device",
            "eigenpairs": "CHOLMOD shift-invert" if _version("cholespy") else "SuperLU shift-invert (slower)",
            "non-manifold meshes and point clouds": "robust Laplacian" if _version("robust_laplacian") else "refused",
        },
    }


def _path_of_diffuse() -> str:
    import torch

    if not torch.cuda.is_available():
        return "PyTorch reference (no CUDA device)"
    if _version("triton") is None or torch.cuda.get_device_capability() < (8, 0):
        return "PyTorch reference (the kernel needs triton and compute capability 8.0)"
    return "Triton kernel (K and C to 512, not float64; else PyTorch reference)"


def report(found: dict[str, Any]) -> str:
    """`facts()` as text, with what to do where something is missing."""
    lines = [f"flashheat {found['flashheat']}, Python {found['python']}"]
    for extra, versions in found["versions"].items():
        missing = [name for name, version in versions.items() if version is None]
        present = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        lines.append(f"  {extra}: {present or 'nothing'}")
        if missing:
            lines.append(f'    missing: {", ".join(missing)}; install with: pip install "{extra}"')
    for part in ("machine", "paths"):
        lines += [f"{part}:", *(f"  {name}: {value}" for name, value in found[part].items())]
    return "\n".join(lines)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
