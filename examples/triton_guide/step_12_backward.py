"""Step 12: the backward pass, which is the forward pass once more.

With g = dJ/dy and w the decay (docs/maths.md derives it):

    u   = w * (evecs^T g)                          the projection of g, without mass, decayed
    d_x = mass * (evecs u)                         the expansion, with mass behind it
    d_times[c] = -sum over k of evals s (evecs^T g)

The forward operator is self-adjoint but for where the mass stands. So the backward pass costs what the forward pass
costs, and needs of the forward pass nothing but s, K x C numbers: x is not kept. Autograd of the five lines keeps
`mass * x`, an array as large as the features.

Look at: the derivatives agree with autograd's. On a GPU also what autograd itself costs: a node that launches nothing.
"""

from typing import Any

import torch
from step_09_split_over_v import by_partial_sums
from step_11_expansion import three_kernels
from torch import Tensor


class Diffuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
        y = three_kernels(x, mass, evals, evecs, times, backwards=True)
        # Our kernel returns s as well; here it is computed again, to keep the step short.
        s = torch.exp(-evals[:, None] * times) * (evecs.T @ (mass[:, None] * x))
        ctx.save_for_backward(mass, evals, evecs, times, s)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        mass, evals, evecs, times, s = ctx.saved_tensors
        d_x = mass[:, None] * three_kernels(g, torch.ones_like(mass), evals, evecs, times, backwards=True)
        d_times = -(evals[:, None] * s * (evecs.T @ g)).sum(0)
        return d_x, None, None, None, d_times


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


def derivatives(run: Any, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> tuple[Tensor, ...]:
    """`d_x` and `d_times` of `sum(y^2) / 2`."""
    x, times = x.detach().requires_grad_(), times.detach().requires_grad_()
    return torch.autograd.grad(run(x, mass, evals, evecs, times).square().sum() / 2, [x, times])


def variants() -> dict:
    """The implementations that this step compares."""
    return {"an autograd node around three kernels": Diffuse.apply, "no node": by_partial_sums}


if __name__ == "__main__":
    from harness import arguments, show
    from step_01_five_lines import five_lines

    show(__file__, variants())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    case = arguments(500, 32, 16, device)
    for name, ours, wanted in zip(
        ("d_x", "d_times"), derivatives(Diffuse.apply, *case), derivatives(five_lines, *case), strict=True
    ):
        print(f"{name}: {float((ours - wanted).norm() / wanted.norm()):.1e} from autograd's")
    if device == "cuda":
        from flashheat.bench.timing import wall_us

        x, times = case[0].requires_grad_(), case[4].requires_grad_()
        wall = wall_us(lambda: torch.autograd.grad(Empty.apply(x, times), [x, times], torch.ones_like(x)))
        print(f"an empty node, forward and backward: {wall:.0f} us of wall time")
