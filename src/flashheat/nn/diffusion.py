"""Heat diffusion as a layer whose times are learned.

It is separate because the times need care: they must stay positive, and a clamp with zero gradient would freeze them.
"""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from flashheat.errors import FlashheatError, check_count
from flashheat.ops import diffuse, diffuse_with_gradient

if TYPE_CHECKING:
    from flashheat.operators import Operators

MIN_TIME = 1e-8

DiffusionMethod = Literal["spectral", "implicit_dense"]


class LearnedTimeDiffusion(nn.Module):
    """Diffuse every channel for its own learned time.

        spectral:        y = evecs (exp(-evals t) * evecs^T (mass * x))
        implicit_dense:  (M + t L) y = M x

    `forward` uses `max(t, 1e-8)` with the identity as its gradient, so a time that an optimiser step made negative
    can grow again. After each step call `flashheat.nn.project_times_(net)`, which moves the times back to >= 1e-8.

    Args:
        channels: number of channels C, one time each (length^2; they start at 0).
        method: "spectral", or "implicit_dense": one backward Euler step with a dense [V, V] solve for each channel,
            without a basis; for small meshes only.

    Raises:
        FlashheatError: `channels` is not a whole number of at least 1, or there is no such method.
    """

    def __init__(self, channels: int, method: DiffusionMethod = "spectral") -> None:
        super().__init__()
        check_count("channels", channels)
        if method not in ("spectral", "implicit_dense"):
            raise FlashheatError(f'`method` must be "spectral" or "implicit_dense": got {method!r}.')
        self.method = method
        self.diffusion_time = nn.Parameter(torch.zeros(channels))

    def times(self) -> Tensor:
        """`max(diffusion_time, 1e-8)` in value, the identity in gradient."""
        t = self.diffusion_time
        return t.detach().clamp(min=MIN_TIME) + (t - t.detach())

    def forward(self, x: Tensor, operators: "Operators") -> Tensor:
        """`x [V, C]` to `y [V, C]`; packed along V where the operators are."""
        if self.method == "implicit_dense":
            return _implicit_euler(x, operators, self.times())
        o = operators
        return diffuse(x, o.mass, o.evals, o.evecs, self.times(), o.offsets)

    def with_gradient(self, x: Tensor, operators: "Operators") -> tuple[Tensor, Tensor, Tensor]:
        """`(y, y_gradX, y_gradY)`, each `[V, C]`: the diffused features and their tangent gradient."""
        o = operators
        if self.method == "implicit_dense":
            y = self(x, o)
            return y, torch.mm(o.gradX.to_torch(), y), torch.mm(o.gradY.to_torch(), y)
        y, y_gradX, y_gradY = diffuse_with_gradient(
            x, o.mass, o.evals, o.evecs, o.gradX_evecs, o.gradY_evecs, self.times(), o.offsets
        )
        return y, y_gradX, y_gradY


def project_times_(net: nn.Module) -> None:
    """Move every learned time of `net` back to >= 1e-8, in place; call it after each optimiser step."""
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, LearnedTimeDiffusion):
                module.diffusion_time.clamp_(min=MIN_TIME)


def _implicit_euler(x: Tensor, operators: "Operators", times: Tensor) -> Tensor:
    """Solve `(M + t[c] L) y[:, c] = M x[:, c]` by a Cholesky factorisation for each channel.

    A vertex without area has an empty row in M + tL; it gets a unit diagonal, and so y = 0 there.
    """
    mass = operators.mass
    system = operators.L.to_torch().to_dense() * times[:, None, None] + torch.diag(mass + (mass == 0).to(mass.dtype))
    rhs = (mass.unsqueeze(-1) * x).T.unsqueeze(-1)
    return torch.cholesky_solve(rhs, torch.linalg.cholesky(system)).squeeze(-1).T
