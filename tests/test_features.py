"""Heat and wave kernel signatures: their formulas, and how they follow the size of a mesh."""

import math

import pytest
import torch

from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh, ellipsoid, icosphere
from flashheat.operators import Operators, compute_operators, hks, hks_autoscale, hks_scale_free, wks

F64 = torch.float64


@pytest.fixture(scope="module")
def operators() -> Operators:
    return compute_operators(ellipsoid((1.0, 0.8, 0.5), 2), 30, dtype=F64)


def test_hks_is_the_sum_over_eigenpairs(operators: Operators) -> None:
    scales = torch.tensor([0.01, 0.3, 2.0], dtype=F64)
    expected = torch.zeros(operators.n_verts, 3, dtype=F64)
    for k in range(30):
        for s, scale in enumerate(scales.tolist()):
            expected[:, s] += math.exp(-operators.evals[k].item() * scale) * operators.evecs[:, k] ** 2
    torch.testing.assert_close(hks(operators.evals, operators.evecs, scales), expected)


def test_the_heat_trace_and_the_limit_of_long_times(operators: Operators) -> None:
    scales = torch.tensor([0.05, 1e4], dtype=F64)
    trace = operators.mass @ hks(operators.evals, operators.evecs, scales)
    torch.testing.assert_close(trace[0], torch.exp(-0.05 * operators.evals).sum())
    torch.testing.assert_close(trace[1], torch.ones((), dtype=F64))


def test_autoscale_uses_sixteen_scales_from_a_hundredth_to_one(operators: Operators) -> None:
    features = hks_autoscale(operators)
    assert features.shape == (162, 16)
    ends = hks(operators.evals, operators.evecs, torch.tensor([0.01, 1.0], dtype=F64))
    torch.testing.assert_close(features[:, [0, -1]], ends)


def test_scale_free_features_do_not_change_with_the_mesh_s_size() -> None:
    body = ellipsoid((1.0, 0.8, 0.5), 2)
    small, large = (compute_operators(Mesh(s * body.verts, body.faces), 30, dtype=F64) for s in (1e-3, 1e3))
    torch.testing.assert_close(hks_scale_free(small), hks_scale_free(large), rtol=1e-8, atol=0)
    torch.testing.assert_close(wks(small.evals, small.evecs) * 1e-12, wks(large.evals, large.evecs), rtol=1e-7, atol=0)
    assert (hks_autoscale(small) - hks_autoscale(large)).abs().max() > 1
    sphere = compute_operators(icosphere(4), 9, dtype=F64)
    torch.testing.assert_close(hks_scale_free(sphere), hks_autoscale(sphere), rtol=0.01, atol=0)


def test_of_a_pack_mesh_by_mesh(operators: Operators) -> None:
    other = compute_operators(icosphere(1), 30, dtype=F64)
    packed = Operators.pack([operators, other])
    for feature in (hks_autoscale, hks_scale_free):
        torch.testing.assert_close(feature(packed), torch.cat([feature(operators), feature(other)]))


def test_wks_is_a_weighted_mean_of_squared_eigenvectors(operators: Operators) -> None:
    features, n = wks(operators.evals, operators.evecs, 40), 40
    log = operators.evals[1:].log()
    sigma = 7 * (log[-1] - log[0]) / n
    for e in (0, 17, 39):
        energy = log[0] + 2 * sigma + (log[-1] - log[0] - 4 * sigma) * e / (n - 1)
        weights = torch.exp(-((energy - log) ** 2) / (2 * sigma**2))
        expected = (operators.evecs[:, 1:] ** 2 * weights).sum(dim=1) / weights.sum()
        torch.testing.assert_close(features[:, e], expected)


def test_padded_columns_and_constants_take_no_part() -> None:
    padded = compute_operators(icosphere(0), 20, dtype=F64)
    exact = padded.truncate(12)
    assert padded.k_valid == 12
    for feature in (hks_autoscale, lambda o: wks(o.evals, o.evecs, 8)):
        torch.testing.assert_close(feature(padded), feature(exact))
    with pytest.raises(FlashheatError, match="positive"):
        wks(padded.evals[:1], padded.evecs[:, :1])


def test_hks_is_differentiable_in_everything(operators: Operators) -> None:
    inputs = [operators.evals[:5].clone(), operators.evecs[:6, :5].clone(), torch.tensor([0.1, 0.5], dtype=F64)]
    assert torch.autograd.gradcheck(hks, [tensor.requires_grad_() for tensor in inputs])
