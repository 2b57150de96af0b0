"""What `diffuse` is measured against: the five lines of PyTorch, and what PyTorch offers for many meshes at once.

They are separate because a weak peer would make every figure worthless: each must be as fast as its idea allows.
"""

import torch
from torch import Tensor


def eager(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: None = None) -> Tensor:
    """The five lines of PyTorch, in the dtype of the features; also what `torch.compile` compiles."""
    s = torch.exp(-evals[:, None] * times) * (evecs.mT @ (x * mass[:, None].to(x.dtype)))
    return evecs @ s.to(evecs.dtype)


def loop(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """`eager` for each mesh of a packed batch."""
    parts = zip(x.split(sizes), mass.split(sizes), evals, evecs.split(sizes), strict=True)
    return torch.cat([eager(*part, times) for part in parts])


def padded(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """A batch padded to its largest mesh, padding counted in."""
    x, mass, evecs = (torch.nn.utils.rnn.pad_sequence(t.split(sizes), batch_first=True) for t in (x, mass, evecs))
    s = torch.exp(-evals[..., None] * times) * (evecs.mT @ (x * mass[..., None].to(x.dtype)))
    return evecs @ s.to(evecs.dtype)


def grouped(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: Tensor) -> Tensor:
    """A packed batch by `torch.nn.functional.grouped_mm`, which takes bf16 alone."""
    stops = offsets[1:].to(torch.int32)
    x_hat = torch.nn.functional.grouped_mm(evecs.mT, x * mass[:, None].to(x.dtype), offs=stops)
    s = torch.exp(-evals[..., None] * times) * x_hat
    return torch.nn.functional.grouped_mm(evecs, s.to(evecs.dtype), offs=stops)
