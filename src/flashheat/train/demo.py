"""What `make demo` trains: small enough for two cores and a few minutes, large enough to show what diffusion adds.

It is separate so that the committed numbers and the command come from one place.
"""

from pathlib import Path

from flashheat.errors import FlashheatError
from flashheat.train.config import TrainConfig
from flashheat.train.run import open_run, resume, train


def demo(folder: Path, seed: int = 0, store: str = "") -> Path:
    """Train the demo into a folder, or go on with the one that is there.

    Raises:
        FlashheatError: the folder holds another run, or the demo of another seed; and as `train` and `resume`.
    """
    config = demo_config(seed)
    if not (folder / "config.json").exists():
        return train(config.with_changes(store=store), folder)
    there = open_run(folder).config
    if there != config.with_changes(store=there.store):
        raise FlashheatError(
            f"the demo of seed {seed} needs a folder of its own; {folder} holds another run, of seed {there.seed}: "
            "choose another --out"
        )
    return resume(folder, store=store or None)


def demo_config(seed: int = 0) -> TrainConfig:
    """Surface pressure of potential flow past random ellipsoids, from n.U and x.U."""
    return TrainConfig(
        task="pressure",
        dataset="flow",
        n_train=40,
        n_test=16,
        k_eig=32,
        width=32,
        depth=3,
        epochs=30,
        learning_rate=3e-3,
        threads=1,
        seed=seed,
    )
