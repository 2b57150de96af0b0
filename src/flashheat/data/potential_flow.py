"""The embedded data set: the surface pressure of potential flow past random ellipsoids, from its exact solution.

It is separate because it is both the data of `flashheat demo` and a truth that tests can rely on.
"""

from __future__ import annotations

import numpy as np

from flashheat.data.example import Example, Split
from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh

STREAM = np.array([1.0, 0.0, 0.0])
MAX_RATIO = 4.0
N_VERTS = (600, 1000)


def lamb_alphas(axes: np.ndarray) -> np.ndarray:
    """Lamb's coefficients of an ellipsoid; they sum to 2.

        alpha_i = a b c integral_0^inf dl / ((a_i^2 + l) sqrt((a^2 + l)(b^2 + l)(c^2 + l)))
                = 2/3 a b c R_D(a_j^2, a_k^2, a_i^2)

    Args:
        axes: [3] half axes a, b, c > 0 (length).

    Returns:
        [3], without unit.

    Source: Lamb, Hydrodynamics, 6th ed., section 114; R_D is Carlson's integral, which is symmetric in the first two.
    """
    from scipy.special import elliprd

    a, b, c = np.square(np.asarray(axes, dtype=np.float64))
    return 2 / 3 * np.sqrt(a * b * c) * np.array([elliprd(b, c, a), elliprd(a, c, b), elliprd(a, b, c)])


def ellipsoid_pressure(points: np.ndarray, axes: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """Pressure coefficient of potential flow at the surface of an ellipsoid.

        V_i = 2 U_i / (2 - alpha_i),   q = V - (V.n) n,   Cp = 1 - |q|^2 / |U|^2

    The potential on the surface is `sum_i V_i x_i`, so the surface velocity q is the tangential part of V.

    Args:
        points: [N, 3] on the ellipsoid, in body axes (length).
        axes: [3] half axes (length).
        stream: [3] free stream U in body axes; only its direction counts.

    Returns:
        [N], without unit; 1 at a stagnation point.

    Raises:
        FlashheatError: half axes that are not positive, or a stream of zero.

    Source: Lamb, Hydrodynamics, 6th ed., section 114.
    """
    axes, U = np.asarray(axes, dtype=np.float64), np.asarray(stream, dtype=np.float64)
    if axes.shape != (3,) or not (axes > 0).all() or not U.any():
        raise FlashheatError(f"an ellipsoid needs three half axes > 0 and a stream that is not 0; got {axes} and {U}")
    V = 2 * U / (2 - lamb_alphas(axes))
    n = points / axes**2
    n /= np.linalg.norm(n, axis=1, keepdims=True)
    through = n @ V
    return 1 - (V @ V - through**2) / (U @ U)


def random_body(rng: np.random.Generator, name: str) -> Example:
    """One ellipsoid of random axes (up to 4:1), orientation and triangulation, in the stream (1, 0, 0).

    The vertices are the body's own: 600 to 1,000 of them, jittered, so the triangles follow no parametrisation.
    """
    axes = MAX_RATIO ** rng.uniform(size=3)
    verts, faces = _random_sphere(rng, int(rng.integers(*N_VERTS)))
    to_world = random_rotation(rng)
    verts = verts * axes
    target = ellipsoid_pressure(verts, axes, STREAM @ to_world)
    return Example(Mesh(verts @ to_world.T, faces, name=name), target, stream=STREAM)


def load_flow(n_train: int, n_test: int, seed: int) -> Split:
    """Random bodies with their surface pressure; body i of a seed is the same whatever the counts are.

    Raises:
        FlashheatError: no body to train on or to test on.
    """
    if min(n_train, n_test) < 1:
        raise FlashheatError(f"flow needs at least one body to train on and one to test on; got {n_train} and {n_test}")
    train, test = (
        [random_body(np.random.default_rng([seed, part, i]), f"{word}-body-{i:03d}") for i in range(count)]
        for part, (word, count) in enumerate([("train", n_train), ("test", n_test)])
    )
    return Split(train, test, notes=("Target: pressure coefficient of potential flow past an ellipsoid, exact.",))


def random_rotation(rng: np.random.Generator) -> np.ndarray:
    """[3, 3] rotation, uniform over all of them (from a uniform unit quaternion)."""
    w, x, y, z = (q := rng.normal(size=4)) / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _random_sphere(rng: np.random.Generator, n_verts: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vertices spread evenly, then jittered and turned, and their outward Delaunay triangles (a convex hull)."""
    from scipy.spatial import ConvexHull

    height = 1 - (2 * np.arange(n_verts) + 1) / n_verts
    angle = np.pi * (1 + 5**0.5) * np.arange(n_verts)
    ring = np.sqrt(1 - height**2)
    verts = np.column_stack([ring * np.cos(angle), ring * np.sin(angle), height])
    spacing = np.sqrt(4 * np.pi / n_verts)
    verts += rng.normal(scale=0.15 * spacing, size=verts.shape)
    verts = verts / np.linalg.norm(verts, axis=1, keepdims=True) @ random_rotation(rng)
    faces = ConvexHull(verts).simplices.astype(np.int64)
    a, b, c = (verts[faces[:, corner]] for corner in range(3))
    inward = np.einsum("fi,fi->f", np.cross(b - a, c - a), a) < 0
    faces[inward] = faces[inward, ::-1]
    return verts, faces
