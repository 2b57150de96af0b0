"""The ops against closed forms, their adjoint, their laws, and every way to differentiate them (float64)."""

import re
import shutil

import pytest
import torch
from torch.func import grad, jvp, vmap

from flashheat.errors import FlashheatError
from flashheat.ops import diffuse, diffuse_with_gradient, from_basis, to_basis
from flashheat.testing import DiffusionCase, diffusion_case

CASES = {
    "one mesh": diffusion_case(63, 7, 5),
    "one vertex": diffusion_case(1, 3, 2),
    "no vertex": diffusion_case(0, 3, 2),
    "leading axis": diffusion_case([17, 17, 17], 5, 3, leading=True),
    "packed": diffusion_case([20, 1, 0, 33], 6, 4),
    "packed alone": diffusion_case([12], 5, 3),
}
DIFFUSE_ARGUMENTS = ("x", "mass", "evals", "evecs", "times")


def _diffuse(case: DiffusionCase, **kwargs):
    return diffuse(*case.tensors(*DIFFUSE_ARGUMENTS), case.offsets, **kwargs)


def _meshes(case: DiffusionCase):
    """Each mesh of a case by itself: (rows of the vertices, index of its evals)."""
    if case.x.ndim == 3:
        return [((b,), (b,)) for b in range(case.x.shape[0])]
    if case.offsets is None:
        return [((slice(None),), ())]
    return [((slice(*case.offsets[b : b + 2].tolist()),), (b,)) for b in range(len(case.offsets) - 1)]


@pytest.mark.parametrize("name", CASES)
def test_diffuse_is_the_sum_over_the_basis(name):
    case = CASES[name]
    y, s = _diffuse(case, return_spectral=True)
    assert y.shape == case.x.shape
    for rows, index in _meshes(case):
        x, mass, evecs, evals = case.x[rows], case.mass[rows], case.evecs[rows], case.evals[index]
        expected = torch.zeros_like(x)
        for k in range(evals.shape[-1]):
            for c in range(x.shape[-1]):
                coefficient = torch.exp(-evals[k] * case.times[c]) * (evecs[:, k] * mass * x[:, c]).sum()
                torch.testing.assert_close(s[index][k, c], coefficient)
                expected[:, c] += coefficient * evecs[:, k]
        torch.testing.assert_close(y[rows], expected)


@pytest.mark.parametrize("name", CASES)
def test_basis_and_gradients_are_parts_of_the_same_expansion(name):
    case = CASES[name]
    y, gX, gY, s = diffuse_with_gradient(*case.tensors(), case.offsets, return_spectral=True)
    torch.testing.assert_close(_diffuse(case, return_spectral=True), (y, s))
    for out, basis in ((y, case.evecs), (gX, case.gradX_evecs), (gY, case.gradY_evecs)):
        torch.testing.assert_close(out, from_basis(s, basis, case.offsets))
    zero_times = _diffuse(DiffusionCase(**{**vars(case), "times": 0 * case.times}))
    x_hat = to_basis(case.x, case.mass, case.evecs, case.offsets)
    torch.testing.assert_close(zero_times, from_basis(x_hat, case.evecs, case.offsets))


@pytest.mark.parametrize("name", [n for n in CASES if n != "no vertex"])
def test_every_derivative_to_second_order(name):
    case = CASES[name]
    inputs = [t.clone().requires_grad_() for t in case.tensors()]

    def with_gradient(*tensors):
        return diffuse_with_gradient(*tensors, case.offsets, return_spectral=True)

    assert torch.autograd.gradcheck(with_gradient, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(with_gradient, inputs, fast_mode=True)


@pytest.mark.parametrize("name", ["one mesh", "packed"])
def test_gradients_are_the_derived_adjoint(name):
    case = CASES[name]
    inputs = [t.clone().requires_grad_() for t in case.tensors(*DIFFUSE_ARGUMENTS)]
    y, s = diffuse(*inputs, case.offsets, return_spectral=True)
    g, h = torch.randn_like(y), torch.randn_like(s)
    found = torch.autograd.grad([y, s], inputs, [g, h])
    expected = [torch.zeros_like(t) for t in inputs]
    for rows, index in _meshes(case):
        x, mass, evecs, evals = (
            t.detach() for t in (case.x[rows], case.mass[rows], case.evecs[rows], case.evals[index])
        )
        w = torch.exp(-evals[:, None] * case.times)
        g_hat = evecs.T @ g[rows] + h[index]
        spread = evecs @ (w * g_hat)
        expected[0][rows] = mass[:, None] * spread
        expected[1][rows] = (x * spread).sum(1)
        expected[2][index] = -(case.times * s[index] * g_hat).sum(1)
        expected[3][rows] = g[rows] @ s[index].T + (mass[:, None] * x) @ (w * g_hat).T
        expected[4] -= (evals[:, None] * s[index] * g_hat).sum(0)
    torch.testing.assert_close(found, tuple(expected))


@pytest.mark.parametrize("name", ["one mesh", "packed"])
class TestFunctionTransforms:
    """Each `torch.func` transform against plain autograd or a loop."""

    def _loss(self, case):
        weight = torch.cos(torch.arange(case.x.numel(), dtype=torch.float64)).view_as(case.x)

        def loss(x, times):
            return (weight * diffuse(x, case.mass, case.evals, case.evecs, times, case.offsets) ** 2).sum()

        return loss

    def test_vmap_over_x_and_times(self, name):
        case = CASES[name]
        xs, times = torch.randn(3, *case.x.shape, dtype=torch.float64), torch.rand(3, case.x.shape[-1]).double()

        def run(x, t):
            return diffuse(x, case.mass, case.evals, case.evecs, t, case.offsets, return_spectral=True)

        y, s = vmap(run)(xs, times)
        for i in range(3):
            torch.testing.assert_close((y[i], s[i]), run(xs[i], times[i]))

    def test_grad_and_grad_of_grad(self, name):
        case, loss = CASES[name], self._loss(CASES[name])
        x, times = case.x.clone().requires_grad_(), case.times.clone().requires_grad_()
        first = torch.autograd.grad(loss(x, times), (x, times), create_graph=True)
        torch.testing.assert_close(grad(loss, (0, 1))(case.x, case.times), first)
        second = torch.autograd.grad(first[1].sum() + first[0].sum(), (x, times))
        twice = grad(lambda a, b: sum(d.sum() for d in grad(loss, (0, 1))(a, b)), (0, 1))
        torch.testing.assert_close(twice(case.x, case.times), second)

    def test_jvp_and_its_mixtures_with_grad(self, name):
        case, loss = CASES[name], self._loss(CASES[name])
        point = (case.x, case.times)
        tangent = (torch.randn_like(case.x), torch.randn_like(case.times))
        gradient = grad(loss, (0, 1))

        def along(*at):
            return sum((d * t).sum() for d, t in zip(gradient(*at), tangent, strict=True))

        slope = jvp(loss, point, tangent)[1]
        torch.testing.assert_close(slope, along(*point))
        hessian_times_tangent = grad(along, (0, 1))(*point)
        torch.testing.assert_close(jvp(gradient, point, tangent)[1], hessian_times_tangent)
        grad_of_jvp = grad(lambda *at: jvp(loss, at, tangent)[1], (0, 1))
        torch.testing.assert_close(grad_of_jvp(*point), hessian_times_tangent)


@pytest.mark.parametrize("sizes", [None, [5, 1, 30], [40, 3, 11]], ids=["one mesh", "packed", "packed, other sizes"])
def test_compiled_without_a_break_and_without_a_recompilation_a_mesh(sizes):
    torch._dynamo.reset()
    graphs = []

    def backend(module, _):
        graphs.append(module)
        return module.forward

    compiled = torch.compile(diffuse, fullgraph=True, dynamic=True, backend=backend)
    for n in (50, 51, 77):
        case = diffusion_case(n if sizes is None else [*sizes, n], 6, 4, seed=n)
        torch.testing.assert_close(compiled(*case.tensors(*DIFFUSE_ARGUMENTS), case.offsets), _diffuse(case))
    assert len(graphs) == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_what_disagrees_is_told_with_its_sizes_under_a_compiler_too(backend):
    right = dict(zip(DIFFUSE_ARGUMENTS, diffusion_case(30, 6, 4).tensors(*DIFFUSE_ARGUMENTS), strict=True))
    lines = {
        "mass": "`mass` must have one entry per vertex of `x`: got mass [29], x [30, 4]. Were the operators",
        "evals": "`evals` must have one entry per column of `evecs`, [6]: got evals [5], evecs [30, 6].",
        "times": "`times` must have one entry per channel of `x`: got times [3], x [30, 4].",
    }
    for name, line in lines.items():
        wrong = right | {name: right[name][:-1]}
        for fullgraph, kind in ((True, torch._dynamo.exc.Unsupported), (False, FlashheatError)):
            torch._dynamo.reset()
            compiled = torch.compile(diffuse, fullgraph=fullgraph, dynamic=True, backend=backend)
            with pytest.raises(kind, match=re.escape(line)):
                compiled(**wrong)


@pytest.mark.parametrize(
    ("sizes", "backend"), [(30, "aot_eager"), ([20, 0, 11], "aot_eager"), ([20, 0, 11], "inductor")]
)
def test_compiled_forward_and_backward(sizes, backend):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs the C++ compiler g++")
    torch._dynamo.reset()
    case = diffusion_case(sizes, 6, 4, dtype=torch.float32)
    inputs = [t.clone().requires_grad_() for t in case.tensors()]

    def loss(*tensors):
        return sum((o**2).sum() for o in diffuse_with_gradient(*tensors, case.offsets))

    found = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend=backend)(*inputs), inputs)
    torch.testing.assert_close(found, torch.autograd.grad(loss(*inputs), inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["packed_reduce", "packed_expand"])
def test_library_ops_pass_opcheck(op):
    left, offsets = torch.randn(9, 3, requires_grad=True), torch.tensor([0, 4, 4, 9])
    right = torch.randn(9, 2) if op == "packed_reduce" else torch.randn(3, 3, 2)
    torch.library.opcheck(getattr(torch.ops.flashheat, op), (left, right.requires_grad_(), offsets))


class TestLaws:
    case = diffusion_case(200, 20, 3)

    def _y(self, x, times=None):
        c = self.case
        return diffuse(x, c.mass, c.evals, c.evecs, c.times if times is None else times)

    def _dot(self, a, b):
        return (self.case.mass[:, None] * a * b).sum(0)

    def test_conserves_the_integral(self):
        torch.testing.assert_close(self.case.mass @ self._y(self.case.x), self.case.mass @ self.case.x)

    def test_times_add_up(self):
        t = self.case.times
        torch.testing.assert_close(self._y(self._y(self.case.x, t), 2 * t), self._y(self.case.x, 3 * t))

    def test_no_time_is_the_projection_not_the_identity(self):
        y = self._y(self.case.x, torch.zeros(3, dtype=torch.float64))
        torch.testing.assert_close(self._y(y, torch.zeros(3, dtype=torch.float64)), y)
        assert not torch.allclose(y, self.case.x)

    def test_self_adjoint_and_never_expanding(self):
        z = torch.randn_like(self.case.x)
        torch.testing.assert_close(self._dot(self._y(self.case.x), z), self._dot(self.case.x, self._y(z)))
        y = self._y(self.case.x)
        assert (self._dot(y, y) <= self._dot(self.case.x, self.case.x)).all()

    def test_linear_in_x(self):
        z = torch.randn_like(self.case.x)
        torch.testing.assert_close(self._y(2 * self.case.x + z), 2 * self._y(self.case.x) + self._y(z))

    @pytest.mark.parametrize("scale", [1e-3, 1e3])
    def test_scale_of_the_mesh_and_of_the_times_cancel(self, scale):
        c = self.case
        y = diffuse(c.x, c.mass * scale**2, c.evals / scale**2, c.evecs / scale, c.times * scale**2)
        torch.testing.assert_close(y, self._y(c.x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("half_basis", [False, True])
def test_half_features_are_summed_in_float32(dtype, half_basis):
    case = diffusion_case(4000, 16, 4, dtype=torch.float32)
    x, evecs = case.x.to(dtype), case.evecs.to(dtype) if half_basis else case.evecs
    rest = (case.mass, case.evals, evecs, case.times)
    y, s = diffuse(x, *rest, return_spectral=True)
    y_true, s_true = diffuse(x.double(), *(t.double() for t in rest), return_spectral=True)
    assert y.dtype == dtype
    assert s.dtype == torch.float32
    torch.testing.assert_close(s.double(), s_true, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(y.double(), y_true, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


def test_autocast_leaves_the_sums_in_float32():
    case = diffusion_case(4000, 16, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = _diffuse(case)
    torch.testing.assert_close(y, _diffuse(case), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "both"),
    [
        ({"evecs": (62, 7)}, ("evecs [62, 7]", "x [63, 5]")),
        ({"mass": (62,)}, ("mass [62]", "x [63, 5]")),
        ({"evals": (6,)}, ("evals [6]", "evecs [63, 7]")),
        ({"times": (4,)}, ("times [4]", "x [63, 5]")),
        ({"gradX_evecs": (63, 6)}, ("gradX_evecs [63, 6]", "evecs [63, 7]")),
        ({"x": (63,)}, ("x", "[63]")),
        ({"x": (2, 3, 63, 5)}, ("x [2, 3, 63, 5]", "Join leading axes, by `x.flatten(0, -3)`")),
        ({"mass": (63, 1)}, ("mass [63, 1]", "Pass it as [63].")),
        ({"x": (2, 63, 5)}, ("evecs [63, 7]", "Give each the same leading axis")),
        ({"evals": (2, 7)}, ("evals [2, 7]", "such as `evals[0]`")),
    ],
)
def test_an_error_names_both_arguments(change, both):
    arguments = vars(CASES["one mesh"]) | {k: torch.zeros(v, dtype=torch.float64) for k, v in change.items()}
    with pytest.raises(FlashheatError) as error:
        diffuse_with_gradient(**arguments)
    assert all(words in str(error.value) for words in both)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("offsets", [[0, 20, 21, 21, 53], [1, 20, 21, 21, 54], [0, 30, 21, 21, 54], []])
def test_offsets_must_rise_from_zero_to_the_number_of_vertices(offsets):
    case = CASES["packed"]
    with pytest.raises(FlashheatError, match=r"offsets|evals"):
        diffuse(*case.tensors(*DIFFUSE_ARGUMENTS), torch.tensor(offsets, dtype=torch.int64))


ALL = ("diffuse", "to_basis", "from_basis")
SAME_OPERATORS, FOR_ONE_TIME = "Take both from the same operators", "For one time t in all channels, pass `x.new_full"
COEFFICIENTS, OFFSETS = "Coefficients come from `to_basis`", "torch.tensor([0, *sizes]).cumsum(0)"


@pytest.mark.parametrize(
    ("ops", "name", "change", "got", "what_to_do"),
    [
        (ALL[:2], "x", lambda t: t.long(), "torch.int64", "Convert it, by `x.float()`"),
        (ALL[:2], "x", lambda t: t > 0, "torch.bool", "Convert it, by `x.float()`"),
        (ALL[:2], "x", lambda t: t.to(torch.float8_e4m3fn), "float8_e4m3fn", "Convert it, by `x.float()`"),
        (ALL[:2], "x", lambda t: t.to(torch.complex64), "torch.complex64", "Pass `x.real` and `x.imag`"),
        (ALL[:2], "x", lambda t: t[:, 0], "x [54]", "A single column is `x[:, None]`"),
        (ALL[:2], "x", lambda t: t[:, None], "x [54, 1, 4]", "Leave `offsets` out, or the leading axis"),
        (ALL[:1], "evals", lambda t: t[:, :-1], "evals [4, 5], evecs [54, 6]", SAME_OPERATORS),
        (ALL[:1], "evals", lambda t: t[0], "evals [6], evecs [54, 6]", "Pass one for each mesh, 4 in all"),
        (ALL[:1], "times", lambda t: t[:1], "times [1], x [54, 4]", f"{FOR_ONE_TIME}((4,), t)`"),
        (ALL[:1], "times", lambda t: t[0], "times [], x [54, 4]", f"{FOR_ONE_TIME}((4,), t)`"),
        (ALL[2:], "s", lambda t: t[:, :-1], "s [4, 5, 4], evecs [54, 6]", COEFFICIENTS),
        (ALL[2:], "s", lambda t: t.mT, "s [4, 4, 6], evecs [54, 6]", COEFFICIENTS),
        (ALL[2:], "s", lambda t: t[0], "[4, 6, C]: got s [6, 4], evecs [54, 6]", "Pass one for each mesh, 4 in all"),
        (ALL[2:], "s", lambda t: t[..., 0], "s [4, 6], evecs [54, 6]", "One channel is `s[..., None]`"),
        (ALL, "offsets", lambda t: t.int(), "torch.int32 [5]", OFFSETS),
        (ALL, "offsets", lambda t: t.float(), "torch.float32 [5]", OFFSETS),
        (ALL, "offsets", lambda t: t[None], "torch.int64 [1, 5]", OFFSETS),
        (ALL, "offsets", lambda t: t.tolist(), "got list", OFFSETS),
        (ALL, "offsets", lambda t: t + 1, "[1, 21, 22, 22] ... 55", OFFSETS),
        (ALL, "offsets", lambda t: t.flip(0), "[54, 21, 21, 20] ... 0", OFFSETS),
    ],
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_mistake_is_one_line_that_says_what_to_do(ops, name, change, got, what_to_do, compiled):
    case = CASES["packed"]
    tensors = vars(case) | {"s": to_basis(case.x, case.mass, case.evecs, case.offsets)}
    tensors |= {name: change(tensors[name])}
    arguments = {"diffuse": DIFFUSE_ARGUMENTS, "to_basis": ("x", "mass", "evecs"), "from_basis": ("s", "evecs")}
    for op in ops:
        run = {"diffuse": diffuse, "to_basis": to_basis, "from_basis": from_basis}[op]
        torch._dynamo.reset()
        with pytest.raises(FlashheatError) as error:
            (torch.compile(run, backend="eager") if compiled else run)(
                *(tensors[n] for n in arguments[op]), tensors["offsets"]
            )
        line = str(error.value)
        assert line.startswith(f"`{name}` must")
        assert got in line
        assert what_to_do in line[line.index("got ") :]
        assert "\n" not in line


def test_what_is_no_tensor_is_refused_by_name():
    case = dict(zip(DIFFUSE_ARGUMENTS, CASES["one mesh"].tensors(*DIFFUSE_ARGUMENTS), strict=True))
    with pytest.raises(FlashheatError, match=r"^`times` must be a tensor \[C\].*got float, x \[63, 5\]"):
        diffuse(**case | {"times": 0.1})
    for name in ("x", "mass", "evals", "evecs"):
        for bad in (None, case[name].numpy()):
            with pytest.raises(FlashheatError, match=f"^`{name}` must be a torch.Tensor: got {type(bad).__name__}"):
                diffuse(**case | {name: bad})
    with pytest.raises(FlashheatError, match=r"^`offsets` must be an int64 tensor"):
        diffuse(**case, offsets=[0, 63])
    with pytest.raises(FlashheatError, match=r"^`offsets` and `x` must be on one device: .* on meta, x on cpu\. Move"):
        diffuse(**case, offsets=torch.tensor([0, 63], device="meta"))


def test_an_integer_complex_or_float8_argument_is_refused_by_name():
    case = CASES["one mesh"]
    x, *rest = case.tensors(*DIFFUSE_ARGUMENTS)
    for bad in (x.long(), x.to(torch.complex128), x.to(torch.float8_e4m3fn)):
        with pytest.raises(FlashheatError, match=r"`x` must be a real floating-point tensor"):
            diffuse(bad, *rest)


def test_tensors_without_numbers_are_refused():
    tensors = [t.to("meta") for t in CASES["one mesh"].tensors(*DIFFUSE_ARGUMENTS)]
    with pytest.raises(FlashheatError, match=r"`x` must hold numbers: it is on the meta device"):
        diffuse(*tensors)
