"""The ops among PyTorch's own tools: export, ahead-of-time compilation, checkpointing, data parallelism, transforms."""

import os
import shutil
import socket
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

from flashheat.errors import FlashheatError
from flashheat.ops import diffuse
from flashheat.testing import diffusion_case

ARGUMENTS = ("x", "mass", "evals", "evecs", "times")


class Layer(nn.Module):
    """`diffuse` between two linear maps."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(channels, channels), nn.Linear(channels, 2)
        self.times = nn.Parameter(torch.rand(channels))

    def forward(self, x, mass, evals, evecs, offsets=None):
        return self.after(diffuse(self.before(x), mass, evals, evecs, self.times, offsets))


def inputs_of(sizes, seed=0) -> tuple[torch.Tensor, ...]:
    case = diffusion_case(sizes, 6, 4, dtype=torch.float32, seed=seed)
    rest = () if case.offsets is None else (case.offsets,)
    return (*case.tensors("x", "mass", "evals", "evecs"), *rest)


def dynamic_shapes(packed: bool) -> tuple:
    V, B = Dim("V", min=2), Dim("B", min=2)
    if not packed:
        return ({0: V}, {0: V}, None, {0: V})
    return ({0: V}, {0: V}, {0: B}, {0: V}, {0: B + 1})


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return Layer(4).eval()


@pytest.mark.parametrize(("sizes", "other"), [(30, 47), ([20, 5, 11], [7, 7, 9, 30])], ids=["one mesh", "packed"])
def test_an_exported_module_serves_meshes_of_any_size(layer, sizes, other):
    exported = torch.export.export(layer, inputs_of(sizes), dynamic_shapes=dynamic_shapes(not isinstance(sizes, int)))
    for n in (sizes, other):
        at = inputs_of(n, seed=1)
        torch.testing.assert_close(exported.module()(*at), layer(*at))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs the C++ compiler g++")
def test_a_module_compiled_ahead_of_time_serves_meshes_of_any_size(layer, tmp_path):
    with torch.no_grad():
        exported = torch.export.export(layer, inputs_of(30), dynamic_shapes=dynamic_shapes(packed=False))
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "layer.pt2"))
        compiled = torch._inductor.aoti_load_package(package)
        for n in (30, 47):
            at = inputs_of(n, seed=1)
            torch.testing.assert_close(compiled(*at), layer(*at))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_derivatives(use_reentrant):
    case = diffusion_case(40, 6, 4)
    inputs = [t.requires_grad_() for t in case.tensors(*ARGUMENTS)]
    expected = torch.autograd.grad(diffuse(*inputs).square().sum(), inputs)
    y = torch.utils.checkpoint.checkpoint(diffuse, *inputs, use_reentrant=use_reentrant)
    for t in inputs:
        t.grad = None
    y.square().sum().backward()
    for t, grad in zip(inputs, expected, strict=True):
        torch.testing.assert_close(t.grad, grad)


def _train_one_mesh_each(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = socket.if_nameindex()[0][1]  # the loopback: the host's name need not resolve
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(Layer(4))
    net(*inputs_of(30 + 10 * rank, seed=rank)).square().mean().backward()
    torch.save([p.grad for p in net.parameters()], Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_data_parallel_training_averages_the_derivatives_of_two_meshes(tmp_path):
    torch.multiprocessing.spawn(_train_one_mesh_each, args=(str(tmp_path),), nprocs=2)
    torch.manual_seed(0)
    net = Layer(4)
    loss = sum(net(*inputs_of(30 + 10 * rank, seed=rank)).square().mean() for rank in range(2)) / 2
    expected = torch.autograd.grad(loss, list(net.parameters()))
    for rank in range(2):
        for got, grad in zip(torch.load(tmp_path / f"{rank}.pt"), expected, strict=True):
            torch.testing.assert_close(got, grad)


def test_forward_over_forward_is_the_second_derivative():
    case = diffusion_case(20, 5, 3)
    x, mass, evals, evecs, times = case.tensors(*ARGUMENTS)

    def along(t):
        return torch.func.jvp(lambda t: diffuse(x, mass, evals, evecs, t), (t,), (torch.ones_like(t),))[1]

    second = torch.func.jvp(along, (times,), (torch.ones_like(times),))[1]
    w = evals[:, None] ** 2 * torch.exp(-evals[:, None] * times)
    torch.testing.assert_close(second, evecs @ (w * (evecs.T @ (mass[:, None] * x))))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_leaves_the_sums_in_float32(dtype):
    case = diffusion_case(4000, 8, 4, dtype=torch.float32)
    expected = diffuse(*case.tensors(*ARGUMENTS), return_spectral=True)
    with torch.autocast("cpu", dtype=dtype):
        got = diffuse(*case.tensors(*ARGUMENTS), return_spectral=True)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("op", ["packed_reduce", "packed_expand"])
def test_transforms_of_the_raw_library_op_are_right_or_refused(op):
    left, offsets = torch.randn(9, 3), torch.tensor([0, 4, 4, 9])
    right = torch.randn(9, 2) if op == "packed_reduce" else torch.randn(3, 3, 2)
    run = getattr(torch.ops.flashheat, op)
    with pytest.raises(FlashheatError, match="no forward-mode derivative"):
        torch.func.jvp(lambda a: run(a, right, offsets), (left,), (left,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(FlashheatError, match="no forward-mode derivative"):
        run(torch.autograd.forward_ad.make_dual(left, left), right, offsets)
    batch = torch.func.vmap(lambda a: run(a, right, offsets))(torch.stack([left, -left]))  # one by one, says torch
    torch.testing.assert_close(batch[1], run(-left, right, offsets))
    with pytest.raises(FlashheatError, match=r"no derivative under torch\.func"):
        torch.func.grad(lambda a: run(a, right, offsets).square().sum())(left)
