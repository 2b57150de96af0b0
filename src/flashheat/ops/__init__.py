"""Differentiable tensor functions: one contract file for each op."""

from flashheat.ops import library as library  # registers what exported programs call
from flashheat.ops.basis import from_basis as from_basis
from flashheat.ops.basis import from_basis_reference as from_basis_reference
from flashheat.ops.basis import to_basis as to_basis
from flashheat.ops.basis import to_basis_reference as to_basis_reference
from flashheat.ops.diffuse import diffuse as diffuse
from flashheat.ops.diffuse import diffuse_reference as diffuse_reference
from flashheat.ops.diffuse_with_gradient import diffuse_with_gradient as diffuse_with_gradient
from flashheat.ops.diffuse_with_gradient import diffuse_with_gradient_reference as diffuse_with_gradient_reference
