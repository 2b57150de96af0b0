"""Step 14: many meshes of different sizes in one launch.

The meshes lie one after the other, `offsets[b]` to `offsets[b + 1]` are the rows of mesh b, and each has a spectrum of
its own. A loop over the meshes launches kernels for each; padding all to the largest multiplies zeros. Here a program
is given a tile and a *mesh*, and reads where that mesh begins and ends from `offsets`, on the device: the host need not
know the sizes, so nothing waits and the same compiled kernel serves every batch.

Look at: on a GPU sixteen meshes of very different sizes, V vertices in all, on their way to the spectrum: packed, and
in a loop of PyTorch. The replayed CUDA graph hides what the loop costs the host, which comes on top.
Expected: packed wins by far where meshes are small. Where they are large, the largest decides how long it takes, since
one program has all of it: our own kernel cuts the rows of all meshes together into equal chunks, whatever meshes they
touch (docs/performance.md: 479 us became 355).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def project_kernel(
    x_ptr, mass_ptr, evals_ptr, evecs_ptr, times_ptr, offsets_ptr, s_ptr,
    K: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The spectrum of one mesh, one tile K x C a program, all the mesh's vertices in its loop."""
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


def in_a_loop(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The same by PyTorch, mesh by mesh; the host has to know the sizes."""
    meshes = zip(x.split(sizes), mass.split(sizes), evals, evecs.split(sizes), strict=True)
    return torch.stack([torch.exp(-e[:, None] * times) * (b.T @ (m[:, None] * f)) for f, m, e, b in meshes])


@dataclass(frozen=True)
class Batched:
    """Called, it diffuses one mesh, with PyTorch on the way back; the harness times the way in of sixteen."""

    by_offsets: bool

    def spectra(self, case: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Callable[[], Tensor]:
        x, mass, evals, evecs, times = case
        case = x, mass, evals.expand(len(sizes), -1).contiguous(), evecs, times
        if self.by_offsets:
            return partial(packed, *case, torch.tensor([0, *sizes], device=x.device).cumsum(0))
        return partial(in_a_loop, *case, sizes)

    def __call__(self, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
        return evecs @ self.spectra((x, mass, evals, evecs, times), (x.shape[0],))()[0]

    def prepare(self, *case: Tensor) -> Callable[[], Tensor]:
        V = case[0].shape[0]
        ends = [V * n * (n + 1) // (16 * 17) for n in range(17)]  # sizes as 1 : 2 : ... : 16
        return self.spectra(case, tuple(stop - start for start, stop in pairwise(ends)))


def variants() -> dict:
    """The implementations that this step compares."""
    return {"a loop over the meshes": Batched(by_offsets=False), "packed by offsets": Batched(by_offsets=True)}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants())
