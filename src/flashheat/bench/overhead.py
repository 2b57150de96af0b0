"""What one call of `diffuse` costs before the device computes: the wall time of each layer of the software.

    flashheat bench overhead --out overhead.jsonl --commit COMMIT

The mesh is so small that the device waits for the host; each layer holds the one above it in the list.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashheat.bench import peers
from flashheat.bench.about import about
from flashheat.bench.cases import Case, random_case
from flashheat.bench.timing import capture, require_cuda, wall_us
from flashheat.files import write_atomically
from flashheat.ops import diffuse, diffuse_triton

V, K, C = 1_000, 128, 128

Call = Callable[[], object]


class _EmptyNode(torch.autograd.Function):
    """An autograd node with the arguments and results of `diffuse` that launches nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mass: Tensor, evals: Tensor, evecs: Tensor, times: Tensor) -> Tensor:
        ctx.save_for_backward(mass, evals, evecs, times)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        _, _, _, times = ctx.saved_tensors
        return torch.empty_like(g), None, None, None, torch.empty_like(times)


def layers(case: Case) -> dict[str, dict[str, Call]]:
    """The calls to time, by pass and layer."""
    c, precision = case, "highest"
    x, times = c.x.detach().requires_grad_(), c.times.detach().requires_grad_()
    arguments, differentiable = (c.x, c.mass, c.evals, c.evecs, c.times), (x, c.mass, c.evals, c.evecs, times)

    def forward_launch() -> object:
        return diffuse_triton.forward(*arguments, None, precision)

    _, s = diffuse_triton.forward(*arguments, None, precision)

    def backward_launch() -> object:
        return diffuse_triton.backward(
            c.g, None, c.mass, c.evals, c.evecs, c.times, None, s, precision, expand=True, d_times=True, d_evals=False
        )

    def both(run: Callable[..., Tensor]) -> Call:
        return lambda: torch.autograd.grad(run(*differentiable), [x, times], c.g)

    compiled = torch.compile(diffuse, dynamic=False)

    def launches() -> None:
        forward_launch()
        backward_launch()

    return {
        "forward": {
            "replayed CUDA graph": capture(forward_launch).replay,
            "kernel": forward_launch,
            "library op": lambda: torch.ops.flashheat.diffuse(*arguments, None),
            "op": lambda: diffuse(*arguments),
            "op, compiled": lambda: compiled(*arguments),
            "op and autograd node": lambda: diffuse(*differentiable),
            "eager": lambda: peers.eager(*arguments),
        },
        "both": {
            "replayed CUDA graph": capture(both(diffuse)).replay,
            "kernels": launches,
            "autograd node, empty": both(_EmptyNode.apply),
            "op and autograd node": both(diffuse),
            "library op and its node": both(lambda *a: torch.ops.flashheat.diffuse(*a, None)[0]),
            "op, compiled": both(compiled),
            "eager": both(peers.eager),
        },
    }


@contextlib.contextmanager
def _one_thread(wanted: bool) -> Iterator[None]:
    """The backward pass in the calling thread, or in the thread of the device, which is woken for it."""
    with torch.autograd.set_multithreading_enabled(not wanted):
        yield


def measure() -> list[dict[str, Any]]:
    """A row for each pass and layer; the backward pass also without a thread of its own."""
    rows = []
    case = random_case(V, K, C)
    for name, calls in layers(case).items():
        for single in (False, True) if name == "both" else (False,):
            for layer, call in calls.items():
                with _one_thread(single):
                    wall = round(wall_us(call, 400), 1)
                row = {"bench": "overhead", "pass": name, "V": V, "K": K, "C": C, "B": 1, "dtype": "fp32"}
                threads = "calling thread" if single else "device thread"
                rows.append({**row, "precision": "highest", "impl": layer, "backward in": threads, "wall_us": wall})
    return rows


def run(out: str | Path, commit: str) -> None:
    """Measure into a file of JSON lines.

    Raises:
        FlashheatError: there is no CUDA device.
    """
    require_cuda("the benchmark")
    lines = [row | about(commit) for row in measure()]
    write_atomically(Path(out), "".join(json.dumps(line) + "\n" for line in lines))
