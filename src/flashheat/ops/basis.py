"""From features at vertices to coefficients in the spectral basis, and back.

They are separate from `diffuse` because they also serve by themselves: projections, functional maps, filters of one's
own. `<op>_reference` is the specification: plain PyTorch on any device in any float dtype.
"""

import torch
from torch import Tensor

from flashheat.ops.checks import accumulation_dtype, check_features, check_spectral
from flashheat.ops.packed import expand, reduce


def to_basis(x: Tensor, mass: Tensor, evecs: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Coefficients of features in the basis, in the mass inner product.

        x_hat = evecs^T (mass * x)

    Args:
        x: features `[V, C]`, or `[B, V, C]`; with `offsets` the meshes' vertices one after the other, `[sum V, C]`.
        mass: lumped vertex areas `[V]` (length^2), with the leading axis of `x`.
        evecs: basis `[V, K]` (length^-1), with the leading axis of `x`.
        offsets: int64 `[B + 1]`: mesh `b` of a packed batch owns the rows `offsets[b]` to `offsets[b + 1]`.

    Returns:
        `[K, C]`; for a batch `[B, K, C]`; in float32, or float64 where `x` or `evecs` is.

    Raises:
        FlashheatError: shapes, dtypes or devices disagree; the message names both arguments.

    Differentiable in every tensor but `offsets`, to any order.

    Source: Sharp et al. 2022 (arXiv 2012.00888), section 3.1.
    """
    check_features(x, evecs, mass, offsets)
    return to_basis_reference(x, mass, evecs, offsets)


def to_basis_reference(x: Tensor, mass: Tensor, evecs: Tensor, offsets: Tensor | None = None) -> Tensor:
    """The specification of `to_basis`."""
    acc = accumulation_dtype(x, evecs)
    with torch.autocast(x.device.type, enabled=False):
        return reduce(evecs.to(acc), mass.to(acc).unsqueeze(-1) * x.to(acc), offsets)


def from_basis(s: Tensor, evecs: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Features at vertices from coefficients in the basis.

        y = evecs s

    Args:
        s: coefficients `[K, C]`; for a batch `[B, K, C]`.
        evecs: basis `[V, K]`, `[B, V, K]`, or packed `[sum V, K]`.
        offsets: int64 `[B + 1]`, as for `to_basis`.

    Returns:
        `[V, C]` (`[B, V, C]`, `[sum V, C]`), in float32, or float64 where `s` or `evecs` is.

    Raises:
        FlashheatError: shapes, dtypes or devices disagree; the message names both arguments.

    Differentiable in `s` and `evecs`, to any order.
    """
    check_spectral(s, evecs, offsets)
    return from_basis_reference(s, evecs, offsets)


def from_basis_reference(s: Tensor, evecs: Tensor, offsets: Tensor | None = None) -> Tensor:
    """The specification of `from_basis`."""
    acc = accumulation_dtype(s, evecs)
    with torch.autocast(evecs.device.type, enabled=False):
        return expand(evecs.to(acc), s.to(acc), offsets)
