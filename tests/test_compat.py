"""An existing script of the original, with one import changed."""

import numpy as np
import pytest
import torch

from flashheat.compat import diffusion_net
from flashheat.compat.diffusion_net import geometry, layers
from flashheat.errors import FlashheatError
from flashheat.mesh import icosphere


@pytest.fixture(scope="module")
def mesh():
    sphere = icosphere(2)
    return torch.from_numpy(sphere.verts).float(), torch.from_numpy(sphere.faces)


def test_the_originals_example_runs_and_learns(mesh, tmp_path):
    verts, faces = mesh
    verts = geometry.normalize_positions(verts)
    frames, mass, L, evals, evecs, gradX, gradY = geometry.get_operators(
        verts, faces, k_eig=20, op_cache_dir=str(tmp_path)
    )
    assert frames.shape == (162, 3, 3)
    assert gradX.layout == torch.sparse_coo
    model = diffusion_net.layers.DiffusionNet(C_in=3, C_out=4, C_width=16, N_block=2, outputs_at="faces", dropout=False)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    target = torch.nn.functional.one_hot(torch.arange(len(faces)) % 4).float()
    losses = []
    for _ in range(5):
        out = model(verts, mass, L=L, evals=evals, evecs=evecs, gradX=gradX, gradY=gradY, faces=faces)
        loss = ((out - target) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert diffusion_net.utils.toNP(out).shape == (320, 4)
    assert losses[-1] < losses[0]
    assert geometry.compute_hks_autoscale(evals, evecs, 16).shape == (162, 16)


@pytest.mark.parametrize("method", ["spectral", "implicit_dense"])
@pytest.mark.parametrize("outputs_at", ["vertices", "faces", "edges", "global_mean"])
def test_a_leading_axis_gives_the_same(mesh, outputs_at, method):
    verts, faces = mesh
    _, mass, L, evals, evecs, gradX, gradY = geometry.get_operators(verts, faces, k_eig=12)
    edges = torch.stack([faces[:, 0], faces[:, 1]], dim=1)
    net = layers.DiffusionNet(3, 2, 8, 1, outputs_at=outputs_at, diffusion_method=method).eval()
    given = {"L": L, "evals": evals, "evecs": evecs, "gradX": gradX, "gradY": gradY, "edges": edges, "faces": faces}
    one = net(verts, mass, **given)
    batch = net(verts[None], mass[None], **{k: t.unsqueeze(0) for k, t in given.items()})
    torch.testing.assert_close(batch, one[None])
    assert one.shape == {"vertices": (162, 2), "faces": (320, 2), "edges": (320, 2), "global_mean": (2,)}[outputs_at]


def test_state_dicts_speak_the_originals_language(shared_data):
    path = shared_data / "upstream_weights" / "human_seg_hks_4x128.pth"
    state = torch.load(path, map_location="cpu", weights_only=True)
    net = layers.DiffusionNet(16, 8, outputs_at="faces", last_activation=lambda x: torch.log_softmax(x, -1))
    net.load_state_dict(state)
    ours = net.state_dict()
    assert ours.keys() == state.keys()
    assert all(torch.equal(ours[k], state[k]) for k in state)


def test_forward_moves_the_times_back_as_the_original_does(mesh):
    verts, faces = mesh
    _, mass, L, evals, evecs, gradX, gradY = geometry.get_operators(verts, faces, k_eig=12)
    net = layers.DiffusionNet(3, 2, 8, 1)
    assert net.blocks[0].diffusion.diffusion_time.max() == 0
    net(verts, mass, L, evals, evecs, gradX, gradY)
    assert net.blocks[0].diffusion.diffusion_time.tolist() == pytest.approx([1e-8] * 8)


@pytest.mark.parametrize("mesh_name", ["bunny_small", "decimated_knight"])
@pytest.mark.parametrize("inputs", ["hks", "xyz"])
def test_published_weights_on_our_own_operators(shared_data, mesh_name, inputs):
    golden = np.load(shared_data / "golden" / f"{mesh_name}.npz")
    verts, faces = torch.from_numpy(golden["verts"]), torch.from_numpy(golden["faces"]).long()
    _, mass, L, evals, evecs, gradX, gradY = geometry.get_operators(verts, faces, k_eig=128)
    features = geometry.compute_hks_autoscale(evals, evecs, 16) if inputs == "hks" else verts
    net = layers.DiffusionNet(
        features.shape[1], 8, outputs_at="faces", last_activation=lambda x: torch.log_softmax(x, -1)
    ).eval()
    path = shared_data / "upstream_weights" / f"human_seg_{inputs}_4x128.pth"
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    with torch.no_grad():
        found = net(features, mass, L, evals, evecs, gradX, gradY, faces=faces)
    expected = torch.from_numpy(golden[f"face_logprob_{inputs}"])
    assert (found - expected).abs().max() <= 5e-2


def test_get_all_operators_is_a_list_for_each_part(mesh):
    verts, faces = mesh
    parts = geometry.get_all_operators([verts, 2 * verts], [faces, faces], k_eig=8)
    assert len(parts) == 7
    torch.testing.assert_close(parts[1][1], 4 * parts[1][0], rtol=1e-5, atol=0)


@pytest.mark.parametrize("method", ["mean", "bbox"])
def test_normalize_positions(mesh, method):
    verts, faces = mesh
    moved = 3 * verts + torch.tensor([5.0, 0, 0])
    unit = geometry.normalize_positions(moved, method=method)
    assert unit.norm(dim=1).max().item() == pytest.approx(1, rel=1e-5)
    area = geometry.normalize_positions(moved, faces, method=method, scale_method="area")
    corners = area[faces]
    cross = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    assert cross.norm(dim=1).sum().item() / 2 == pytest.approx(1, rel=1e-5)
    torch.testing.assert_close(geometry.normalize_positions(moved[None], method=method), unit[None])


def test_a_missing_argument_is_named(mesh):
    verts, _ = mesh
    with pytest.raises(FlashheatError, match="`evals` is needed"):
        layers.DiffusionNet(3, 2, 8, 1)(verts, torch.ones(162))
