"""Eigenpairs become intrinsic descriptors of each vertex: heat and wave kernel signatures.

They are separate from the operators because they are inputs of a network, chosen by the user.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.operators.container import Operators

ZERO = 1e-6  # eigenvalues below this share of the largest belong to constants


def hks(evals: Tensor, evecs: Tensor, scales: Tensor) -> Tensor:
    """Heat kernel signature: `hks[v, s] = sum_k exp(-evals[k] scales[s]) evecs[v, k]^2`.

    Args:
        evals: [K], unit l^-2.
        evecs: [V, K], unit l^-1.
        scales: [S] diffusion times, unit l^2.

    Returns:
        [V, S], unit l^-2. Padded columns of evecs (zero) add nothing. Differentiable in every argument.

    Source: Sun, Ovsjanikov, Guibas, "A concise and provably informative multi-scale signature", 2009.
    """
    return evecs.square() @ torch.exp(-evals[:, None] * scales[None, :])


def hks_autoscale(operators: Operators, count: int = 16) -> Tensor:
    """The original's compute_hks_autoscale: hks at `count` scales from 0.01 to 1, even in log.

    These scales are absolute: they suit meshes of unit size, and published weights ask for them. Use hks_scale_free
    for meshes of any size.

    Returns:
        [V, count], unit l^-2; of a pack, mesh by mesh.
    """
    return torch.cat([hks(part.evals, part.evecs, _scales(part, count)) for part in operators.split()])


def hks_scale_free(operators: Operators, count: int = 16) -> Tensor:
    """`hks area / (4 pi)` at `count` scales from 0.01 to 1 times `area / (4 pi)`: the same for a mesh of any size.

    On the unit sphere it equals hks_autoscale.

    Returns:
        [V, count], without unit; of a pack, mesh by mesh.
    """
    parts = [(part, part.mass.sum() / (4 * math.pi)) for part in operators.split()]
    return torch.cat([unit * hks(part.evals, part.evecs, unit * _scales(part, count)) for part, unit in parts])


def wks(evals: Tensor, evecs: Tensor, n: int = 100) -> Tensor:
    """Wave kernel signature: `wks[v, e] = sum_k w[k, e] evecs[v, k]^2 / sum_k w[k, e]`, w Gaussian in log eigenvalue.

    The n energies lie evenly between the logs of the first positive eigenvalue and the last, two widths from either
    end; the width is 7 of their steps. They follow the mesh: scaling it by s scales the result by s^-2 only.

    Args:
        evals: [K].
        evecs: [V, K].
        n: how many energies.

    Returns:
        [V, n], unit l^-2. Constants and padded columns take no part.

    Raises:
        FlashheatError: when no eigenvalue is positive.

    Source: Aubry, Schlickewei, Cremers, "The wave kernel signature", 2011.
    """
    positive = evals > ZERO * evals.amax()
    if not bool(positive.any()):
        raise FlashheatError("wks needs a positive eigenvalue: all are 0; compute more eigenpairs")
    log = evals[positive].log()
    low, high = log.amin(), log.amax()
    sigma = 7 * (high - low).clamp_min(1e-3) / n
    energies = torch.linspace(0, 1, n, dtype=log.dtype, device=log.device) * (high - low - 4 * sigma) + low + 2 * sigma
    weights = torch.exp(-((energies[None, :] - log[:, None]) ** 2) / (2 * sigma**2))
    return evecs[:, positive].square() @ (weights / weights.sum(dim=0))


def _scales(operators: Operators, count: int) -> Tensor:
    return torch.logspace(-2, 0, count, dtype=operators.dtype, device=operators.device)
