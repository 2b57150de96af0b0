"""What compute-sanitizer watches: forward and all derivatives, of awkward shapes, in each precision.

compute-sanitizer --tool memcheck python tests/memcheck.py
"""

import torch

from flashheat.bench.cases import random_case
from flashheat.ops import diffuse

PRECISIONS = (
    (torch.float32, "highest"),
    (torch.float32, "high"),
    (torch.bfloat16, "highest"),
    (torch.float16, "highest"),
)
SHAPES = (  # V, K, C, sizes of packed meshes
    (1001, 128, 128, None),
    (7, 5, 3, None),
    (5003, 130, 40, None),
    (0, 64, 32, [100, 0, 777, 1]),
    (2001, 512, 100, None),  # by cuBLAS, but for fp16
)


def main() -> None:
    for dtype, mode in PRECISIONS:
        torch.set_float32_matmul_precision(mode)
        for V, K, C, sizes in SHAPES:
            case = random_case(V, K, C, dtype, sizes=sizes)
            inputs = [t.detach().requires_grad_() for t in (case.x, case.mass, case.evals, case.evecs, case.times)]
            y, s = diffuse(*inputs, case.offsets, return_spectral=True)
            torch.autograd.grad([y, s], inputs, [case.g, case.h.to(s.dtype)])
    torch.cuda.synchronize()
    print("done")


if __name__ == "__main__":
    main()
