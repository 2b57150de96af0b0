"""Step 2: the kernel of the article that fused this layer first, completed word by word.

The article prints the forward kernel in part. What had to be added or kept to run it as it stands is marked GAP below:

1. the program ids are swizzled, and the swizzled ids are then never used;
2. block sizes, the group of the swizzle and the offsets are used but defined nowhere;
3. the accumulator is cast to the dtype of the features *before* the decay: every coefficient is rounded, and the
   product with the decay is rounded once more;
4. the backward pass is left out, so the layer cannot learn its times.

Look at: the error in fp16 and bf16, which `decay_after_cast` shows in plain PyTorch. One program owns a K x C tile and
walks over all vertices, so K = C = 128 keeps 16 programs busy, of the 132 multiprocessors of an H200. In float32 its
products are tf32, Triton's default: nobody asked for that either (step 8).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def project_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, s_ptr, V, K, C,
    BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """`s = exp(-evals times) * (evecs^T (mass * x))`, one tile K x C a program."""
    pid = tl.program_id(0)
    n_k, n_c = tl.cdiv(K, BLOCK_K), tl.cdiv(C, BLOCK_C)
    first = pid // (GROUP * n_c) * GROUP
    rows = tl.minimum(n_k - first, GROUP)
    pid_k = first + pid % (GROUP * n_c) % rows
    pid_c = pid % (GROUP * n_c) // rows  # GAP 1: the article goes on with pid // n_c and pid % n_c
    offs_k = pid_k * BLOCK_K + tl.arange(0, BLOCK_K)
    offs_c = pid_c * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for start in range(0, V, BLOCK_V):
        offs_v = start + tl.arange(0, BLOCK_V)  # GAP 2: the offsets
        in_v = offs_v < V
        at_basis = evecs_ptr + offs_v[None, :] * K + offs_k[:, None]
        basis = tl.load(at_basis, mask=in_v[None, :] & (offs_k[:, None] < K), other=0.0)
        at_x = x_ptr + offs_v[:, None] * C + offs_c[None, :]
        x = tl.load(at_x, mask=in_v[:, None] & (offs_c[None, :] < C), other=0.0)
        mass = tl.load(mass_ptr + offs_v, mask=in_v, other=0.0)
        acc = tl.dot(basis, (x * mass[:, None]).to(basis.dtype), acc)
    evals = tl.load(evals_ptr + offs_k, mask=offs_k < K, other=0.0)
    times = tl.load(times_ptr + offs_c, mask=offs_c < C, other=0.0)
    cast = acc.to(x_ptr.dtype.element_ty)  # GAP 3: the decay should come first, in float32
    s = (tl.exp(-evals[:, None] * times[None, :]) * cast).to(x_ptr.dtype.element_ty)
    tl.store(s_ptr + offs_k[:, None] * C + offs_c[None, :], s, mask=(offs_k[:, None] < K) & (offs_c[None, :] < C))


def article(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    (V, C), K = x.shape, evecs.shape[1]
    s = x.new_empty(K, C)
    grid = (triton.cdiv(K, 32) * triton.cdiv(C, 32),)
    # GAP 2: the constants
    project_kernel[grid](x, mass, evals, evecs, times, s, V, K, C, BLOCK_V=64, BLOCK_K=32, BLOCK_C=32, GROUP=8)
    return evecs @ s  # GAP 4: a kernel's result has no history, so autograd sees no way from here to x and times


def decay_after_cast(x_hat: Tensor, evals: Tensor, times: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """Error of `s` against float64, rounded before the decay (as the article does) and after it (as it should be)."""
    decay = torch.exp(-evals[:, None] * times)
    exact = decay.double() * x_hat.double()
    early = (decay * x_hat.to(dtype).float()).to(dtype).double()  # rounded twice
    late = (decay * x_hat).to(dtype).double()  # rounded once
    return float((early - exact).norm() / exact.norm()), float((late - exact).norm() / exact.norm())


def variants() -> dict:
    """The implementations that this step compares."""
    from step_01_five_lines import five_lines

    return {"five lines, eager": five_lines, "the article's kernel": article}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
    for dtype in (torch.float16, torch.bfloat16):
        torch.manual_seed(0)
        early, late = decay_after_cast(torch.randn(128, 128), torch.rand(128) * 7, torch.rand(128), dtype)
        print(f"{dtype}: decay after the cast {early:.1e}, before it {late:.1e}")
