"""Features from tangent gradients that do not depend on the choice of the tangent frames.

It is separate because two incompatible variants of it are in use; the choice is named here and nowhere else.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from flashheat.errors import FlashheatError, check_count

GradientVariant = Literal["diffusion_net", "ulrssm"]


class SpatialGradientFeatures(nn.Module):
    """Learned dot products of the channels' tangent gradients.

        with rotations:   r = A_re gX - A_im gY,   i = A_re gY + A_im gX
        without:          r = A gX,                i = A gY
        out = tanh(gX * r + gY * i)

    With (gX, gY) read as one complex number g, that is `tanh(Re(conj(g) A g))`: a turn of the tangent frame cancels.

    Args:
        channels: number of channels C.
        with_gradient_rotations: complex A (scale and turn) instead of a real one.
        variant: "diffusion_net", the equation above; "ulrssm", which has `i = A_re gX + A_im gY` (as in the weights of
            that lineage): not invariant to the tangent frame.

    Raises:
        FlashheatError: `channels` is not a whole number of at least 1, or there is no such variant.

    Source: Sharp et al. 2022 (arXiv 2012.00888), section 3.3.
    """

    def __init__(
        self, channels: int, with_gradient_rotations: bool = True, variant: GradientVariant = "diffusion_net"
    ) -> None:
        super().__init__()
        check_count("channels", channels)
        if variant not in ("diffusion_net", "ulrssm"):
            raise FlashheatError(f'`variant` must be "diffusion_net" or "ulrssm": got {variant!r}.')
        self.with_gradient_rotations = with_gradient_rotations
        self.variant = variant
        if with_gradient_rotations:
            self.A_re = nn.Linear(channels, channels, bias=False)
            self.A_im = nn.Linear(channels, channels, bias=False)
        else:
            self.A = nn.Linear(channels, channels, bias=False)

    def forward(self, gX: Tensor, gY: Tensor) -> Tensor:
        """`gX`, `gY` `[V, C]` to `[V, C]` in (-1, 1)."""
        if not self.with_gradient_rotations:
            return torch.tanh(gX * self.A(gX) + gY * self.A(gY))
        real = self.A_re(gX) - self.A_im(gY)
        imag = self.A_re(gY) + self.A_im(gX) if self.variant == "diffusion_net" else self.A_re(gX) + self.A_im(gY)
        return torch.tanh(gX * real + gY * imag)
