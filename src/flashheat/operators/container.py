"""What a network needs to know of a mesh, or of a packed batch of meshes, as one frozen record of plain tensors.

It is separate from the code that computes it, so that training, workers and the store load nothing of the geometry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.operators.csr import CSR, product

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
CACHED_BASES = ("_gradX_evecs", "_gradY_evecs")


@dataclass(frozen=True, eq=False)
class Operators:
    """The discrete geometry of one mesh (B = 1) or of B meshes packed along the vertex axis.

    `L evecs = diag(mass) evecs diag(evals)` and `evecs^T diag(mass) evecs = I` over the first `k_valid` columns of
    each mesh; the columns beyond are zero. With l the unit of length: mass l^2, evals l^-2, evecs l^-1, gradX l^-1,
    L without unit. Vertices of zero area have mass 0 and rows of zeros in evecs, gradX and gradY.

    Args:
        mass: [V] lumped vertex areas.
        evals: [K] ascending; [B, K] in a pack.
        evecs: [V, K], mass-orthonormal.
        L: [V, V] weak Laplacian, symmetric, positive semi-definite, rows sum to 0.
        gradX: [V, V] derivative along each vertex's tangent X.
        gradY: [V, V] derivative along each vertex's tangent Y; shares indptr and indices with gradX.
        frames: [V, 3, 3], rows: tangent X, tangent Y, normal.
        faces: [F, 3] int64; in a pack the indices run over all its vertices.
        edges: [E, 2] int64, each undirected edge once, lower index first, sorted.
        k_valid: [B] int64, how many eigenpairs are real.
        n_components: [B] int64, connected components that have area.
        residuals: [K] or [B, K], `|L phi - lambda M phi|_{M^-1} / max(lambda_k, 4 pi / area)`.
        solver: one name a mesh, of what found the eigenpairs.
        convention: "native" or "diffusion_net".
        offsets: [B + 1] int64, the first vertex of each mesh in a pack; None for a single mesh.

    Raises:
        FlashheatError: when two arguments' shapes do not belong to one mesh.
    """

    mass: Tensor
    evals: Tensor
    evecs: Tensor
    L: CSR
    gradX: CSR
    gradY: CSR
    frames: Tensor
    faces: Tensor
    edges: Tensor
    k_valid: Tensor
    n_components: Tensor
    residuals: Tensor
    solver: tuple[str, ...]
    convention: str
    offsets: Tensor | None = None

    def __post_init__(self) -> None:
        V, K, B = self.mass.shape[0], self.evecs.shape[-1], self.k_valid.shape[0]
        spectrum = (K,) if self.offsets is None else (B, K)
        expected = {
            "mass": (V,), "evecs": (V, K), "evals": spectrum, "residuals": spectrum, "frames": (V, 3, 3),
            "n_components": (B,),
        }  # fmt: skip
        for name, shape in expected.items():
            _require(name, tuple(getattr(self, name).shape), shape)
        for name in ("L", "gradX", "gradY"):
            _require(name, getattr(self, name).shape, (V, V))
        for name, width in (("faces", 3), ("edges", 2)):
            _require(name, tuple(getattr(self, name).shape), (getattr(self, name).shape[0], width))
        if self.offsets is None and B != 1:
            raise FlashheatError(f"operators of {B} meshes must come with `offsets` [B + 1]; use Operators.pack")
        if self.offsets is not None:
            _require("offsets", tuple(self.offsets.shape), (B + 1,))

    @property
    def n_verts(self) -> int:
        """V, over all meshes of a pack."""
        return self.mass.shape[0]

    @property
    def k_eig(self) -> int:
        """K, the columns of evecs, padded ones included."""
        return self.evecs.shape[1]

    @property
    def batch_size(self) -> int:
        """B, how many meshes are packed here."""
        return self.k_valid.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.mass.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the floating point tensors."""
        return self.mass.dtype

    @property
    def basis_dtype(self) -> torch.dtype:
        """The dtype of evecs and its gradients."""
        return self.evecs.dtype

    @property
    def gradX_evecs(self) -> Tensor:
        """[V, K] `gradX evecs`, made when it is first needed and kept."""
        return self._kept("_gradX_evecs", self.gradX)

    @property
    def gradY_evecs(self) -> Tensor:
        """[V, K] `gradY evecs`, made when it is first needed and kept."""
        return self._kept("_gradY_evecs", self.gradY)

    def _kept(self, name: str, matrix: CSR) -> Tensor:
        # Neither functools.cached_property nor __dict__: torch.compile cannot trace the former's lock (Python 3.11),
        # and does not find again what it has put into the latter.
        if not hasattr(self, name):
            with torch.inference_mode(False):  # what is kept must serve training too
                object.__setattr__(self, name, product(matrix, self.evecs))
        return getattr(self, name)

    def complex_gradient(self) -> Tensor:
        """[V, V] `gradX + i gradY` as one complex torch.sparse_csr tensor, for losses of one's own."""
        return replace_values(self.gradX, torch.complex(self.gradX.values, self.gradY.values)).to_torch()

    def to(
        self, target: torch.device | torch.dtype | str | None = None, *, dtype: torch.dtype | None = None
    ) -> Operators:
        """The same operators on another device, or with another floating point dtype, or both.

        Args:
            target: a device, or a dtype.
            dtype: of the floating point tensors; indices stay int64.
        """
        device, dtype = (None, target) if isinstance(target, torch.dtype) else (target, dtype)
        return self.map(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None))

    def with_basis(self, dtype: torch.dtype) -> Operators:
        """The same operators with `evecs` and its gradients in another dtype, the gradients made before it is rounded.

        In bfloat16 a training step reads half the memory; all else keeps its dtype. `to(dtype=...)` undoes it but for
        the rounding.

        Raises:
            FlashheatError: for a dtype that is none of float64, float32, bfloat16 and float16, or of too small a
                range.
        """
        check_dtype("dtype", dtype)
        bases = {name: getattr(self, name[1:]).to(dtype) for name in CACHED_BASES}
        for basis in (self.evecs, *(getattr(self, name[1:]) for name in CACHED_BASES)):
            largest = float(basis.abs().amax()) if basis.numel() else 0.0
            if largest > torch.finfo(dtype).max or 0 < largest < torch.finfo(dtype).tiny:
                raise FlashheatError(
                    f"a basis must fit {dtype}: its largest entry is {largest:.1e}; normalise the mesh "
                    "(Mesh.normalise), or choose torch.bfloat16, whose range is that of float32"
                )
        copy = replace(self, evecs=self.evecs.to(dtype))
        copy.__dict__.update(bases)
        return copy

    def pin_memory(self) -> Operators:
        """A copy in page-locked memory, as DataLoader(pin_memory=True) asks for."""
        return self.map(Tensor.pin_memory)

    def map(self, function: Callable[[Tensor], Tensor]) -> Operators:
        """The same record with `function` applied to every tensor, the cached bases included."""
        gradX = self.gradX.map(function)
        gradY = CSR(gradX.indptr, gradX.indices, function(self.gradY.values), self.gradY.shape)
        changes: dict[str, Any] = {"L": self.L.map(function), "gradX": gradX, "gradY": gradY}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changes[field.name] = function(value)
        return self._replace(changes, function)

    def truncate(self, k: int) -> Operators:
        """The lowest k eigenpairs as views of the same memory: the row stride of evecs stays.

        Raises:
            FlashheatError: unless k is a whole number in 1..k_eig.
        """
        if not isinstance(k, Integral) or not 1 <= k <= self.k_eig:
            raise FlashheatError(
                f"`k` must be a whole number in 1..{self.k_eig} (the eigenpairs these operators have): got {k}"
            )
        changes = {name: getattr(self, name)[..., :k] for name in ("evals", "evecs", "residuals")}
        return self._replace({**changes, "k_valid": self.k_valid.clamp(max=k)}, lambda t: t[:, :k])

    def _replace(self, changes: dict[str, Any], on_cached: Callable[[Tensor], Tensor]) -> Operators:
        """A changed copy that carries along, through `on_cached`, the bases which are already there."""
        copy = replace(self, **changes)
        for name in CACHED_BASES:
            if name in self.__dict__:
                copy.__dict__[name] = on_cached(self.__dict__[name])
        return copy

    @staticmethod
    def pack(operators: Sequence[Operators]) -> Operators:
        """Concatenate meshes of any sizes along the vertex axis; `split` is the exact inverse.

        Raises:
            FlashheatError: for an empty list, or when k_eig, convention, dtype or device differ.
        """
        from flashheat.operators.packing import pack

        return pack(operators)

    def split(self) -> list[Operators]:
        """The meshes of a pack, one by one (a single mesh: itself)."""
        from flashheat.operators.packing import split

        return split(self)

    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file, atomically."""
        from flashheat.operators.serial import save

        save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str | None = None) -> Operators:
        """Read what `save` wrote; onto a device, where it is asked for: in one copy from page-locked memory.

        The tensors are parts of one block of memory, which stays as long as any of them.

        Raises:
            FlashheatError: when the file is absent, damaged, or of another version.
        """
        from flashheat.operators.serial import load

        return load(Path(path), device)

    def __repr__(self) -> str:
        return (
            f"Operators({self.batch_size} mesh(es), V={self.n_verts}, F={self.faces.shape[0]}, K={self.k_eig}, "
            f"k_valid={self.k_valid.tolist()}, {self.convention}, {self.dtype}, {self.device})"
        )


def check_dtype(name: str, dtype: object) -> None:
    """Raise a FlashheatError unless operators can be kept in this dtype."""
    if dtype not in FLOATS:
        raise FlashheatError(f"`{name}` must be one of {', '.join(map(str, FLOATS))}: got {dtype!r}")


def replace_values(matrix: CSR, values: Tensor) -> CSR:
    """A matrix of the same pattern with other values; the index tensors are shared."""
    return CSR(matrix.indptr, matrix.indices, values, matrix.shape)


def _require(name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if got != expected:
        raise FlashheatError(
            f"`{name}` must have shape {list(expected)} to fit mass, evecs and k_valid: got {list(got)}. "
            "Were the parts computed for another mesh?"
        )
