"""Step 14: many meshes of different sizes in one launch.

The meshes lie one after the other, `offsets[b]` to `offsets[b + 1]` are the rows of mesh b, and each has a spectrum of
its own. A loop over the meshes launches kernels for each; padding all to the largest multiplies zeros. Here a program
is given a tile and a *mesh*, and reads where that mesh begins and ends from `offsets`, on the device: the host need not
know the sizes, so nothing waits and the same compiled kernel serves every batch.

Look at: the largest mesh decides how long this takes, since one program has all of it. Our own kernel cuts the rows of
all meshes together into equal chunks, whatever meshes they touch (docs/performance.md: 479 us became 355).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def project_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, offsets_ptr, s_ptr,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2)
    first, stop = tl.load(offsets_ptr + b), tl.load(offsets_ptr + b + 1)
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for start in range(0, stop - first, BLOCK_V):
        v = first + start + tl.arange(0, BLOCK_V)
        basis = tl.load(evecs_ptr + v[:, None] * K + k[None, :], mask=(v[:, None] < stop) & (k[None, :] < K), other=0.0)
        x = tl.load(x_ptr + v[:, None] * C + c[None, :], mask=(v[:, None] < stop) & (c[None, :] < C), other=0.0)
        mass = tl.load(mass_ptr + v, mask=v < stop, other=0.0)
        acc = tl.dot(tl.trans(basis), x * mass[:, None], acc, input_precision="tf32x3")
    evals = tl.load(evals_ptr + b * K + k, mask=k < K, other=0.0)
    times = tl.load(times_ptr + c, mask=c < C, other=0.0)
    s = tl.exp(-evals[:, None] * times[None, :]) * acc
    inside = (k[:, None] < K) & (c[None, :] < C)
    tl.store(s_ptr + b * K * C + k[:, None] * C + c[None, :], s, mask=inside)


def packed(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: Tensor) -> Tensor:
    """The spectra `[B, K, C]` of all meshes; `evals [B, K]`, `offsets [B + 1]`."""
    (_, C), K, B = x.shape, evecs.shape[1], offsets.shape[0] - 1
    s = x.new_empty(B, K, C)
    grid = (triton.cdiv(K, 32), triton.cdiv(C, 32), B)
    project_kernel[grid](x, mass, evals, evecs, times, offsets, s, K, C, BLOCK_V=64, BLOCK_K=32, BLOCK_C=32)
    return s


def one_mesh(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    """A batch of one, for the table; with `torch.matmul` on the way back."""
    offsets = torch.tensor([0, x.shape[0]], device=x.device)
    return evecs @ packed(x, mass, evals[None], evecs, times, offsets)[0]


def variants() -> dict:
    """The implementations that this step compares."""
    return {"a packed batch of one": one_mesh}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
    if torch.cuda.is_available():
        from flashheat.bench.cases import random_case
        from flashheat.bench.timing import gpu_us

        sizes = [500 * (1 + n % 16) for n in range(64)]
        c = random_case(0, 128, 128, sizes=sizes)
        assert c.offsets is not None
        case = (c.x, c.mass, c.evals, c.evecs, c.times, c.offsets)
        print(f"64 meshes of 500 to 8,000 vertices, the way in: {gpu_us(lambda: packed(*case)):.0f} us")
