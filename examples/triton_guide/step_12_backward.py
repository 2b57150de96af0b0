"""Step 12: the backward pass, which is the forward pass once more.

With g = dJ/dy, w the decay and s the spectrum of the forward pass (docs/maths.md derives it):

    g_hat = evecs^T g                              the projection of g, without mass
    u     = w * g_hat                              the same decay
    d_x   = mass * (evecs u)                       the expansion, with the mass behind it
    d_times[c] = -sum over k of evals[k] s[k,c] g_hat[k,c]

The operator is its own adjoint but for where the mass stands, so the kernels of steps 9 and 11 serve both ways; new is
the finish, which gives the terms of `d_times` beside `u`. What has to be kept of the forward pass is s, K x C numbers:
64 KB where x has 32 MB. The second variant keeps x instead and computes s again: one projection more, and x must live.

Look at: the derivatives beside autograd's; `kept_bytes`, what each way keeps beyond its arguments; and on a GPU the
wall time of a node that launches nothing. The table's times are forward + backward.
Expected: saving s wins at every size. For small meshes autograd itself takes much of the wall time
(docs/performance.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from step_01_five_lines import five_lines
from step_09_split_over_v import project
from step_10_decay_in_the_finish import finish
from step_11_expansion import expand
from torch import Tensor


@triton.jit
def finish_backward_kernel(
    parts_ptr, evals_ptr, times_ptr, s_ptr, u_ptr, terms_ptr, n_parts,
    K: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PARTS_A_STEP: tl.constexpr,
):  # fmt: skip
    """`u = exp(-evals times) * g_hat` and the terms `evals s g_hat` of `d_times`, for `BLOCK` entries of K x C."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < K * C
    evals = tl.load(evals_ptr + at // C, mask=inside, other=0.0)
    times = tl.load(times_ptr + at % C, mask=inside, other=0.0)
    s = tl.load(s_ptr + at, mask=inside, other=0.0)
    sums = tl.zeros((PARTS_A_STEP, BLOCK), tl.float32)
    for first in range(0, n_parts, PARTS_A_STEP):
        part = first + tl.arange(0, PARTS_A_STEP)
        mask = (part[:, None] < n_parts) & inside[None, :]
        sums += tl.load(parts_ptr + part[:, None] * (K * C) + at[None, :], mask=mask, other=0.0)
    g_hat = tl.sum(sums, 0)
    tl.store(u_ptr + at, tl.exp(-evals * times) * g_hat, mask=inside)
    tl.store(terms_ptr + at, evals * s * g_hat, mask=inside)


def adjoint(
    g: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, s: Tensor
) -> tuple[Tensor, None, None, None, Tensor]:
    """The derivatives by the five arguments of `diffuse`; `d_mass`, `d_evals` and `d_evecs` are left out here."""
    parts = project(g.contiguous(), None, evecs)
    n_parts, K, C = parts.shape
    u, terms = torch.empty_like(s), torch.empty_like(s)
    grid = (triton.cdiv(K * C, 128),)
    finish_backward_kernel[grid](parts, evals, times, s, u, terms, n_parts, K, C, BLOCK=128, PARTS_A_STEP=8)
    return expand(evecs, u, scale=mass), None, None, None, -terms.sum(0)


class Diffuse(torch.autograd.Function):
    """Keeps the spectrum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
        s = finish(project(x, mass, evecs), evals, times)
        ctx.save_for_backward(mass, evals, evecs, times, s)
        return expand(evecs, s)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return adjoint(g, *ctx.saved_tensors)


class DiffuseAgain(torch.autograd.Function):
    """Keeps the features, and computes the spectrum again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
        ctx.save_for_backward(x, mass, evals, evecs, times)
        return expand(evecs, finish(project(x, mass, evecs), evals, times))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, mass, evals, evecs, times = ctx.saved_tensors
        return adjoint(g, mass, evals, evecs, times, finish(project(x, mass, evecs), evals, times))


class Empty(torch.autograd.Function):
    """A node that launches nothing, to see what autograd itself costs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: Tensor) -> Tensor:
        ctx.save_for_backward(times)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        (times,) = ctx.saved_tensors
        return torch.empty_like(g), torch.empty_like(times)


Run = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def derivatives(run: Run, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> tuple[Tensor, ...]:
    """`d_x` and `d_times` of `sum(y^2) / 2`."""
    x, times = x.detach().requires_grad_(), times.detach().requires_grad_()
    y = run(x, mass, evals, evecs, times)
    return torch.autograd.grad(y, [x, times], y.detach())


def kept_bytes(run: Run, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> dict[str, int]:
    """Bytes that the graph of `run` keeps for the backward pass: arguments it needs, and arrays of its own."""
    x, times = x.detach().requires_grad_(), times.detach().requires_grad_()
    arguments = {t.untyped_storage().data_ptr() for t in (x, mass, evals, evecs, times)}
    kept: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        y = run(x, mass, evals, evecs, times)
    del y
    of_arguments = sum(n for pointer, n in kept.items() if pointer in arguments)
    return {"arguments": of_arguments, "own": sum(kept.values()) - of_arguments}


@dataclass(frozen=True)
class BothWays:
    """Called, it diffuses; the harness times it forward + backward."""

    run: Run

    def __call__(self, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
        return self.run(x, mass, evals, evecs, times)

    def prepare(self, *case: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: derivatives(self.run, *case)


def variants() -> dict:
    """The implementations that this step compares."""
    runs = {"autograd of the five lines": five_lines, "s is kept": Diffuse.apply, "x is kept": DiffuseAgain.apply}
    return {name: BothWays(run) for name, run in runs.items()}


if __name__ == "__main__":
    from harness import arguments, relative, show

    show(__file__, variants())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    case = arguments(200, 32, 16, device)
    exact = derivatives(five_lines, *[t.double() for t in case])
    for name, run in variants().items():
        errors = [relative(ours, wanted) for ours, wanted in zip(derivatives(run, *case), exact, strict=True)]
        print(f"{name}: error of d_x {errors[0]:.1e}, of d_times {errors[1]:.1e}; keeps {kept_bytes(run, *case)} bytes")
    if device == "cuda":
        from flashheat.bench.timing import wall_us

        x, times = case[0].requires_grad_(), case[4].requires_grad_()
        wall = wall_us(lambda: torch.autograd.grad(Empty.apply(x, times), [x, times], torch.ones_like(x)))
        print(f"an empty node, forward and backward: {wall:.0f} us of wall time")
