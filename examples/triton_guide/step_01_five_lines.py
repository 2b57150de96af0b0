"""Step 1: the five lines of PyTorch.

    x_hat = evecs^T (mass * x)      [K, C]      project on the basis
    s     = exp(-evals times) x_hat [K, C]      let each coefficient decay
    y     = evecs s                 [V, C]      come back

Look at: eager PyTorch launches seven kernels, of which two are matrix products; `mass * x` is written to memory and
read again, twice the traffic of reading the features. `torch.compile` joins the small ones but not the products.

Expected: for small meshes the number of launches decides, for large ones the bytes. Every later step is measured
against these two, in the same precision: `torch.set_float32_matmul_precision("highest")`.
"""

import torch
from torch import Tensor


def five_lines(x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
    weighted = mass[:, None].to(x.dtype) * x
    x_hat = evecs.T @ weighted
    decay = torch.exp(-evals[:, None] * times)
    s = decay * x_hat
    return evecs @ s.to(evecs.dtype)


def variants() -> dict:
    """The implementations that this step compares."""
    return {"eager": five_lines, "torch.compile": torch.compile(five_lines, dynamic=False)}


if __name__ == "__main__":
    from harness import show

    show(__file__, variants() if torch.cuda.is_available() else {"eager": five_lines})
