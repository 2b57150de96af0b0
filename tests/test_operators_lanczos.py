"""Block Lanczos against dense eigh, where spectra are unkind: multiplicities, clusters, restarts, breakdown."""

import numpy as np
import pytest

from flashheat.errors import FlashheatError
from flashheat.operators.lanczos import largest_eigenpairs


def with_spectrum(theta: np.ndarray) -> np.ndarray:
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((len(theta), len(theta))))[0]
    return Q * theta @ Q.T


SPECTRA = {
    "like a surface": 1 / (0.1 + np.arange(600.0)),
    "each eight times": 1 / (0.1 + np.arange(600) // 8),
    "low rank": np.where(np.arange(600) < 90, 2.0 - np.arange(600) / 90, 0.0),
    "rank below k": np.where(np.arange(600) < 20, 2.0 - np.arange(600) / 90, 0.0),
    "flat, many restarts": 1 - 1e-3 * np.arange(600.0) / 600,
    "one far away": np.where(np.arange(600) == 0, 1e6, 1 / (1.0 + np.arange(600.0))),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_the_largest_eigenpairs(name: str) -> None:
    A, k = with_spectrum(SPECTRA[name]), 40
    start = np.random.default_rng(0).standard_normal((600, 8))
    theta, U = largest_eigenpairs(lambda x: A @ x, start, k)
    exact = np.sort(SPECTRA[name])[::-1][:k]
    np.testing.assert_allclose(theta, exact, rtol=1e-9, atol=1e-15 * exact[0])
    np.testing.assert_allclose(U.T @ U, np.eye(k), atol=1e-10)
    assert (np.linalg.norm(A @ U - U * theta, axis=0) <= np.maximum(1e-9 * theta, 1e-13 * exact[0])).all()


def test_what_cannot_converge_says_so() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(FlashheatError, match="converge"):
        largest_eigenpairs(lambda x: rng.standard_normal(x.shape), rng.standard_normal((60, 4)), 3)
