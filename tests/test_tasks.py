"""Losses and metrics against numbers worked out by hand, and the laws that they must obey."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from flashheat.data import Example, Sample, collate, prepare_example
from flashheat.errors import FlashheatError
from flashheat.mesh import Mesh, icosphere, torus
from flashheat.operators import OperatorStore
from flashheat.tasks import Pressure, Segmentation, relative_l2, task_from_state, task_type


@pytest.fixture
def store(tmp_path: Path) -> OperatorStore:
    return OperatorStore(tmp_path / "store")


def sample_of(mesh: Mesh, target: np.ndarray, store: OperatorStore, k_eig: int = 16) -> Sample:
    return prepare_example(Example(mesh, target), ("xyz",), k_eig, store)


def test_relative_l2_is_the_weighted_ratio() -> None:
    p, t, mass = torch.tensor([1.0, 2, 9]), torch.tensor([3.0, 2, 1]), torch.tensor([2.0, 1, 0])
    assert relative_l2(p, t, mass).item() == pytest.approx(np.sqrt(8 / 22))
    exact = t.clone().requires_grad_()
    relative_l2(exact, t, mass).backward()
    assert exact.grad is not None
    assert exact.grad.isfinite().all()  # at no error at all too


def test_pressure_metrics_by_hand(store: OperatorStore) -> None:
    ball = icosphere(2)
    sample = sample_of(ball, ball.verts[:, 2], store)
    doubled = sample.target * 2
    scores = Pressure(0.0, 1.0).score([doubled], [sample])
    assert scores["relative_l2"] == pytest.approx(1.0, rel=1e-6)
    assert scores["mae"] == pytest.approx(0.5, rel=2e-2)  # the mean of |z| over the sphere is 1/2
    assert scores["r2"] == pytest.approx(0.0, abs=1e-6)


def test_pressure_set_scores_are_means_over_meshes_whatever_their_size(store: OperatorStore) -> None:
    coarse, fine = icosphere(1), icosphere(3)
    samples = [sample_of(m, 1 + m.verts[:, 2], store) for m in (coarse, fine)]
    given = [samples[0].target * 1.5, samples[1].target]
    task = Pressure.fit(samples)
    assert task.score(given, samples)["relative_l2"] == pytest.approx(0.25)
    assert task.mean == pytest.approx(1.0, abs=1e-6)
    assert task.std == pytest.approx(np.sqrt(1 / 3), rel=0.05)


def test_predicting_the_mean_explains_nothing(store: OperatorStore) -> None:
    samples = [sample_of(m, m.verts[:, 0] + i, store) for i, m in enumerate((icosphere(1), torus(12, 8)))]
    task = Pressure.fit(samples)
    assert task.score([task.constant(s) for s in samples], samples)["r2"] == pytest.approx(0, abs=1e-6)


def test_pressure_loss_is_the_score(store: OperatorStore) -> None:
    meshes = (icosphere(1), torus(12, 8), icosphere(2))
    samples = [sample_of(m, m.verts[:, 0] + 0.3 * i, store) for i, m in enumerate(meshes)]
    task, batch = Pressure.fit(samples), collate(samples)
    output = torch.randn(len(batch.target), 1, generator=torch.Generator().manual_seed(0))
    given = list(task.answer(output).split(batch.sizes))
    assert task.loss(output, batch).item() == pytest.approx(task.score(given, samples)["relative_l2"], rel=1e-5)


def test_fields_that_cannot_be_scored_or_learned_are_refused(store: OperatorStore) -> None:
    zero = sample_of(icosphere(1), np.zeros(42), store)
    with pytest.raises(FlashheatError, match="that of icosphere1 is"):
        Pressure(0.0, 1.0).check([zero])
    with pytest.raises(FlashheatError, match="it is 3 everywhere"):
        Pressure.fit([sample_of(icosphere(1), np.full(42, 3.0), store)])


def _segmentation(labels: np.ndarray, store: OperatorStore) -> tuple[Segmentation, Sample]:
    sample = sample_of(icosphere(1), labels, store)
    return Segmentation.fit([sample], 4, "vertices"), sample


def test_segmentation_metrics_by_hand(store: OperatorStore) -> None:
    labels = np.array([0] * 10 + [1] * 20 + [2] * 12)
    task, sample = _segmentation(labels, store)
    assert task.most_frequent == 1
    given = torch.from_numpy(np.array([0] * 5 + [1] * 25 + [2] * 12))
    scores = task.score([given], [sample])
    assert scores["accuracy"] == pytest.approx(37 / 42)
    assert scores["mean_iou"] == pytest.approx((5 / 10 + 20 / 25 + 1) / 3)  # class 3 is nowhere and does not count
    assert task.score([task.constant(sample)], [sample])["accuracy"] == pytest.approx(20 / 42)


def test_segmentation_loss_is_a_mean_over_meshes(store: OperatorStore) -> None:
    samples = [sample_of(m, np.arange(m.n_verts) % 3, store) for m in (icosphere(1), icosphere(2))]
    task = Segmentation.fit(samples, 3, "vertices")
    output = torch.randn(42 + 162, 3, generator=torch.Generator().manual_seed(1))
    alone = [
        -torch.log_softmax(o, 1)[torch.arange(len(o)), s.target].mean()
        for o, s in zip(output.split((42, 162)), samples, strict=True)
    ]
    assert task.loss(output, collate(samples)).item() == pytest.approx(float(sum(alone)) / 2, rel=1e-5)
    assert (task.answer(output) == output.argmax(1)).all()


def test_labels_beyond_the_classes_are_refused(store: OperatorStore) -> None:
    task, _ = _segmentation(np.arange(42) % 4, store)
    other = sample_of(icosphere(1), np.full(42, 4), store)
    with pytest.raises(FlashheatError, match=r"must be below 4, .* icosphere1 has 4"):
        task.check([other])
    with pytest.raises(FlashheatError, match="at least two classes"):
        Segmentation.fit([other], 1, "vertices")


def _check_projection(errors: dict[int, float], indicator: Tensor, sample: Sample) -> None:
    o = sample.operators
    for k, error in errors.items():
        evecs, mass = o.evecs[:, :k].double(), o.mass.double()[:, None]
        rest = indicator - evecs @ (evecs.T @ (mass * indicator))
        assert error == pytest.approx(float(torch.sqrt((mass * rest**2).sum() / (mass * indicator**2).sum())), abs=1e-3)
    assert list(errors) == sorted(errors)
    assert list(errors.values()) == sorted(errors.values(), reverse=True)


def test_projection_errors_are_those_of_the_explicit_projection(store: OperatorStore) -> None:
    mesh = torus(16, 10)
    field = np.exp(mesh.verts[:, 0]) * np.sign(mesh.verts[:, 2] + 0.05)
    sample = sample_of(mesh, field, store, k_eig=40)
    errors = Pressure(0.0, 1.0).projection(sample)
    assert list(errors) == [8, 16, 32, 40]
    _check_projection(errors, sample.target.double()[:, None], sample)

    labels = (mesh.verts[:, 0] > 0).astype(int) + 2 * (mesh.verts[:, 1] > 0.2)
    sample = sample_of(mesh, labels, store, k_eig=40)
    errors = Segmentation(5, "vertices", 0).projection(sample)
    _check_projection(errors, torch.nn.functional.one_hot(sample.target, 5).double(), sample)

    centres = mesh.verts[mesh.faces].mean(axis=1)
    sample = prepare_example(Example(mesh, (centres[:, 0] > 0).astype(int), "faces"), ("xyz",), 40, store)
    shares = torch.stack(
        [
            (sample.target[(sample.operators.faces == v).any(1)][:, None] == torch.arange(2)).double().mean(0)
            for v in range(160)
        ]
    )
    _check_projection(Segmentation(2, "faces", 0).projection(sample), shares, sample)


def test_a_field_in_the_basis_has_no_projection_error(store: OperatorStore) -> None:
    ball = icosphere(2)
    errors = Pressure(0.0, 1.0).projection(sample_of(ball, ball.verts @ [1, 2, 3], store, k_eig=16))
    assert errors[8] < 0.02


@pytest.mark.parametrize("task", [Pressure(1.25, 0.1), Segmentation(7, "faces", 3)])
def test_tasks_come_back_from_their_record(task: Pressure | Segmentation) -> None:
    assert task_from_state(task.name, json.loads(json.dumps(task.state()))) == task


def test_unknown_tasks_are_refused() -> None:
    with pytest.raises(FlashheatError, match="one of pressure, segmentation; got 'sing'"):
        task_type("sing")
