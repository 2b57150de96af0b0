"""The layers and the network: invariances, learned times, outputs at every element, and the original's weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flashheat import nn
from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh, icosphere
from flashheat.operators import CSR, Operators, compute_operators, hks


@pytest.fixture(scope="module")
def operators() -> Operators:
    return compute_operators(icosphere(2), k_eig=24, dtype=torch.float64)


@pytest.fixture(scope="module")
def other_operators() -> Operators:
    return compute_operators(icosphere(1), k_eig=24, dtype=torch.float64)


def _net(**kwargs) -> nn.DiffusionNet:
    torch.manual_seed(0)
    net = nn.DiffusionNet(3, 5, width=8, depth=2, dropout=False, **kwargs).double()
    for block in net.blocks:
        block.diffusion.diffusion_time.data.uniform_(0.01, 0.2)
    return net


def _x(operators: Operators) -> torch.Tensor:
    return torch.randn(operators.n_verts, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("outputs_at", ["vertices", "faces", "edges", "mesh"])
@pytest.mark.parametrize("with_gradient_features", [True, False])
def test_a_pack_gives_what_each_mesh_gives(operators, other_operators, outputs_at, with_gradient_features):
    net = _net(outputs_at=outputs_at, with_gradient_features=with_gradient_features)
    singles = [net(_x(o), o) for o in (operators, other_operators)]
    packed = net(torch.cat([_x(operators), _x(other_operators)]), Operators.pack([operators, other_operators]))
    joined = torch.stack(singles) if outputs_at == "mesh" else torch.cat(singles)
    torch.testing.assert_close(packed, joined)


def test_outputs_are_means_over_the_elements(operators):
    net = _net()
    at = {where: _net(outputs_at=where)(_x(operators), operators) for where in ("vertices", "faces", "edges", "mesh")}
    vertices = net(_x(operators), operators)
    torch.testing.assert_close(at["vertices"], vertices)
    torch.testing.assert_close(at["faces"][7], vertices[operators.faces[7]].mean(0))
    torch.testing.assert_close(at["edges"][7], vertices[operators.edges[7]].mean(0))
    torch.testing.assert_close(at["mesh"], (operators.mass @ vertices) / operators.mass.sum())


def _turned(operators: Operators, angle: torch.Tensor) -> Operators:
    """The same operators with the tangent frame of each vertex turned by its own angle."""
    rows = torch.repeat_interleave(torch.arange(operators.n_verts), operators.gradX.indptr.diff())
    cos, sin = angle.cos()[rows], angle.sin()[rows]
    X, Y = operators.gradX, operators.gradY
    gradX = CSR(X.indptr, X.indices, cos * X.values + sin * Y.values, X.shape)
    return replace(operators, gradX=gradX, gradY=CSR(X.indptr, X.indices, cos * Y.values - sin * X.values, X.shape))


def test_the_original_variant_does_not_see_the_tangent_frames_and_the_other_does(operators):
    turned = _turned(operators, torch.rand(operators.n_verts, dtype=torch.float64) * 6)
    for variant, invariant in (("diffusion_net", True), ("ulrssm", False)):
        net = _net(gradient_variant=variant)
        same = torch.allclose(net(_x(operators), operators), net(_x(operators), turned), rtol=1e-9, atol=1e-9)
        assert same == invariant


def test_the_order_of_the_vertices_does_not_matter():
    mesh = icosphere(2)
    order = np.random.default_rng(0).permutation(mesh.n_verts)
    shuffled = type(mesh)(mesh.verts[order], np.argsort(order)[mesh.faces])
    net, k = _net(), 16  # 16 = 1 + 3 + 5 + 7: whole eigenspaces of the sphere
    first, second = (compute_operators(m, k_eig=k, dtype=torch.float64) for m in (mesh, shuffled))
    x = _x(first)
    torch.testing.assert_close(net(x, first)[order], net(x[order], second), rtol=1e-6, atol=1e-6)


def test_implicit_dense_is_one_backward_euler_step(operators):
    layer = nn.LearnedTimeDiffusion(3, "implicit_dense").double()
    layer.diffusion_time.data = torch.tensor([0.0, 0.1, 1.0], dtype=torch.float64)
    x = _x(operators)
    y = layer(x, operators)
    L, t = operators.L.to_torch().to_dense(), layer.diffusion_time
    torch.testing.assert_close(
        operators.mass[:, None] * y + t * (L @ y), operators.mass[:, None] * x, atol=1e-6, rtol=0
    )
    for where in ("vertices", "faces"):
        net = _net(diffusion_method="implicit_dense", outputs_at=where)
        net(x, operators).square().sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in net.parameters())


class TestLearnedTimes:
    def test_value_is_clamped_and_gradient_is_not(self):
        layer = nn.LearnedTimeDiffusion(3)
        layer.diffusion_time.data = torch.tensor([-0.3, 0.0, 0.5])
        times = layer.times()
        assert times.tolist() == pytest.approx([1e-8, 1e-8, 0.5])
        times.sum().backward()
        assert layer.diffusion_time.grad.tolist() == [1, 1, 1]

    def test_forward_changes_no_parameter(self, operators):
        layer = nn.LearnedTimeDiffusion(3).double()
        layer.diffusion_time.data = torch.tensor([-0.3, 0.0, 0.5]).double()
        layer(_x(operators), operators)
        assert layer.diffusion_time.tolist() == pytest.approx([-0.3, 0.0, 0.5])

    def test_projection_moves_the_times_of_a_whole_net_back(self):
        net = _net()
        net.blocks[1].diffusion.diffusion_time.data[:2] = torch.tensor([-1.0, 0.3])
        nn.project_times_(net)
        assert net.blocks[1].diffusion.diffusion_time[:2].tolist() == pytest.approx([1e-8, 0.3])

    def test_they_learn_from_zero_as_by_the_originals_rule(self, operators):
        """200 steps from 0: the clamp in forward of the original, and our projection after the step."""
        target = nn.LearnedTimeDiffusion(3).double()
        target.diffusion_time.data = torch.tensor([0.0, 0.02, 0.3]).double()
        x = _x(operators)
        y = target(x, operators).detach()

        def train(original_rule: bool) -> torch.Tensor:
            layer = nn.LearnedTimeDiffusion(3).double()
            optimiser = torch.optim.Adam(layer.parameters(), lr=3e-3)
            for _ in range(200):
                if original_rule:
                    layer.diffusion_time.data = layer.diffusion_time.data.clamp(min=1e-8)
                optimiser.zero_grad()
                (layer(x, operators) - y).square().sum().backward()
                optimiser.step()
                if not original_rule:
                    nn.project_times_(layer)
            nn.project_times_(layer)
            return layer.diffusion_time.detach()

        ours = train(original_rule=False)
        # The original's first step starts from 1e-8, ours from 0.
        torch.testing.assert_close(ours, train(original_rule=True), rtol=0, atol=1e-7)
        torch.testing.assert_close(ours[:2], target.diffusion_time[:2].detach(), atol=2e-3, rtol=0)
        assert ours[2] > 0.1


def test_the_pointwise_net_sees_each_vertex_alone(operators):
    torch.manual_seed(0)
    net = nn.PointwiseNet(3, 5, width=8, depth=2, dropout=False).double()
    x = _x(operators)
    y = net(x, operators)
    x2 = x.clone()
    x2[5] += 1
    changed = (net(x2, operators) != y).any(1).nonzero().flatten()
    assert changed.tolist() == [5]


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_whole_network_compiles_without_a_break(operators, other_operators, dynamic):
    """On operators as compute, load, pack and `to` leave them: the gradient bases are made inside, once."""
    torch._dynamo.reset()
    net = _net(outputs_at="faces")
    compiled = torch.compile(net, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for o in (replace(operators), Operators.pack([replace(operators), replace(other_operators)])):
        y = compiled(_x(o), o)
        kept = o.gradX_evecs
        torch.testing.assert_close(y, net(_x(o), replace(o)))
        torch.testing.assert_close(compiled(_x(o), o), y)
        assert o.gradX_evecs is kept


@pytest.mark.parametrize("compiled", [False, True])
def test_without_gradient_features_no_gradient_basis_is_made(operators, compiled):
    torch._dynamo.reset()
    net, fresh = _net(with_gradient_features=False), replace(operators)
    (torch.compile(net, fullgraph=True, backend="aot_eager") if compiled else net)(_x(fresh), fresh)
    assert not [name for name in vars(fresh) if "_evecs" in name]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda o: _net()(_x(o)[:-1], o), ["x [161, 3]", "162 vertices"]),
        (lambda o: _net()(_x(o)[:, :2], o), ["[V, 3]", "x [162, 2]"]),
        (lambda o: _net()(_x(o).long(), o), ["torch.float64", "got torch.int64", "x.to("]),
        (lambda o: _net().float()(_x(o), o), ["torch.float32", "got torch.float64", "x.to("]),
        (lambda o: _net()(_x(o).numpy(), o), ["torch.Tensor", "got ndarray", "as_tensor"]),
        (lambda o: _net()(None, o), ["torch.Tensor", "got NoneType"]),
        (lambda o: _net()(_x(o), None), ["operators", "got NoneType", "compute_operators"]),
        (lambda o: _net().to("meta")(_x(o), o), ["one device", "x on cpu", "weights on meta"]),
        (lambda o: nn.PointwiseNet(3, 5)(_x(o), o), ["torch.float32", "got torch.float64"]),
        (lambda o: o.truncate(2.0), ["`k`", "got 2.0"]),
        (lambda o: nn.DiffusionNet(3, 5, outputs_at="points"), ["outputs_at", "points"]),
        (lambda o: nn.DiffusionNet(3, 5, diffusion_method="explicit"), ["method", "explicit"]),
        (lambda o: nn.DiffusionNet(3, 5, gradient_variant="other"), ["variant", "other"]),
    ],
)
def test_errors_name_what_disagrees(operators, make, words):
    with pytest.raises(FlashheatError) as error:
        make(operators)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [0, -1, 2.0, "8", None, True])
@pytest.mark.parametrize("name", ["in_channels", "out_channels", "width", "depth"])
@pytest.mark.parametrize("kind", [nn.DiffusionNet, nn.PointwiseNet])
def test_sizes_of_a_network_are_counts(kind, name, value):
    with pytest.raises(FlashheatError, match=rf"^`{name}` must be a whole number of at least 1: got {value!r}\.$"):
        kind(**{"in_channels": 3, "out_channels": 5, name: value})


def test_sizes_of_the_parts_are_counts():
    for make in (
        lambda: nn.DiffusionNet(3, 5, mlp_hidden=[8, 0]), lambda: nn.MLP([3, 0]), lambda: nn.LearnedTimeDiffusion(-1),
        lambda: nn.SpatialGradientFeatures(0),
    ):  # fmt: skip
        with pytest.raises(FlashheatError, match="must be a whole number of at least 1"):
            make()
    assert nn.DiffusionNet(np.int64(3), np.int64(5)).last_lin.out_features == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_checks_let_autocast_cast_all_but_float64(operators, dtype):
    net, x = _net().float(), _x(operators)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(net(x.to(dtype), operators)).all()
        assert torch.isfinite(torch.compile(net, fullgraph=True, backend="aot_eager")(x.to(dtype), operators)).all()
        with pytest.raises(FlashheatError, match="dtype"):
            net(x, operators)


def test_the_checks_are_legal_under_vmap(operators):
    net, x = _net(), torch.stack([_x(operators), 2 * _x(operators)])
    torch.testing.assert_close(torch.func.vmap(lambda one: net(one, operators))(x)[1], net(x[1], operators))
    with pytest.raises(FlashheatError, match="dtype"):
        torch.func.vmap(lambda one: net(one, operators))(x.long())


# The original's published weights.


def _golden_operators(golden) -> Operators:
    V, K = golden["evecs"].shape

    def csr(name):
        ij = torch.from_numpy(golden[f"{name}_ij"]).long()
        coo = torch.sparse_coo_tensor(ij, torch.from_numpy(golden[f"{name}_v"]), (V, V)).coalesce().to_sparse_csr()
        return CSR(coo.crow_indices(), coo.col_indices(), coo.values(), (V, V))

    faces = torch.from_numpy(golden["faces"]).long()
    zero = torch.zeros(1, dtype=torch.int64)
    mass, evals, evecs, frames = (torch.from_numpy(golden[n]) for n in ("mass", "evals", "evecs", "frames"))
    edges = torch.zeros(0, 2, dtype=torch.int64)
    return Operators(
        mass, evals, evecs, csr("L"), csr("gradX"), csr("gradY"), frames, faces, edges, zero + K, zero + 1,
        torch.zeros(K), ("golden",), "diffusion_net",
    )  # fmt: skip


@pytest.mark.parametrize("mesh", ["bunny_small", "decimated_knight"])
@pytest.mark.parametrize("inputs", ["hks", "xyz"])
class TestPublishedWeights:
    def _log_probabilities(self, shared_data, inputs, operators, features):
        path = shared_data / "upstream_weights" / f"human_seg_{inputs}_4x128.pth"
        net = nn.load_upstream(path, outputs_at="faces", last_activation=torch.nn.LogSoftmax(dim=-1)).eval()
        with torch.no_grad():
            return net(features, operators)

    def test_from_the_golden_operators(self, shared_data, mesh, inputs):
        golden = np.load(shared_data / "golden" / f"{mesh}.npz")
        features = torch.from_numpy(golden["hks16" if inputs == "hks" else "verts"])
        found = self._log_probabilities(shared_data, inputs, _golden_operators(golden), features)
        expected = torch.from_numpy(golden[f"face_logprob_{inputs}"])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)

    def test_natively_the_classes_are_the_same(self, shared_data, mesh, inputs):
        golden = np.load(shared_data / "golden" / f"{mesh}.npz")
        operators = compute_operators(Mesh(golden["verts"], golden["faces"]), k_eig=128)
        scales = torch.logspace(-2, 0, 16)
        features = (
            hks(operators.evals, operators.evecs, scales) if inputs == "hks" else torch.from_numpy(golden["verts"])
        )
        found = self._log_probabilities(shared_data, inputs, operators, features).argmax(1)
        expected = torch.from_numpy(golden[f"face_logprob_{inputs}"]).argmax(1)
        assert (found == expected).float().mean() >= 0.995


def test_functional_map_weights_load_under_their_prefix(shared_data):
    net = nn.load_upstream(shared_data / "upstream_weights" / "faust_hks.pth", prefix="feature_extractor.")
    assert net.in_channels == 16
    assert len(net.blocks) == 4


def test_other_weights_are_refused_in_one_line(tmp_path, shared_data):
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(FlashheatError, match="must hold DiffusionNet weights"):
        nn.load_upstream(tmp_path / "other.pth")
    state = torch.load(
        shared_data / "upstream_weights" / "human_seg_hks_4x128.pth", weights_only=True, map_location="cpu"
    )
    torch.save({k: v for k, v in state.items() if "A_im" not in k}, tmp_path / "part.pth")
    with pytest.raises(FlashheatError, match="lacks"):
        nn.load_upstream(tmp_path / "part.pth")


def _saved(content: object) -> Callable[[Path], object]:
    return lambda path: torch.save(content, path)


_ENDS = {"first_lin.weight": torch.zeros(8, 3), "last_lin.weight": torch.zeros(5, 9)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "can be read: .*No such file"),
        (lambda path: path.mkdir(), "can be read: .*directory"),
        (lambda path: path.write_bytes(b""), "weights that torch.save wrote"),
        (lambda path: path.write_text("v 0 0 0\n"), "weights that torch.save wrote"),
        (lambda path: path.write_bytes(b"PK\3\4" + bytes(range(200))), "weights that torch.save wrote"),
        (_saved(nn.MLP([2, 2])), "holds more than tensors"),
        (_saved(torch.zeros(3)), "a state dict: .*a Tensor"),
        (_saved({"epoch": 3}), "a state dict: .*a dict"),
        (_saved({}), "has no keys"),
        (_saved(_ENDS), "the keys first_lin.weight, last_lin.weight"),
        (_saved(_ENDS | {"block_0.mlp.mlp_layer_000.weight": torch.zeros(8, 8)}), "size mismatch for last_lin.weight"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_weights_is_refused_in_one_line(tmp_path, make, words):
    make(tmp_path / "weights.pth")
    with pytest.raises(FlashheatError, match=words) as error:
        nn.load_upstream(tmp_path / "weights.pth")
    assert "\n" not in str(error.value)
    assert "weights.pth" in str(error.value)
