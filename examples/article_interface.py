"""Code written for the article's interface runs on flashheat after one changed import.

python examples/article_interface.py
"""

import torch

from flashheat.compat.article import diffusion_func, torch_diffusion
from flashheat.mesh import icosphere
from flashheat.operators import compute_operators


def main() -> None:
    """Diffuse two feature sets on a sphere by both functions, and learn nothing but the times."""
    operators = compute_operators(icosphere(3), k_eig=32)
    basis, mass, evalues = (t.float() for t in (operators.evecs, operators.mass, operators.evals))
    x = torch.randn(2, len(mass), 16, generator=torch.Generator().manual_seed(0))  # a leading batch axis
    times = torch.full((16,), 0.1, requires_grad=True)

    out, spectral = diffusion_func(basis, x, mass, evalues, times)
    expected, _ = torch_diffusion(x, basis, mass, evalues, times)
    out.square().sum().backward()
    print(f"out {tuple(out.shape)}, spectral {tuple(spectral.shape)}")
    print(f"largest difference from plain PyTorch: {(out - expected).abs().max():.1e}")
    print(f"longer times smooth more: d_times is negative in {int((times.grad < 0).sum())} of 16 channels")


if __name__ == "__main__":
    main()
