"""The surface of nmwsharp/diffusion-net: `from flashheat.compat import diffusion_net` serves an existing script."""

from flashheat.compat.diffusion_net import geometry as geometry
from flashheat.compat.diffusion_net import layers as layers
from flashheat.compat.diffusion_net import utils as utils
