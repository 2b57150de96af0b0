"""The steps of the guide on a GPU: each variant as exact as its products allow."""

import pytest
import torch

from tests import guide

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("step", guide.STEPS)
@pytest.mark.parametrize(("V", "K", "C"), [(1001, 128, 128), (20_011, 100, 48)])
def test_every_variant_matches_the_reference(step, V, K, C):
    harness = guide.module("harness")
    case = harness.arguments(V, K, C, "cuda")
    for name, run in guide.module(step).variants().items():
        assert harness.error(run, case) < guide.TOLERANCES.get(name, 2e-6), name
