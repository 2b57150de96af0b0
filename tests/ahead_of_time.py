"""A layer exported, compiled ahead of time, loaded again and held to the original on a mesh of another size.

    python -m tests.ahead_of_time plain|library|eager cpu|cuda FOLDER

In a process of its own, because a loader that fails may take the process with it.
"""

import sys

import torch
from torch import nn

from flashheat.bench.cases import random_case
from flashheat.ops import diffuse, library  # noqa: F401 - the module registers the ops


class Layer(nn.Module):
    """A diffusion between two linear maps: none at all, by the library op, or as a user writes it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.before, self.after = nn.Linear(16, 16), nn.Linear(16, 2)
        self.times = nn.Parameter(torch.rand(16))

    def forward(self, x, mass, evals, evecs):
        x = self.before(x)
        if self.how == "library":
            x, _ = torch.ops.flashheat.diffuse(x, mass, evals, evecs, self.times, None)
        elif self.how == "eager":
            x = diffuse(x, mass, evals, evecs, self.times)
        return self.after(x)


def inputs_of(V, device):
    case = random_case(V, 32, 16, torch.float32, device=device)
    return case.x, case.mass, case.evals, case.evecs


@torch.no_grad()
def main(how: str, device: str, folder: str) -> None:
    layer, V = Layer(how).to(device), torch.export.Dim("V", min=2)
    program = torch.export.export(layer, inputs_of(1000, device), dynamic_shapes=({0: V}, {0: V}, None, {0: V}))
    other = inputs_of(2077, device)
    torch.testing.assert_close(program.module()(*other), layer(*other))
    package = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/{how}.pt2")
    torch.testing.assert_close(torch._inductor.aoti_load_package(package)(*other), layer(*other))


if __name__ == "__main__":
    main(*sys.argv[1:])
