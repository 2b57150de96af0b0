"""Every step of the guide computes what the reference does, in a process that `tests/test_diffuse_triton.py` starts."""

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 from the start of the process", allow_module_level=True)

from flashheat.bench.cases import random_case
from flashheat.ops import to_basis
from flashheat.ops.basis import decay
from tests import guide

harness = guide.module("harness")
NOT_HERE = {"torch.compile", "bf16x3"}  # needs a compiler; the interpreter's products of bf16 are wrong


@pytest.mark.parametrize("step", guide.STEPS)
@pytest.mark.parametrize(("V", "K", "C"), [(1, 1, 1), (101, 19, 7), (130, 40, 33)])
def test_every_variant_matches_the_reference(step, V, K, C):
    case = harness.arguments(V, K, C, "cpu")
    variants = guide.module(step).variants()
    assert variants
    for name, run in variants.items():
        if name not in NOT_HERE:
            assert harness.error(run, case) < 2e-6, name


def test_the_backward_pass_has_autograds_derivatives():
    step, five_lines = guide.module("step_12_backward"), guide.module("step_01_five_lines").five_lines
    case = harness.arguments(101, 19, 7, "cpu")
    ours, wanted = (step.derivatives(run, *case) for run in (step.Diffuse.apply, five_lines))
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


def test_packed_meshes_have_the_spectra_of_each():
    c = random_case(0, 19, 7, sizes=[40, 0, 65], device="cpu")
    s = guide.module("step_14_packed_meshes").packed(c.x, c.mass, c.evals, c.evecs, c.times, c.offsets)
    wanted = decay(c.evals, c.times, torch.float32) * to_basis(c.x, c.mass, c.evecs, c.offsets)
    torch.testing.assert_close(s, wanted, rtol=1e-5, atol=1e-5)


def test_a_basis_by_columns_is_read_where_it_lies():
    x, mass, evals, evecs, times = harness.arguments(90, 19, 7, "cpu")
    step = guide.module("step_04_strides_and_masks")
    wanted = step.strided(x, mass, evals, evecs, times)
    torch.testing.assert_close(step.strided(x, mass, evals, evecs.T.contiguous().T, times), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float16, 11), (torch.bfloat16, 8)])
def test_a_cast_before_the_decay_costs_accuracy(dtype, digits):
    generator = torch.Generator().manual_seed(0)
    x_hat, evals, times = (torch.rand(shape, generator=generator) for shape in ((128, 128), (128,), (128,)))
    early, late = guide.module("step_02_the_article").decay_after_cast(x_hat - 0.5, 7 * evals, times, dtype)
    assert early > 1.3 * late
    assert late < 2.0**-digits
