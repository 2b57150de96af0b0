"""Which path an op takes: the Triton kernel where it serves, the reference everywhere else.

It is separate because every op asks the same question, and because nothing here imports triton until a CUDA tensor
that the kernel can serve comes along.
"""

import logging
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

CUBLAS = "cublas"
_log = logging.getLogger("flashheat")
_MAX_COLUMNS = 512
_ONE_BLOCK = 128  # columns of the basis that the kernel keeps on chip at once
_CUBLAS_FROM = 2e10  # V K K C from which cuBLAS beats the kernel on wider bases
_CUBLAS_FROM_BF16 = 5e10  # up to K = 256; beyond, the kernel's backward pass is the slower one from 2e10 on too
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_CUBLAS_DTYPES = (torch.float32, torch.bfloat16)  # a product of fp16 features and small areas would lose the latter


def path_of(evecs: Tensor, features: Tensor, offsets: Tensor | None) -> str | None:
    """What serves `features [V, C]` or `[K, C]` on `evecs [V, K]`; None: the reference.

    "highest", "high": the kernel, with float32 products as torch is set: as exact as float32, or, where torch would
    allow tf32, more exact than that. "cublas": the products of cuBLAS, for wide bases on large meshes, where they are
    faster, and for K or C beyond 512.

    The reference serves the CPU, float64, `torch.compile`, the transforms of `torch.func`, forward-mode derivatives,
    and what is beyond 512 in a packed batch or in fp16.
    """
    if not evecs.is_cuda or torch.compiler.is_compiling() or is_transformed() or not _has_kernel(evecs.device):
        return None
    K, C, rows = evecs.shape[-1], features.shape[-1], evecs.numel() // max(1, evecs.shape[-1])
    if evecs.dtype not in _DTYPES or features.dtype not in _DTYPES or K == 0 or C == 0 or _n_meshes(evecs, offsets) < 1:
        return None
    wide = max(K, C) > _MAX_COLUMNS
    cublas_from = _CUBLAS_FROM_BF16 if evecs.itemsize == 2 and K <= 2 * _ONE_BLOCK else _CUBLAS_FROM
    if wide or (K > _ONE_BLOCK and rows * K * K * C > cublas_from):
        if offsets is None and evecs.dtype == features.dtype in _CUBLAS_DTYPES:
            return CUBLAS
        if wide:
            return None
    return "highest" if _is_highest() else "high"


def is_traced_op(evecs: Tensor, features: Tensor) -> bool:
    """Whether a compiler is to see one library op (`library.py`), which chooses its path when it runs: on a GPU, where
    that may be the kernel. Elsewhere, and under `torch.func` or in forward mode, for which an op of a library has no
    rule, it sees plain PyTorch, which it can fuse with what stands around."""
    return torch.compiler.is_compiling() and _may_take_kernel(evecs, features) and not is_transformed()


def is_transformed() -> bool:
    """Whether `torch.func`, `vmap` or a forward-mode level is at work, which plain PyTorch serves to every order."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def launcher(path: str) -> ModuleType:
    """The module with `forward`, `backward` and `expand` on one path other than the reference."""
    from flashheat.ops import diffuse_cublas, diffuse_triton

    return diffuse_cublas if path == CUBLAS else diffuse_triton


def needs_grad(*tensors: Tensor) -> bool:
    """Whether the call is to be differentiated; an autograd node costs as much as the launch, so others do without."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _n_meshes(evecs: Tensor, offsets: Tensor | None) -> int:
    return evecs.shape[0] if evecs.ndim == 3 else 1 if offsets is None else offsets.shape[0] - 1


def _may_take_kernel(evecs: Tensor, features: Tensor) -> bool:
    return evecs.is_cuda and evecs.dtype in _DTYPES and features.dtype in _DTYPES


def _is_highest() -> bool:
    """Whether torch asks for full float32 in matrix products: the newer setting first, the older where it is unset."""
    setting = getattr(torch.backends.cuda.matmul, "fp32_precision", "none")
    if setting != "none":
        return setting == "ieee"
    return torch.get_float32_matmul_precision() == "highest"


@cache
def _has_kernel(device: torch.device) -> bool:
    if find_spec("triton") is None:
        _log.warning("triton is not installed: flashheat takes the PyTorch path on %s.", device)
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        _log.warning("%s is older than compute capability 8.0: flashheat takes the PyTorch path.", device)
        return False
    return True
