"""A trained run becomes answers: metrics on meshes whose truth is known, or a field on one mesh's own vertices.

It is separate because it needs a run folder and no training.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashheat.data import load_folder
from flashheat.data.arrays import check_output, write_values
from flashheat.data.inputs import check_finite, unit_stream
from flashheat.data.sample import prepare_mesh
from flashheat.errors import FlashheatError
from flashheat.files import write_atomically
from flashheat.mesh import Mesh
from flashheat.tasks import Task
from flashheat.train.loop import answers
from flashheat.train.prepare import open_store, prepare, prepare_examples
from flashheat.train.progress import Progress, make_progress
from flashheat.train.run import Run, check_names, open_run, score_set

logger = logging.getLogger("flashheat")


def evaluate(
    folder: str | Path,
    meshes: str | Path | None = None,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    store: str | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score a run's network.

    Args:
        folder: the run.
        meshes: a folder of meshes with an array beside each, all of which are scored; None: the run's held-out meshes.
        out: JSON file for the result, if wanted.
        data_root, store, device: where the run's own data and operators now are, where not as in training.
        progress: None: a bar on a terminal, else log lines.

    Returns:
        {"metrics": {name: value}, "per_mesh": {mesh: {name: value}}, "projection": {K: error}}.

    Raises:
        FlashheatError: the run or the data do not serve.
    """
    run = open_run(folder).moved(data_root, store, device)
    progress = progress or make_progress()
    config = run.config
    if meshes is None:
        data = prepare(config, progress)
        check_names(run, data)
        samples = data.test
    else:
        stream = None if config.stream is None else np.array(config.stream)
        split = load_folder(meshes, run.task.kind, 0.0, config.seed, stream, run.task.outputs_at)  # type: ignore[arg-type]
        samples = prepare_examples(split.test, config, progress)
    run.task.check(samples)
    result = score_set(run.task, answers(run.network(), run.task, samples, config.device), samples)
    if out is not None:
        write_atomically(Path(out), json.dumps(result, indent=1))
    return result


def predict(
    folder: str | Path,
    mesh_path: str | Path,
    out: str | Path,
    stream: Sequence[float] | None = None,
    store: str | None = None,
    device: str | None = None,
) -> Path:
    """Write the network's answer on a mesh file, on the vertices (or faces) that the file itself has.

    Args:
        folder: the run.
        mesh_path: OBJ, OFF, PLY or STL.
        out: .npy, .npz, .txt, or .ply with the answer as a property.
        stream: [3] direction of the free stream in the file's coordinates; needed if the run's inputs have "flow".
        store, device: where not as in training.

    Returns:
        `out`.

    Raises:
        FlashheatError: the run, the mesh, the stream or the output's place do not serve.
    """
    run, out = open_run(folder).moved(store=store, device=device), Path(out)
    check_output(out)
    direction = None if stream is None else unit_stream(np.array(stream, dtype=np.float64))
    mesh = Mesh.read(mesh_path)
    if ("flow" in run.config.input_names) != (stream is not None):
        needed = "needs a stream direction, such as 1 0 0" if stream is None else "takes no stream direction"
        raise FlashheatError(f"a run with the inputs {run.config.inputs} {needed}; {folder} was made with them")
    values = predict_mesh(run, mesh, direction)
    write_values(out, run.task.field_name, values, mesh, run.task.outputs_at)
    return out


def predict_mesh(run: Run, mesh: Mesh, stream: np.ndarray | None = None) -> np.ndarray:
    """The network's answer, [V_in] or [F_in]: on the vertices or faces of the input, before welding and triangulation.

    Raises:
        FlashheatError: the mesh has no usable geometry or no such elements, or an answer is not finite.
    """
    task, config = run.task, run.config
    if task.outputs_at == "faces" and mesh.is_point_cloud:
        raise FlashheatError(f"the run answers at faces; {mesh.name or 'the mesh'} has none; give a mesh with faces")
    net = run.network().eval()
    operators, x = prepare_mesh(mesh, config.input_names, config.k_eig, open_store(config.store), stream)
    with torch.no_grad():
        output = net(x.to(config.device), operators.to(config.device)).cpu()
    check_finite(output, f"the answer on {mesh.name or 'the mesh'}")
    return _on_input(output, task, mesh)


def _on_input(output: Tensor, task: Task, mesh: Mesh) -> np.ndarray:
    """Outputs [V or F, C] to answers on the input's elements: a polygon's logits are the sums of its triangles'."""
    if task.outputs_at == "vertices":
        return mesh.scatter(task.answer(output).numpy())
    if mesh.face_map is not None:
        n_polygons = int(mesh.face_map.max()) + 1
        output = output.new_zeros(n_polygons, output.shape[1]).index_add(0, torch.from_numpy(mesh.face_map), output)
    return task.answer(output).numpy()
