"""Which path an op takes: the Triton kernel where it serves, the reference everywhere else.

It is separate because every op asks the same question, and because nothing here imports triton until a CUDA tensor
that the kernel can serve comes along.
"""

import logging
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

_log = logging.getLogger("flashheat")
_MAX_COLUMNS = 512
_ONE_BLOCK = 128  # columns of the basis that the kernel keeps on chip at once
# V K C from which cuBLAS beats the kernel on bases of more than one block (benchmarks/results/h200/ops.jsonl)
_CUBLAS_FROM_SINGLE = 3e8
_CUBLAS_FROM_HALF = 2e9
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def kernel_precision(evecs: Tensor, features: Tensor, offsets: Tensor | None) -> str | None:
    """The precision class in which the kernel serves `features [V, C]` or `[K, C]` on `evecs [V, K]`; None: reference.

    The reference serves the CPU, float64, K or C beyond 512, large single meshes with K beyond 128 (there cuBLAS is
    faster), `torch.compile`, the transforms of `torch.func` and forward-mode derivatives.
    Float32 products follow torch: "highest" is as exact as float32; "high" serves where torch would allow tf32, and
    is more exact.
    """
    if not evecs.is_cuda or torch.compiler.is_compiling() or _is_transformed() or not _has_kernel(evecs.device):
        return None
    if evecs.dtype not in _DTYPES or features.dtype not in _DTYPES or not _serves_shape(evecs, features, offsets):
        return None
    return "highest" if _is_highest() else "high"


def needs_grad(*tensors: Tensor) -> bool:
    """Whether the call is to be differentiated; an autograd node costs as much as the launch, so others do without."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _serves_shape(evecs: Tensor, features: Tensor, offsets: Tensor | None) -> bool:
    K, C = evecs.shape[-1], features.shape[-1]
    single = evecs.dtype is features.dtype is torch.float32
    cublas_from = _CUBLAS_FROM_SINGLE if single else _CUBLAS_FROM_HALF
    if offsets is None and K > _ONE_BLOCK and evecs.numel() * C > cublas_from:
        return False
    n_meshes = evecs.shape[0] if evecs.ndim == 3 else 1 if offsets is None else offsets.shape[0] - 1
    return n_meshes > 0 and 0 < K <= _MAX_COLUMNS and 0 < C <= _MAX_COLUMNS


def _is_transformed() -> bool:
    """Whether `torch.func`, `vmap` or a forward-mode level is at work, which plain PyTorch serves to every order."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


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
