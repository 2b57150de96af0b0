"""The article's interface gives what its text says, in its shapes and dtypes."""

import runpy
from pathlib import Path

import pytest
import torch

from flashheat.compat.article import FlashDiffusion, diffusion_func, torch_diffusion
from flashheat.errors import FlashheatError
from flashheat.testing import diffusion_case


def as_written(x, basis, mass, evals, times):
    """The layer in the field's words, with leading axes by broadcasting."""
    spectral = torch.exp(-evals[..., :, None] * times) * (basis.mT @ (mass[..., None] * x))
    return basis @ spectral, spectral


@pytest.mark.parametrize(
    ("of_x", "of_basis"), [((), ()), ((3,), (3,)), ((2, 3), (2, 3)), ((4,), ()), ((2, 1), (3,)), ((0,), ())]
)
def test_leading_axes_broadcast(of_x, of_basis):
    case = diffusion_case(40, 12, 5)
    x = torch.randn(*of_x, 40, 5, dtype=torch.float64)
    basis = case.evecs.expand(*of_basis, 40, 12)
    expected = as_written(x, basis, case.mass, case.evals, case.times)
    for got in (
        torch_diffusion(x, basis, case.mass, case.evals, case.times),
        diffusion_func(basis, x, case.mass, case.evals, case.times),
        FlashDiffusion.apply(basis, x, case.mass, case.evals, case.times),
    ):
        for a, b in zip(got, expected, strict=True):
            assert a.shape == b.shape
            torch.testing.assert_close(a, b)


def test_meshes_without_vertices_have_results_without_rows():
    x, basis, mass, evals, times = torch.randn(0, 0, 3), torch.randn(0, 4), torch.rand(0), torch.rand(4), torch.rand(3)
    for out, spectral in (torch_diffusion(x, basis, mass, evals, times), diffusion_func(basis, x, mass, evals, times)):
        assert out.shape == (0, 0, 3)
        assert spectral.shape == (0, 4, 3)


def test_every_argument_has_its_derivative():
    case = diffusion_case(9, 4, 3)
    inputs = [t.requires_grad_() for t in case.tensors("evecs", "x", "mass", "evals", "times")]
    assert torch.autograd.gradcheck(diffusion_func, inputs)


def test_both_results_have_the_dtype_of_x():
    case = diffusion_case(30, 8, 4, dtype=torch.float32)
    x = case.x.bfloat16()
    for got in (
        diffusion_func(case.evecs, x, case.mass, case.evals, case.times),
        torch_diffusion(x, case.evecs, case.mass, case.evals, case.times),
    ):
        assert {t.dtype for t in got} == {torch.bfloat16}


def test_a_mistake_is_one_line_that_names_the_arguments():
    case = diffusion_case(30, 8, 4)
    with pytest.raises(
        FlashheatError, match=r"^`x` must be \[..., V, C\]: got x \[30\]. A single column is `x\[:, None\]`.$"
    ):
        diffusion_func(case.evecs, case.x[:, 0], case.mass, case.evals, case.times)
    with pytest.raises(FlashheatError, match=r"^`mass` must be a torch.Tensor \[..., V\]: got list. torch.as_tensor"):
        torch_diffusion(case.x, case.evecs, [1.0], case.evals, case.times)
    for run in (lambda x, basis: torch_diffusion(x, basis, case.mass, case.evals, case.times),
                lambda x, basis: diffusion_func(basis, x, case.mass, case.evals, case.times)):  # fmt: skip
        with pytest.raises(FlashheatError, match=r"evecs is basis, evals is (evalues|e, times is d) here"):
            run(case.x, case.evecs[:-1])
    for times in (case.times[:1], case.times[None]):
        with pytest.raises(FlashheatError, match="times"):
            torch_diffusion(case.x, case.evecs, case.mass, case.evals, times)
    for time, got in ((0.1, "float"), (torch.tensor(0.1), r"d \[\]")):
        with pytest.raises(
            FlashheatError, match=rf"^`d` must be .*\[C\]: got {got}. (For one time t, pass|One for all is)"
        ):
            diffusion_func(case.evecs, case.x, case.mass, case.evals, time)
    with pytest.raises(FlashheatError, match=r"leading axes must broadcast .*: got x \[2, 30, 4\], .* Give each those"):
        diffusion_func(case.evecs.expand(3, 30, 8), case.x.expand(2, 30, 4), case.mass, case.evals, case.times)


def test_the_example_runs(capsys):
    path = Path(__file__).parents[1] / "examples" / "article_interface.py"
    runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr().out
    assert "out (2, 642, 16), spectral (2, 32, 16)" in said
    assert "in 16 of 16 channels" in said
