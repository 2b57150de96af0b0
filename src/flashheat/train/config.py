"""One flat record of everything that a run depends on, checked when it is made.

It is separate because the command line fills it, the run folder keeps it, and a resumed run must find it unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from flashheat.data.example import At
from flashheat.data.inputs import parse_inputs, unit_stream
from flashheat.errors import FlashheatError
from flashheat.tasks import task_type

# For each data set: the tasks it serves with the usual inputs of each; then the stream where the data fix one.
DATASETS: dict[str, dict[str, str]] = {
    "flow": {"pressure": "flow"},
    "car": {"pressure": "xyz+flow"},
    "rna": {"segmentation": "hks"},
    "folder": {"segmentation": "hks", "pressure": "xyz"},
}
STREAMS = {"flow": (1.0, 0.0, 0.0), "car": (0.0, 0.0, 1.0)}


@dataclass(frozen=True)
class TrainConfig:
    """What to train on what. Empty strings and None mean: the data set's usual.

    Args:
        task: "segmentation" or "pressure".
        dataset: "flow" (embedded), "rna", "car" or "folder".
        data_root: the data's folder; not for "flow".
        inputs: "xyz", "hks", "flow" (n.U and x.U) or several joined by "+".
        stream: direction of the free stream in the meshes' coordinates, for the inputs "flow" of a "folder".
        labels_at: "vertices" or "faces"; only where a mesh has as many of one as of the other.
        test_fraction: part of a "folder" that is kept for testing.
        n_train, n_test: bodies of "flow".
        k_eig: eigenvectors K of each mesh.
        width, depth: channels and blocks of the network.
        dropout: dropout (p = 0.5) in the blocks.
        rotate: turn each mesh's positions at random in each step; only with "xyz" and a task that allows it.
        epochs: passes over the training meshes.
        batch_size: meshes a step.
        learning_rate: of Adam at the first step; it falls to 0 at the last along half a cosine.
        seed: of everything random.
        device: "cpu", "cuda" or "cuda:N".
        threads: of PyTorch on the CPU; 0: its own choice. With 1 a run repeats bitwise, and small meshes are no slower.
        store: folder that keeps operators.

    Raises:
        FlashheatError: a value that cannot be; one line says which.
    """

    task: str = "pressure"
    dataset: str = "flow"
    data_root: str | None = None
    inputs: str = ""
    stream: tuple[float, float, float] | None = None
    labels_at: At | None = None
    test_fraction: float = 0.2
    n_train: int = 40
    n_test: int = 16
    k_eig: int = 128
    width: int = 64
    depth: int = 4
    dropout: bool = False
    rotate: bool = False
    epochs: int = 50
    batch_size: int = 1
    learning_rate: float = 1e-3
    seed: int = 0
    device: str = "cpu"
    threads: int = 0
    store: str = ""

    def __post_init__(self) -> None:
        usual = _usual_inputs(self.task, self.dataset)
        object.__setattr__(self, "inputs", self.inputs or usual)
        object.__setattr__(self, "stream", STREAMS.get(self.dataset) if self.stream is None else tuple(self.stream))
        parse_inputs(self.inputs)
        for name in ("data_root", "store"):  # a run is resumed from any folder
            if value := getattr(self, name):
                object.__setattr__(self, name, str(Path(value).expanduser().absolute()))
        if self.stream is not None:
            unit_stream(self.stream)  # type: ignore[arg-type]
        for name in ("n_train", "n_test", "k_eig", "width", "depth", "epochs", "batch_size"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("seed", "threads"):
            _require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        _require(0 < self.learning_rate < float("inf"), "learning_rate", "above 0", self.learning_rate)
        _require(0 < self.test_fraction < 1, "test_fraction", "between 0 and 1", self.test_fraction)
        _require(self.labels_at in (None, "vertices", "faces"), "labels_at", "vertices or faces", self.labels_at)
        self._check_rotation()

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs, one by one."""
        return parse_inputs(self.inputs)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """What `to_dict` gave.

        Raises:
            FlashheatError: a name that is no field of this version.
        """
        unknown = sorted(set(values) - {f.name for f in fields(cls)})
        if unknown:
            raise FlashheatError(f"the configuration must be of this version; it has {', '.join(unknown)} as well")
        return cls(**values)

    def with_changes(self, **changes: Any) -> TrainConfig:
        """A copy with some values changed; values of None are left as they are."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def _check_rotation(self) -> None:
        if self.rotate and not task_type(self.task).allows_rotation:
            raise FlashheatError(
                f"rotate must be off for the task {self.task}: its positions also tell where the stream comes from"
            )
        if self.rotate and "xyz" not in self.input_names:
            raise FlashheatError(f"rotate turns the inputs xyz; the inputs {self.inputs} do not depend on orientation")


def _usual_inputs(task: str, dataset: str) -> str:
    task_type(task)
    if dataset not in DATASETS:
        raise FlashheatError(f"a data set must be one of {', '.join(DATASETS)}; got {dataset!r}")
    if task not in DATASETS[dataset]:
        raise FlashheatError(f"the data set {dataset} is for the task {' or '.join(DATASETS[dataset])}; got {task}")
    return DATASETS[dataset][task]


def _require(holds: bool, name: str, what: str, got: object) -> None:
    if not holds:
        raise FlashheatError(f"{name} must be {what}; got {got}")
