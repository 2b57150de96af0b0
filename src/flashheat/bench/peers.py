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
    """`eager` for each mesh of a packed batch, each into its rows of the result; forward only."""
    y = torch.empty_like(x)
    parts = zip(x.split(sizes), mass.split(sizes), evals, evecs.split(sizes), y.split(sizes), strict=True)
    for x_b, mass_b, evals_b, evecs_b, y_b in parts:
        s = torch.exp(-evals_b[:, None] * times) * (evecs_b.mT @ (x_b * mass_b[:, None].to(x.dtype)))
        torch.mm(evecs_b, s.to(evecs.dtype), out=y_b)
    return y


def pad(t: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Packed rows as a batch `[B, max V, ...]`, zeros behind each mesh."""
    return torch.nn.utils.rnn.pad_sequence(t.split(sizes), batch_first=True)


def unpad(t: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The rows of a padded batch as packed ones: the inverse of `pad`."""
    return torch.cat([of[:n] for of, n in zip(t, sizes, strict=True)])


def padded(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """A batch padded to its largest mesh. `mass` and `evecs` come padded, as a data set would keep them; padding the
    features, which are new each time, counts in. The result stays padded."""
    x = pad(x, sizes)
    s = torch.exp(-evals[..., None] * times) * (evecs.mT @ (x * mass[..., None].to(x.dtype)))
    return evecs @ s.to(evecs.dtype)


def grouped(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor, offsets: Tensor) -> Tensor:
    """A packed batch by `torch.nn.functional.grouped_mm`, which takes bf16 alone."""
    stops = offsets[1:].to(torch.int32)
    x_hat = torch.nn.functional.grouped_mm(evecs.mT, x * mass[:, None].to(x.dtype), offs=stops)
    s = torch.exp(-evals[..., None] * times) * x_hat
    return torch.nn.functional.grouped_mm(evecs, s.to(evecs.dtype), offs=stops)
