"""GPU time by CUDA-graph replay with a cold second-level cache, and wall time as a caller sees it.

They are separate because every benchmark must measure in the same way to be comparable.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from flashheat.errors import FlashheatError

_FLUSH_BYTES = 256 * 1024 * 1024


def require_cuda(what: str) -> None:
    """Say in one line that `what` cannot be done here.

    Raises:
        FlashheatError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise FlashheatError(f"{what} needs a CUDA device: torch sees none here")


def gpu_us(run: Callable[[], object]) -> float:
    """Median GPU time of `run` in microseconds: captured once, replayed with a cold cache."""
    return replayed_us([capture(run)])[0]


def replayed_us(graphs: Sequence[torch.cuda.CUDAGraph], n_repeats: int = 25) -> list[float]:
    """Median GPU time of each graph in microseconds, with a cold cache.

    They are replayed in turn, so that a card whose clock falls as it warms up slows all of them alike.
    """
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    events = [[(_event(), _event()) for _ in graphs] for _ in range(n_repeats)]
    for graph in graphs:
        graph.replay()
    for turn in events:
        for graph, (start, stop) in zip(graphs, turn, strict=True):
            flush.zero_()
            start.record()
            graph.replay()
            stop.record()
    torch.cuda.synchronize()
    return [statistics.median(start.elapsed_time(stop) for start, stop in of) * 1e3 for of in zip(*events, strict=True)]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def capture(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """`run` as one CUDA graph, after two warm-up calls on the stream that is then captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        run()
    return graph


def wall_us(run: Callable[[], object], n_repeats: int = 200) -> float:
    """Median over twenty short batches of the wall time of one eager call, the device's work included."""
    for _ in range(5):
        run()
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n_repeats // 20):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / (n_repeats // 20))
    return statistics.median(times) * 1e6


def peak_bytes(run: Callable[[], object]) -> int:
    """Most memory that one `run` holds at once beyond its inputs, its results included."""
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
