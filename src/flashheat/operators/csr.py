"""A sparse matrix as plain tensors (row pointers, column indices, values), and its scipy and torch forms on request.

It is separate because training stores no torch.sparse tensor: plain tensors pickle, pin, batch and mix precision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flashheat.errors import FlashheatError
from flashheat.operators.segments import summed

if TYPE_CHECKING:
    import scipy.sparse


@dataclass(frozen=True, eq=False)
class CSR:
    """A sparse matrix A with `A[r, indices[i]] = values[i]` for `indptr[r] <= i < indptr[r + 1]`.

    Args:
        indptr: [rows + 1] int64, from 0 to nnz.
        indices: [nnz] int64, columns, ascending within a row.
        values: [nnz], any float dtype.
        shape: (rows, columns).

    Raises:
        FlashheatError: when the arrays do not describe a matrix of this shape.
    """

    indptr: Tensor
    indices: Tensor
    values: Tensor
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        if self.indptr.shape != (self.shape[0] + 1,):
            raise FlashheatError(
                f"`indptr` must have rows + 1 entries: got {list(self.indptr.shape)} for shape {self.shape}"
            )
        if self.indices.ndim != 1 or self.indices.shape != self.values.shape:
            raise FlashheatError(
                "`indices` and `values` must be flat and of one length: "
                f"got {list(self.indices.shape)} and {list(self.values.shape)}"
            )

    @classmethod
    def from_scipy(cls, matrix: scipy.sparse.csr_array, dtype: torch.dtype = torch.float64) -> CSR:
        """The same matrix from scipy, duplicates summed and columns sorted."""
        matrix = matrix.tocsr()
        matrix.sum_duplicates()
        return cls(
            torch.from_numpy(matrix.indptr.astype("int64")),
            torch.from_numpy(matrix.indices.astype("int64")),
            torch.from_numpy(matrix.data.astype("float64")).to(dtype),
            (int(matrix.shape[0]), int(matrix.shape[1])),
        )

    @classmethod
    def from_entries(cls, rows: Tensor, columns: Tensor, values: Sequence[Tensor], n: int) -> list[CSR]:
        """A square matrix [n, n] for each of the values [e], which are summed where they meet; all of one pattern."""
        codes, order = (rows * n + columns).sort(stable=True)
        codes, lengths = torch.unique_consecutive(codes, return_counts=True)
        parts = [of[order] for of in values]
        if len(codes) < len(order):
            parts = [torch.segment_reduce(of, "sum", lengths=lengths, unsafe=True) for of in parts]
        rows = codes // n
        indptr = torch.nn.functional.pad(summed(rows, torch.ones_like(rows), n).cumsum(0), (1, 0))
        return [cls(indptr, codes - rows * n, of, (n, n)) for of in parts]

    @property
    def nnz(self) -> int:
        """How many entries are stored."""
        return self.values.shape[0]

    def rows(self) -> Tensor:
        """[nnz] the row of each entry."""
        numbers = torch.arange(self.shape[0], device=self.indptr.device)
        return numbers.repeat_interleave(self.indptr.diff(), output_size=self.nnz)

    def diagonal(self) -> Tensor:
        """[rows] the entries on the diagonal, 0 where none is stored."""
        rows = self.rows()
        here = rows == self.indices
        return self.values.new_zeros(self.shape[0]).index_put_((rows[here],), self.values[here])

    def to_scipy(self) -> scipy.sparse.csr_array:
        """The same matrix as a float64 scipy.sparse.csr_array on the CPU."""
        import scipy.sparse

        values = self.values.detach().cpu().double().numpy()
        return scipy.sparse.csr_array((values, self.indices.cpu().numpy(), self.indptr.cpu().numpy()), shape=self.shape)

    def to_torch(self) -> Tensor:
        """The same matrix as a torch.sparse_csr tensor, which shares these arrays."""
        with warnings.catch_warnings():  # torch says so once a process: no news to a user of ours
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state", UserWarning)
            warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled", UserWarning)
            return torch.sparse_csr_tensor(
                self.indptr, self.indices, self.values, self.shape, dtype=self.values.dtype, check_invariants=False
            )

    def map(self, function: Callable[[Tensor], Tensor]) -> CSR:
        """The matrix with `function` applied to each of its three arrays."""
        return CSR(function(self.indptr), function(self.indices), function(self.values), self.shape)


def product(matrix: CSR, basis: Tensor) -> Tensor:
    """[rows, K] sparse times dense, summed in float64: a gradient is a difference of close numbers.

    Not differentiable; it may be compiled (one opaque op, which an eager call passes by: its first call would import
    all of the compiler).
    """
    parts = matrix.indptr, matrix.indices, matrix.values.detach(), basis.detach()
    return torch.ops.flashheat.sparse_product(*parts) if torch.compiler.is_compiling() else _product(*parts)


def _product(indptr: Tensor, indices: Tensor, values: Tensor, basis: Tensor) -> Tensor:
    matrix = CSR(indptr, indices, values.double(), (indptr.shape[0] - 1, basis.shape[0]))
    if basis.device.type == "cpu":  # scipy is several times faster than torch here
        return torch.from_numpy(matrix.to_scipy() @ basis.double().numpy()).to(basis.dtype)
    return (matrix.to_torch() @ basis.double()).to(basis.dtype)


_product_op = torch.library.custom_op("flashheat::sparse_product", _product, mutates_args=())


@_product_op.register_fake
def _(indptr: Tensor, indices: Tensor, values: Tensor, basis: Tensor) -> Tensor:
    return basis.new_empty(indptr.shape[0] - 1, basis.shape[1])
