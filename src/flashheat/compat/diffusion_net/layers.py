"""The original's `DiffusionNet`: its arguments, its `forward`, its names of the weights.

It is separate because scripts say `diffusion_net.layers.DiffusionNet`. The computation is that of `flashheat.nn`; as
the original does, and ours does not, `forward` moves the diffusion times back to >= 1e-8.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from flashheat import nn
from flashheat.errors import FlashheatError
from flashheat.nn.diffusion import DiffusionMethod
from flashheat.nn.outputs import OutputsAt
from flashheat.nn.upstream import from_upstream_keys
from flashheat.operators import CSR, Operators

_OUTPUTS_AT: dict[str, OutputsAt] = {"vertices": "vertices", "edges": "edges", "faces": "faces", "global_mean": "mesh"}


class DiffusionNet(nn.DiffusionNet):
    """The original's network; see `flashheat.nn.DiffusionNet` for what each argument does.

    `outputs_at` takes the original's "global_mean" where ours says "mesh". State dicts have the original's keys, and
    those of ours load as well.
    """

    def __init__(
        self,
        C_in: int,
        C_out: int,
        C_width: int = 128,
        N_block: int = 4,
        last_activation: Callable[[Tensor], Tensor] | None = None,
        outputs_at: str = "vertices",
        mlp_hidden_dims: Sequence[int] | None = None,
        dropout: bool = True,
        with_gradient_features: bool = True,
        with_gradient_rotations: bool = True,
        diffusion_method: DiffusionMethod = "spectral",
    ) -> None:
        if outputs_at not in _OUTPUTS_AT:
            raise FlashheatError(f"`outputs_at` must be one of {', '.join(_OUTPUTS_AT)}: got {outputs_at!r}.")
        super().__init__(
            C_in,
            C_out,
            C_width,
            N_block,
            _OUTPUTS_AT[outputs_at],
            last_activation,
            mlp_hidden_dims,
            dropout,
            with_gradient_features,
            with_gradient_rotations,
            diffusion_method,
        )
        self.register_state_dict_post_hook(_to_upstream_keys)
        self.register_load_state_dict_pre_hook(_accept_upstream_keys)

    def forward(  # type: ignore[override]
        self,
        x_in: Tensor,
        mass: Tensor,
        L: Tensor | None = None,
        evals: Tensor | None = None,
        evecs: Tensor | None = None,
        gradX: Tensor | None = None,
        gradY: Tensor | None = None,
        edges: Tensor | None = None,
        faces: Tensor | None = None,
    ) -> Tensor:
        """`x_in [V, C_in]` or `[B, V, C_in]`; every other argument has the leading axis of `x_in`."""
        nn.project_times_(self)
        names = ("mass", "L", "evals", "evecs", "gradX", "gradY", "edges", "faces")
        given = dict(zip(names, (mass, L, evals, evecs, gradX, gradY, edges, faces), strict=True))
        if x_in.ndim == 2:
            return self._one_mesh(x_in, given)
        if x_in.ndim != 3:
            raise FlashheatError(f"`x_in` must be [V, C_in] or [B, V, C_in]: got x_in {list(x_in.shape)}.")
        return torch.stack(
            [self._one_mesh(x, {k: None if t is None else t[b] for k, t in given.items()}) for b, x in enumerate(x_in)]
        )

    def _one_mesh(self, x: Tensor, given: dict[str, Tensor | None]) -> Tensor:
        return super().forward(x, cast(Operators, _GivenOperators(given)))


class _GivenOperators:
    """The arguments of one call as the operators that `flashheat.nn` reads; each is made when it is first read."""

    offsets = None

    def __init__(self, given: dict[str, Tensor | None]) -> None:
        self._given = given

    def __getattr__(self, name: str) -> Tensor | CSR:
        if name.endswith("_evecs"):
            value: Tensor | CSR = torch.sparse.mm(self._argument(name.removesuffix("_evecs")), self.evecs)
        elif name in ("L", "gradX", "gradY"):
            value = _csr(self._argument(name))
        else:
            value = self._argument(name)
        setattr(self, name, value)
        return value

    def _argument(self, name: str) -> Tensor:
        if name not in self._given:
            raise AttributeError(name)
        value = self._given[name]
        if value is None:
            raise FlashheatError(f"`{name}` is needed by a network with these options: got None; pass `{name}=`.")
        return value


def _csr(matrix: Tensor) -> CSR:
    csr = matrix.to_sparse_csr()
    return CSR(csr.crow_indices(), csr.col_indices(), csr.values(), (matrix.shape[0], matrix.shape[1]))


def _to_upstream_keys(module: torch.nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    for key in [k for k in state if k.startswith(prefix)]:
        name = re.sub(r"^blocks\.(\d+)\.", r"block_\1.", key[len(prefix) :])
        name = re.sub(r"\.mlp\.layers\.(\d+)\.", lambda m: f".mlp.miniMLP_mlp_layer_{int(m[1]):03d}.", name)
        state[prefix + name] = state.pop(key)


def _accept_upstream_keys(module: torch.nn.Module, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
    ours = {k: state.pop(k) for k in list(state) if k.startswith(prefix)}
    renamed = from_upstream_keys({k[len(prefix) :]: v for k, v in ours.items()})
    state.update({prefix + k: v for k, v in renamed.items()})
