"""Layers and networks: thin modules that hold parameters and call `flashheat.ops`."""

from flashheat.nn.blocks import MLP as MLP
from flashheat.nn.blocks import DiffusionNetBlock as DiffusionNetBlock
from flashheat.nn.diffusion import LearnedTimeDiffusion as LearnedTimeDiffusion
from flashheat.nn.diffusion import project_times_ as project_times_
from flashheat.nn.gradient_features import SpatialGradientFeatures as SpatialGradientFeatures
from flashheat.nn.networks import DiffusionNet as DiffusionNet
from flashheat.nn.networks import PointwiseNet as PointwiseNet
from flashheat.nn.upstream import load_upstream as load_upstream
