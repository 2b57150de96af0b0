"""DiffusionNet, and the same network without diffusion and gradients: the baseline that shows what they add."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from flashheat.nn.blocks import MLP, DiffusionNetBlock
from flashheat.nn.diffusion import DiffusionMethod
from flashheat.nn.gradient_features import GradientVariant
from flashheat.nn.outputs import OutputsAt, at_elements, check_input, check_options

if TYPE_CHECKING:
    from flashheat.operators import Operators


class DiffusionNet(nn.Module):
    """A network on surfaces that does not depend on the triangulation.

    A linear layer, `depth` blocks, a linear layer, then the values at the elements asked for.

    Args:
        in_channels: features at each vertex.
        out_channels: outputs at each element.
        width: channels C of every block.
        depth: number of blocks.
        outputs_at: "vertices", "faces", "edges", or "mesh" (one value a mesh).
        last_activation: applied to the output, for instance `torch.nn.LogSoftmax(dim=-1)`; None: nothing.
        mlp_hidden: hidden widths of each block's MLP; None: `[width, width]`.
        dropout, with_gradient_features, with_gradient_rotations, diffusion_method, gradient_variant:
            see `DiffusionNetBlock`.

    Called `net(x, operators)`: `x [V, in_channels]` and the operators of the same mesh, or both packed. Values are not
    looked at, as nowhere in torch: a NaN in `x` is a NaN in the output.

    Raises:
        FlashheatError: a count is not a whole number of at least 1, or an option has no such value; in the call, `x`,
            the operators and the weights do not fit together in type, shape, dtype or device.

    Source: Sharp et al. 2022 (arXiv 2012.00888).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        width: int = 128,
        depth: int = 4,
        outputs_at: OutputsAt = "vertices",
        last_activation: Callable[[Tensor], Tensor] | None = None,
        mlp_hidden: Sequence[int] | None = None,
        dropout: bool = True,
        with_gradient_features: bool = True,
        with_gradient_rotations: bool = True,
        diffusion_method: DiffusionMethod = "spectral",
        gradient_variant: GradientVariant = "diffusion_net",
    ) -> None:
        super().__init__()
        check_options(outputs_at, in_channels=in_channels, out_channels=out_channels, width=width, depth=depth)
        hidden = [width, width] if mlp_hidden is None else list(mlp_hidden)
        self.in_channels = in_channels
        self.outputs_at: OutputsAt = outputs_at
        self.last_activation = last_activation
        self.first_lin = nn.Linear(in_channels, width)
        self.blocks = nn.ModuleList(
            DiffusionNetBlock(
                width,
                hidden,
                dropout,
                with_gradient_features,
                with_gradient_rotations,
                diffusion_method,
                gradient_variant,
            )
            for _ in range(depth)
        )
        self.last_lin = nn.Linear(width, out_channels)

    def forward(self, x: Tensor, operators: "Operators") -> Tensor:
        """`x [V, in_channels]` to `[V, out]`, `[F, out]`, `[E, out]`, or `[out]` (`[B, out]`) for "mesh"."""
        check_input(x, operators, self.first_lin)
        x = self.first_lin(x)
        for block in self.blocks:
            x = block(x, operators)
        x = at_elements(self.last_lin(x), operators, self.outputs_at)
        return x if self.last_activation is None else self.last_activation(x)


class PointwiseNet(nn.Module):
    """DiffusionNet without diffusion and gradients: each vertex alone, `x + MLP(x)` in each block.

    Args:
        in_channels, out_channels, width, depth, outputs_at, dropout: as for `DiffusionNet`.

    Raises:
        FlashheatError: as `DiffusionNet` does.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        width: int = 128,
        depth: int = 4,
        outputs_at: OutputsAt = "vertices",
        dropout: bool = True,
    ) -> None:
        super().__init__()
        check_options(outputs_at, in_channels=in_channels, out_channels=out_channels, width=width, depth=depth)
        self.in_channels = in_channels
        self.outputs_at: OutputsAt = outputs_at
        self.first_lin = nn.Linear(in_channels, width)
        self.blocks = nn.ModuleList(MLP([width] * 4, dropout) for _ in range(depth))
        self.last_lin = nn.Linear(width, out_channels)

    def forward(self, x: Tensor, operators: "Operators") -> Tensor:
        """As `DiffusionNet.forward`; of the operators only the elements and the areas are used."""
        check_input(x, operators, self.first_lin)
        x = self.first_lin(x)
        for block in self.blocks:
            x = x + block(x)
        return at_elements(self.last_lin(x), operators, self.outputs_at)
