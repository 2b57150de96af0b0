"""What this installation can do, as facts: versions, extras, devices, the path of each op, and whether it computes.

It is separate because it asks every other part and is asked by none.
"""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from flashheat import __version__
from flashheat.errors import FlashheatError
from flashheat.files import check_writable

_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p", "fuse.sshfs")
_PACKAGES = {
    "needed": ("torch", "numpy", "scipy", "safetensors"),
    "flashheat[robust]": ("robust_laplacian", "cholespy"),
    "flashheat[app]": ("typer", "rich", "pooch", "platformdirs", "plotly", "tensorboard"),
}


def facts() -> dict[str, Any]:
    """The installation in nested dicts of strings.

    "versions" by extra, "machine", "triton", "tuned" tiles, "paths" of the ops, and the "self-test" of each device.
    """
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
        "triton": _triton(),
        "tuned": _tuned(),
        "paths": {
            "diffuse, to_basis, from_basis": _path_of_diffuse(),
            "diffuse_with_gradient": "PyTorch reference, on every device",
            "eigenpairs": path_of_eigenpairs(),
            "non-manifold meshes and point clouds": "robust Laplacian" if _version("robust_laplacian") else "refused",
        },
        "self-test": {
            device: self_test(device) for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else []))
        },
    }


def self_test(device: str) -> str:
    """Whether `diffuse` and its derivative are exact where the answer is an integer: "exact", or what was wrong."""
    try:
        return _on_integers(device)
    except Exception as error:  # a kernel that does not compile is what a user comes here with
        return f"WRONG: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _on_integers(device: str) -> str:
    import torch
    from torch import Tensor

    from flashheat.bench.cases import random_case
    from flashheat.ops import diffuse, diffuse_reference

    case = random_case(1001, 33, 17, whole=True, device=device)
    x = case.x.requires_grad_()
    y = diffuse(x, case.mass, case.evals, case.evecs, case.times)
    (d_x,) = torch.autograd.grad(y, x, case.g)
    exact = case.double()
    y_exact = cast(Tensor, diffuse_reference(exact.x, exact.mass, exact.evals, exact.evecs, exact.times))
    (d_x_exact,) = torch.autograd.grad(y_exact, exact.x, exact.g)
    wrong = [
        f"{name} is off by up to {(got.double() - expected).abs().max():g}"
        for name, got, expected in (("diffuse", y, y_exact), ("its derivative", d_x, d_x_exact))
        if not torch.equal(got.double(), expected)
    ]
    return f"WRONG: {', '.join(wrong)}" if wrong else "exact (diffuse and its derivative, on integers)"


def _triton() -> dict[str, str]:
    """Triton's version, its assembler, and where compiled kernels are kept."""
    version = _version("triton")
    if version is None:
        return {"version": "none; the kernels need it, plain PyTorch serves without"}
    from triton import knobs

    return {
        "version": version,
        "ptxas": knobs.nvidia.ptxas.version,
        "cache": describe_cache(Path(knobs.cache.dir), Path("/proc/self/mountinfo")),
    }


def _tuned() -> dict[str, str]:
    """The shapes that `flashheat tune` found a faster tile for, on the device at hand."""
    import torch

    from flashheat.ops import tuned

    if not torch.cuda.is_available():
        return {"shapes": "none (no CUDA device)"}
    device = torch.cuda.get_device_name()
    found = {
        f"{t.precision}, V {t.V}, K {t.K}, C {t.C}": f"{t.us:.1f} us instead of {t.table_us:.1f}"
        for t in tuned.load(device)
    }
    return found | {"file": str(tuned.file_of(device))} if found else {"shapes": "none; flashheat tune finds them"}


def describe_cache(folder: Path, mounts: Path) -> str:
    """The folder, with a warning where it cannot be written, or where `mounts` (a table as Linux keeps it) says that it
    lies on a network."""
    where = folder.absolute()
    try:
        check_writable(next(there for there in (where, *where.parents) if os.path.exists(there)))
    except FlashheatError as error:
        return f"{folder}, where no kernel can be kept: {error}, by TRITON_CACHE_DIR"
    if not mounts.exists():
        return str(folder)
    kinds = {}
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        kinds[Path(before.split()[4].replace("\\040", " "))] = after.split()[0]
    kind = kinds.get(next(parent for parent in (where, *where.parents) if parent in kinds or parent == parent.parent))
    if kind is None or not kind.startswith(_NETWORK):
        return str(folder)
    return (
        f"{folder}, on a network ({kind}): slow, and unsafe for many processes; set TRITON_CACHE_DIR to a local folder"
    )


def _path_of_diffuse() -> str:
    import torch

    if not torch.cuda.is_available():
        return "PyTorch reference (no CUDA device)"
    if _version("triton") is None or torch.cuda.get_device_capability() < (8, 0):
        return "PyTorch reference (the kernel needs triton and compute capability 8.0)"
    return "Triton kernel; cuBLAS for wide bases on large meshes and K or C > 512; float64: reference"


def path_of_eigenpairs() -> str:
    """What finds the eigenpairs, on each device that is here."""
    import torch

    on_cpu = "CHOLMOD shift-invert" if _version("cholespy") else "SuperLU shift-invert (slower)"
    if not torch.cuda.is_available():
        return on_cpu
    return f'{on_cpu}; on the GPU, with device="cuda": subspace-multifrontal, in PyTorch'


def report(found: dict[str, Any]) -> str:
    """`facts()` as text, with what to do where something is missing."""
    lines = [f"flashheat {found['flashheat']}, Python {found['python']}"]
    for extra, versions in found["versions"].items():
        missing = [name for name, version in versions.items() if version is None]
        present = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        lines.append(f"  {extra}: {present or 'nothing'}")
        if missing:
            lines.append(f'    missing: {", ".join(missing)}; install with: pip install "{extra}"')
    for part in ("machine", "triton", "tuned", "paths", "self-test"):
        lines += [f"{part}:", *(f"  {name}: {value}" for name, value in found[part].items())]
    return "\n".join(lines)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
