"""The helper of the original that its users' scripts call.

It is separate because scripts say `diffusion_net.utils.toNP`.
"""

import numpy as np
from torch import Tensor


def toNP(x: Tensor) -> np.ndarray:
    """The tensor as a numpy array on the CPU."""
    return x.detach().cpu().numpy()
