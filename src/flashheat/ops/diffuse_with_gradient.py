"""Diffusion and the tangent gradient of its result in one expansion over a three-fold basis.

It is separate from `diffuse` because it needs the gradient of the basis, worked out once a mesh; with it no sparse
matrix is needed in training: `gradX (evecs s) = (gradX evecs) s`.
"""

from torch import Tensor

from flashheat.ops.basis import decay, from_basis_reference, to_basis_reference
from flashheat.ops.checks import check_features, check_same_shape, check_spectrum, check_times


def diffuse_with_gradient(
    x: Tensor,
    mass: Tensor,
    evals: Tensor,
    evecs: Tensor,
    gradX_evecs: Tensor,
    gradY_evecs: Tensor,
    times: Tensor,
    offsets: Tensor | None = None,
    return_spectral: bool = False,
) -> tuple[Tensor, ...]:
    """Diffuse `x`, and take the tangent gradient of the diffused features.

        s                      = exp(-evals * times) * (evecs^T (mass * x))
        [y; y_gradX; y_gradY]  = [evecs; gradX_evecs; gradY_evecs] s

    Args:
        x, mass, evals, evecs, times, offsets: as for `flashheat.diffuse`.
        gradX_evecs: derivative of the basis along the first axis of the tangent frames, of the shape of `evecs`
            (length^-2); `Operators.gradX_evecs`.
        gradY_evecs: the same along the second axis.
        return_spectral: also return `s`.

    Returns:
        `(y, y_gradX, y_gradY)`, each of the shape and dtype of `x`, the gradients per unit of length; with
        `return_spectral` followed by `s`.

    Raises:
        FlashheatError: shapes, dtypes or devices disagree; the message names both arguments.

    Differentiable in every tensor but `offsets`, to any order, by `torch.autograd` and `torch.func`.

    Source: Sharp et al. 2022 (arXiv 2012.00888), sections 3.1 and 3.2.
    """
    check_features(x, evecs, mass, offsets)
    check_spectrum(evals, evecs, offsets)
    check_same_shape(evecs=evecs, gradX_evecs=gradX_evecs, gradY_evecs=gradY_evecs)
    check_times(times, x)
    return diffuse_with_gradient_reference(
        x, mass, evals, evecs, gradX_evecs, gradY_evecs, times, offsets, return_spectral
    )


def diffuse_with_gradient_reference(
    x: Tensor,
    mass: Tensor,
    evals: Tensor,
    evecs: Tensor,
    gradX_evecs: Tensor,
    gradY_evecs: Tensor,
    times: Tensor,
    offsets: Tensor | None = None,
    return_spectral: bool = False,
) -> tuple[Tensor, ...]:
    """The specification of `diffuse_with_gradient`: plain PyTorch, differentiable by plain autograd."""
    x_hat = to_basis_reference(x, mass, evecs, offsets)
    s = decay(evals, times, x_hat.dtype) * x_hat
    expanded = (from_basis_reference(s, basis, offsets).to(x.dtype) for basis in (evecs, gradX_evecs, gradY_evecs))
    return (*expanded, s) if return_spectral else tuple(expanded)
