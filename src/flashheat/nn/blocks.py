"""The pointwise network and the block that DiffusionNet repeats.

They are separate from the network so that a block can be used inside other networks.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from flashheat.errors import check_count
from flashheat.nn.diffusion import DiffusionMethod, LearnedTimeDiffusion
from flashheat.nn.gradient_features import GradientVariant, SpatialGradientFeatures

if TYPE_CHECKING:
    from flashheat.operators import Operators


class MLP(nn.Module):
    """Linear layers with ReLU between them, and dropout (p = 0.5) before each layer but the first.

    Args:
        sizes: widths from input to output, at least two.
        dropout: whether the dropout is there.

    Raises:
        FlashheatError: a width is not a whole number of at least 1.
    """

    def __init__(self, sizes: Sequence[int], dropout: bool = False) -> None:
        super().__init__()
        for size in sizes:
            check_count("sizes", size)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.dropout = nn.Dropout(0.5) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """`[..., sizes[0]]` to `[..., sizes[-1]]`."""
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = layer(self.dropout(torch.relu(x)))
        return x


class DiffusionNetBlock(nn.Module):
    """Diffuse, take gradient features, mix pointwise, add.

        y, gX, gY = diffuse_with_gradient(x)
        out = x + MLP([x, y, gradient_features(gX, gY)])

    Args:
        channels: width C.
        mlp_hidden: hidden widths of the MLP.
        dropout: dropout in the MLP.
        with_gradient_features: whether the gradient features are there.
        with_gradient_rotations, gradient_variant: see `SpatialGradientFeatures`.
        diffusion_method: see `LearnedTimeDiffusion`.

    Raises:
        FlashheatError: a width is not a whole number of at least 1, or an option has no such value.

    Source: Sharp et al. 2022 (arXiv 2012.00888), figure 4.
    """

    def __init__(
        self,
        channels: int,
        mlp_hidden: Sequence[int],
        dropout: bool = True,
        with_gradient_features: bool = True,
        with_gradient_rotations: bool = True,
        diffusion_method: DiffusionMethod = "spectral",
        gradient_variant: GradientVariant = "diffusion_net",
    ) -> None:
        super().__init__()
        check_count("channels", channels)
        for size in mlp_hidden:
            check_count("mlp_hidden", size)
        self.diffusion = LearnedTimeDiffusion(channels, diffusion_method)
        self.gradient_features = (
            SpatialGradientFeatures(channels, with_gradient_rotations, gradient_variant)
            if with_gradient_features
            else None
        )
        n_parts = 3 if with_gradient_features else 2
        self.mlp = MLP([n_parts * channels, *mlp_hidden, channels], dropout)

    def forward(self, x: Tensor, operators: "Operators") -> Tensor:
        """`x [V, C]` to `[V, C]`."""
        if self.gradient_features is None:
            return x + self.mlp(torch.cat((x, self.diffusion(x, operators)), dim=-1))
        y, gX, gY = self.diffusion.with_gradient(x, operators)
        return x + self.mlp(torch.cat((x, y, self.gradient_features(gX, gY)), dim=-1))
