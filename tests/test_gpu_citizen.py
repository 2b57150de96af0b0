"""The ops among PyTorch's own tools on a GPU: compilers, graphs, transforms; each held to the reference."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import grad, jvp, vmap

from flashheat.bench.cases import random_case
from flashheat.ops import diffuse, diffuse_reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
ROOT = Path(__file__).parents[1]
NAMES = ("x", "mass", "evals", "evecs", "times")


def inputs_of(V: int, sizes: list[int] | None = None, dtype: torch.dtype = torch.float32) -> tuple[list, torch.Tensor]:
    """The five tensors, which require derivatives, and the offsets."""
    case = random_case(V, 32, 16, dtype, sizes=sizes)
    return [getattr(case, name).requires_grad_() for name in NAMES], case.offsets


class Layer(nn.Module):
    """`diffuse` between two linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(16, 16), nn.Linear(16, 2)
        self.times = nn.Parameter(torch.rand(16))

    def forward(self, x, mass, evals, evecs, offsets=None):
        return self.after(diffuse(self.before(x), mass, evals, evecs, self.times, offsets))


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return Layer().cuda()


@pytest.mark.parametrize("sizes", [None, [500, 0, 77]], ids=["one mesh", "packed"])
def test_compiled_whole_without_a_recompilation_a_mesh(sizes):
    torch._dynamo.reset()
    compiled = torch.compile(diffuse, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (1000, 1001, 2048, 7):
            inputs, offsets = inputs_of(n, None if sizes is None else [*sizes, n])
            got, wanted = compiled(*inputs, offsets), diffuse(*inputs, offsets)
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)  # the same kernel
            g = torch.randn_like(got)
            found = torch.autograd.grad(got, inputs, g), torch.autograd.grad(wanted, inputs, g)
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_compiled_in_half_precision_under_autocast(layer):
    torch._dynamo.reset()
    inputs, _ = inputs_of(3000)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        got, wanted = torch.compile(layer, fullgraph=True)(*inputs[:4]), layer(*inputs[:4])
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)


def test_compiled_with_graphs_gives_the_same_training_steps(layer):
    torch._dynamo.reset()
    inputs, _ = inputs_of(1000)
    arguments = [t.detach() for t in inputs[:4]]
    compiled = torch.compile(layer, mode="reduce-overhead", fullgraph=True)
    for _ in range(5):
        layer.zero_grad()
        compiled(*arguments).square().sum().backward()
        got = [p.grad.clone() for p in layer.parameters()]
        wanted = torch.autograd.grad(layer(*arguments).square().sum(), list(layer.parameters()))
        torch.testing.assert_close(got, list(wanted), rtol=1e-4, atol=1e-4)


def test_graphed_callables_need_nothing_of_the_host(layer):
    inputs, _ = inputs_of(1000)
    arguments = tuple(t.detach() for t in inputs[:4])
    wanted = torch.autograd.grad(layer(*arguments).square().sum(), list(layer.parameters()))
    graphed = torch.cuda.make_graphed_callables(layer, arguments)
    for _ in range(3):
        layer.zero_grad()
        graphed(*arguments).square().sum().backward()
        got = [p.grad for p in layer.parameters()]
        torch.testing.assert_close(got, list(wanted), rtol=1e-4, atol=1e-4)


def test_exported_and_compiled_ahead_of_time(tmp_path):
    def run(how):
        command = [sys.executable, "-m", "tests.ahead_of_time", how, "cuda", str(tmp_path)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    if run("plain").returncode == -signal.SIGSEGV:
        pytest.skip("torch's loader crashes here on a package of two linear layers")
    done = run("eager")
    assert done.returncode == 0, done.stderr[-3000:]


def test_exported_with_any_number_of_vertices(layer):
    V = torch.export.Dim("V", min=2)
    small, large = ([t.detach() for t in inputs_of(n)[0][:4]] for n in (1000, 2077))
    with torch.no_grad():
        program = torch.export.export(layer, tuple(small), dynamic_shapes=({0: V}, {0: V}, None, {0: V}))
        torch.testing.assert_close(program.module()(*large), layer(*large))


def test_checkpointing_gives_the_same_derivatives():
    inputs, _ = inputs_of(1000)
    expected = torch.autograd.grad(diffuse(*inputs).square().sum(), inputs)
    y = torch.utils.checkpoint.checkpoint(diffuse, *inputs, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), inputs), expected, rtol=0, atol=0)


def test_transforms_in_every_mixture():
    (x, mass, evals, evecs, times), _ = inputs_of(300, dtype=torch.float32)
    x, mass, evals, evecs, times = (t.detach().double() for t in (x, mass, evals, evecs, times))
    tangent = torch.randn_like(x), torch.randn_like(times)

    def mixtures(run):
        def loss(x, times):
            return run(x, mass, evals, evecs, times).pow(3).sum()

        gradient = grad(loss, (0, 1))

        def along(*at):
            return sum((d * t).sum() for d, t in zip(gradient(*at), tangent, strict=True))

        def slope(*at):
            return jvp(loss, at, tangent)[1]

        batch = torch.stack([x, -2 * x])
        return {
            "vmap": vmap(lambda x: run(x, mass, evals, evecs, times))(batch),
            "grad": gradient(x, times),
            "jvp": slope(x, times),
            "grad of grad": grad(along, (0, 1))(x, times),
            "jvp of grad": jvp(gradient, (x, times), tangent)[1],
            "grad of jvp": grad(slope, (0, 1))(x, times),
            "vmap of grad": vmap(lambda x: gradient(x, times)[1])(batch),
        }

    wanted = mixtures(diffuse_reference)
    for name, got in mixtures(diffuse).items():
        torch.testing.assert_close(got, wanted[name], msg=lambda m, name=name: f"{name}: {m}")
    single = mixtures(lambda x, *rest: diffuse(x.float(), *(t.float() for t in rest)).double())
    for name, got in single.items():
        torch.testing.assert_close(got, wanted[name], rtol=1e-3, atol=1e-2, msg=lambda m, name=name: f"{name}: {m}")


def test_eight_processes_start_on_one_fresh_triton_cache(tmp_path):
    code = (  # ends by _exit: PyTorch's backward threads may abort a teardown that they meet (pytorch issue 38228)
        "import os, torch; from flashheat.bench.cases import random_case; from flashheat.ops import diffuse;"
        "c = random_case(500, 24, 12); y = diffuse(c.x.requires_grad_(), c.mass, c.evals, c.evecs, c.times);"
        "torch.autograd.grad(y, c.x, c.g); torch.cuda.synchronize(); os._exit(0)"
    )
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    ends = [(process.communicate()[1], process.returncode) for process in processes]
    assert [status for _, status in ends] == [0] * 8, ends
    assert any(tmp_path.rglob("*.cubin"))
