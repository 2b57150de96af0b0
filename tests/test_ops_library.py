"""The library ops that compilers see: their contract with torch, and the same numbers as the reference."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from flashheat.errors import FlashheatError
from flashheat.ops import diffuse, diffuse_reference, dispatch, from_basis, to_basis
from flashheat.ops.basis import from_basis_reference, to_basis_reference
from flashheat.testing import diffusion_case

ops = torch.ops.flashheat
NAMES = ("x", "mass", "evals", "evecs", "times")
SIZES = {"one mesh": 30, "packed": [9, 0, 14]}


def inputs_of(sizes, dtype=torch.float64, seed=0):
    """The five tensors, which require derivatives, and the offsets."""
    case = diffusion_case(sizes, 6, 4, dtype=dtype, seed=seed)
    return [t.requires_grad_() for t in case.tensors(*NAMES)], case.offsets


def batch(dtype=torch.float64):
    """Three meshes of one size along a leading axis."""
    tensors = [torch.rand(shape, dtype=dtype) for shape in ((3, 20, 4), (3, 20), (3, 6), (3, 20, 6), (4,))]
    return [t.requires_grad_() for t in tensors], None


CASES = {name: lambda n=n: inputs_of(n) for name, n in SIZES.items()} | {"batch": batch}


@pytest.fixture
def traced(monkeypatch):
    """On a CPU, too, let compilers see the ops as they do on a GPU."""
    monkeypatch.setattr(dispatch, "_may_take_kernel", lambda *_: True)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CASES)
def test_opcheck_is_clean(name):
    (x, mass, evals, evecs, times), offsets = CASES[name]()
    torch.library.opcheck(ops.diffuse, (x, mass, evals, evecs, times, offsets))
    torch.library.opcheck(ops.to_basis, (x, mass, evecs, offsets))
    torch.library.opcheck(ops.to_basis, (x, None, evecs, offsets))
    s = to_basis(x, mass, evecs, offsets).detach()
    torch.library.opcheck(ops.from_basis, (s.clone().requires_grad_(), evecs, offsets))
    tensors = [t.detach() for t in (x, mass, evals, evecs, times)]
    for needs in ((True, True, True), (False, True, False)):
        arguments = (tensors[0], None, *tensors[1:], offsets, s, *needs)
        torch.library.opcheck(ops.diffuse_backward, arguments)


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_of_both_orders_are_those_of_the_reference(name):
    inputs, offsets = CASES[name]()

    def found(run):
        y, s = run(*inputs, offsets)
        first = torch.autograd.grad((y**2).sum() + (s**3).sum(), inputs, create_graph=True)
        return y, s, *first, *torch.autograd.grad(sum((d**2).sum() for d in first), inputs)

    wanted = found(lambda *a: diffuse_reference(*a, return_spectral=True))
    for got, exact in zip(found(ops.diffuse), wanted, strict=True):
        torch.testing.assert_close(got, exact)


def test_of_one_output_or_some_arguments_alone_the_derivatives_are_right():
    (x, mass, evals, evecs, times), _ = inputs_of(30)
    constants = [t.detach() for t in (mass, evals, evecs)]
    for k in (0, 1):
        got = ops.diffuse(x, *constants, times, None)[k].square().sum()
        wanted = diffuse_reference(x, *constants, times, return_spectral=True)[k].square().sum()
        torch.testing.assert_close(torch.autograd.grad(got, [x, times]), torch.autograd.grad(wanted, [x, times]))


def test_the_projections_have_the_derivatives_of_the_reference():
    (x, mass, _, evecs, _), offsets = inputs_of([9, 0, 14])
    got, wanted = ops.to_basis(x, mass, evecs, offsets), to_basis_reference(x, mass, evecs, offsets)
    g = torch.randn_like(got)
    torch.testing.assert_close(
        torch.autograd.grad(got, [x, mass, evecs], g), torch.autograd.grad(wanted, [x, mass, evecs], g)
    )
    s = got.detach().requires_grad_()
    got, wanted = ops.from_basis(s, evecs, offsets), from_basis_reference(s, evecs, offsets)
    g = torch.randn_like(got)
    torch.testing.assert_close(torch.autograd.grad(got, [s, evecs], g), torch.autograd.grad(wanted, [s, evecs], g))


@pytest.mark.parametrize("sizes", [None, [5, 1, 30]], ids=["one mesh", "packed"])
def test_compiled_whole_for_all_sizes_at_once_forward_and_backward(traced, sizes):
    graphs = []

    def backend(module, _):
        graphs.append(module)
        return module.forward

    compiled = torch.compile(diffuse, fullgraph=True, dynamic=True, backend=backend)
    for n in (50, 51, 77):
        inputs, offsets = inputs_of(n if sizes is None else [*sizes, n], seed=n)
        got, wanted = compiled(*inputs, offsets), diffuse(*inputs, offsets)
        torch.testing.assert_close(got, wanted)
        g = torch.randn_like(got)
        torch.testing.assert_close(torch.autograd.grad(got, inputs, g), torch.autograd.grad(wanted, inputs, g))
    assert len(graphs) == 1
    assert any(node.target is ops.diffuse for node in graphs[0].graph.nodes)


@pytest.mark.parametrize("name", CASES)
def test_an_ahead_of_time_autograd_traces_the_ops(traced, name):
    inputs, offsets = CASES[name]()

    def loss(*tensors):
        y, s = diffuse(*tensors, offsets, return_spectral=True)
        again = from_basis(to_basis(y, tensors[1], tensors[3], offsets), tensors[3], offsets)
        return (y**2).sum() + (s**2).sum() + (again**3).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    got, wanted = compiled(*inputs), loss(*inputs)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(torch.autograd.grad(got, inputs), torch.autograd.grad(wanted, inputs))


class Layer(nn.Module):
    def forward(self, x, mass, evals, evecs, times):
        return diffuse(x, mass, evals, evecs, times)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs the C++ compiler g++")
def test_the_op_in_a_program_compiled_ahead_of_time(tmp_path):
    command = [sys.executable, "-m", "tests.ahead_of_time", "library", "cpu", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


def test_an_exported_program_calls_the_op_for_any_size(traced):
    at = [t.detach() for t in inputs_of(30)[0]]
    V = torch.export.Dim("V", min=2)
    program = torch.export.export(Layer(), tuple(at), dynamic_shapes=({0: V}, {0: V}, None, {0: V}, None))
    assert any(node.target is ops.diffuse.default for node in program.graph.nodes)
    other = [t.detach() for t in inputs_of(47, seed=1)[0]]
    torch.testing.assert_close(program.module()(*other), diffuse(*other))


def dual(run, at):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(run(forward_ad.make_dual(at, at))).tangent


REVERSE = {
    "grad": lambda run, at: grad(lambda t: run(t).sum())(at),
    "vjp": lambda run, at: vjp(run, at),
    "jacrev": lambda run, at: jacrev(run)(at),
    "vmap of grad": lambda run, at: vmap(grad(lambda t: run(t).sum()))(torch.stack([at, at])),
}
FORWARD = {
    "dual level": dual,
    "jvp": lambda run, at: jvp(run, (at,), (at,))[1],
    "jacfwd": lambda run, at: jacfwd(run)(at),
    "jvp of jvp": lambda run, at: jvp(lambda t: jvp(run, (t,), (at,))[1], (at,), (at,))[1],
    "grad of jvp": lambda run, at: grad(lambda t: jvp(run, (t,), (at,))[1].sum())(at),
}
TRANSFORMS = REVERSE | FORWARD


def raw(sizes):
    """Each library op as a function of one tensor, and a point."""
    (x, mass, evals, evecs, times), offsets = inputs_of(sizes)
    x, mass, evals, evecs, times = (t.detach() for t in (x, mass, evals, evecs, times))
    s, needs = to_basis(x, mass, evecs, offsets), (True, True, True)
    runs = {
        "diffuse": (lambda t: ops.diffuse(t, mass, evals, evecs, times, offsets)[0], x),
        "to_basis": (lambda t: ops.to_basis(t, mass, evecs, offsets), x),
        "from_basis": (lambda t: ops.from_basis(t, evecs, offsets), s),
        "diffuse_backward": (
            lambda t: ops.diffuse_backward(t, None, mass, evals, evecs, times, offsets, s, *needs)[0], x
        ),
    }  # fmt: skip
    if offsets is None:
        return runs
    packed = {
        "packed_reduce": (lambda t: ops.packed_reduce(t, evecs, offsets), x),
        "packed_expand": (lambda t: ops.packed_expand(evecs, t, offsets), s),
    }
    return runs | packed


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_what_a_raw_op_has_no_rule_for_it_refuses_in_one_line(sizes, transform):
    what = "under torch.func" if transform in REVERSE else "forward-mode"
    for name, (run, at) in raw(sizes).items():
        with pytest.raises(FlashheatError, match=rf"^flashheat::{name} has no .*{what}.*: call flashheat.diffuse"):
            TRANSFORMS[transform](run, at)


@pytest.mark.parametrize("transform", ["grad", "jvp", "dual level"])
def test_under_a_compiler_too_a_raw_op_never_gives_a_tangent_of_zero(transform):
    for name, (run, at) in raw([9, 0, 14]).items():
        torch._dynamo.reset()
        compiled = torch.compile(lambda t, run=run: TRANSFORMS[transform](run, t), backend="aot_eager")
        either = FlashheatError, torch._dynamo.exc.TorchRuntimeError  # before 2.14 torch's own, which quotes ours
        with pytest.raises(either, match=f"flashheat::{name} has no"):
            compiled(at)


@pytest.mark.parametrize(
    "transform", ["grad", "jacrev", "dual level", "jvp", "jacfwd", "grad of jvp", "hessian", "vmap"]
)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_compiled_transforms_of_the_ops_are_those_of_eager_calls(traced, sizes, transform):
    of_both = {
        "hessian": lambda run, at: hessian(lambda t: (run(t) ** 2).sum())(at),
        "vmap": lambda run, at: vmap(run)(at[None]),
    }
    if transform == "jacrev" and sizes != 30 and torch.__version__ < "2.13":
        pytest.skip(
            "compiled jacrev of whatever is left out of what is compiled was zero in that torch, of t.sin() too"
        )
    transformed = (TRANSFORMS | of_both)[transform]
    (x, *rest), offsets = inputs_of(sizes)
    x, mass, evals, evecs, times = (t.detach() for t in (x, *rest))
    for run in (lambda t: diffuse(t, mass, evals, evecs, times, offsets), lambda t: to_basis(t, mass, evecs, offsets)):
        torch._dynamo.reset()
        compiled = torch.compile(lambda t, run=run: transformed(run, t), backend="aot_eager", fullgraph=offsets is None)
        torch.testing.assert_close(compiled(x), transformed(run, x))


def test_a_packed_batch_compiled_whole_within_a_transform_is_refused():
    (x, *rest), offsets = inputs_of([9, 0, 14])
    x, rest = x.detach(), [t.detach() for t in rest]
    compiled = torch.compile(
        lambda t: jvp(lambda u: diffuse(u, *rest, offsets), (t,), (t,))[1], backend="aot_eager", fullgraph=True
    )
    with pytest.raises(torch._dynamo.exc.Unsupported, match="a packed batch must be compiled outside"):
        compiled(x)


def test_the_backward_op_by_itself_has_no_derivative():
    (x, mass, evals, evecs, times), _ = inputs_of(30)
    s = to_basis(x, mass, evecs).detach()
    e = ops.diffuse_backward(x, None, mass, evals, evecs, times, None, s, True, False, False)[0]
    with pytest.raises(FlashheatError, match="cannot be differentiated"):
        e.sum().backward()
