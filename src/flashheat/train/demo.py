"""What `make demo` trains: small enough for two cores and a few minutes, large enough to show what diffusion adds.

It is separate so that the committed numbers and the command come from one place.
"""

from flashheat.train.config import TrainConfig


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
