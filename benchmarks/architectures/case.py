"""One architecture: how it is built, what it is called with, and how a compiled one is compared with eager PyTorch."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks.models.base import declare_torchvision_ops, disturb, settle_batch_norms

Call = Mapping[str, Any]
# of the largest magnitude of an output
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Net:
    """A network in eval mode with seeded weights.

    Attributes:
        call: (batch, length) -> forward's arguments by name, seeded.
        dynamic: axes by argument as `ingot.compile` takes them; None where sizes are part of the architecture.
    """

    module: nn.Module
    call: Callable[[int, int], Call]
    dynamic: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Architecture:
    """build: makes the network when it is asked for. sizes: (batch, length) that is traced, and another one."""

    name: str
    kind: str
    library: str
    build: Callable[[], Net] = field(repr=False)
    sizes: tuple[tuple[int, int], tuple[int, int]] = ((2, 16), (3, 23))


def library(name: str) -> ModuleType:
    """A library of models; those that look for torchvision's operators find them declared."""
    declare_torchvision_ops()
    return importlib.import_module(name)


def settled(module: nn.Module, call: Call) -> nn.Module:
    """`module` for inference, with constants that show in its results."""
    module.eval().requires_grad_(False)
    disturb(module)
    _by_name = _Named(module, tuple(call))
    settle_batch_norms(_by_name, tuple(call.values()))
    return module


class _Named(nn.Module):
    """Positional arguments to a module that takes them by name."""

    def __init__(self, module: nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *args: Any) -> Any:
        return self.module(**dict(zip(self.names, args, strict=True)))


def difference(got: Any, expected: Any) -> float:
    """The largest error of an output, of its largest magnitude; infinite where structure, types or NaN differ."""
    (mine, shape), (theirs, wanted) = pytree.tree_flatten(got), pytree.tree_flatten(expected)
    if shape != wanted:
        return float("inf")
    return max((_one(g, w) for g, w in zip(mine, theirs, strict=True)), default=0.0)


def _one(got: Any, expected: Any) -> float:
    if not isinstance(expected, Tensor):
        return 0.0 if got == expected else float("inf")
    if not isinstance(got, Tensor) or (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return float("inf")
    if expected.is_complex():
        got, expected = torch.view_as_real(got), torch.view_as_real(expected)
    if not expected.is_floating_point():
        return 0.0 if torch.equal(got, expected) else float("inf")
    finite = expected.isfinite()
    if not torch.equal(finite, got.isfinite()) or not torch.equal(
        got[~finite].nan_to_num(), expected[~finite].nan_to_num()
    ):
        return float("inf")
    g, w = got[finite].double(), expected[finite].double()
    return float((g - w).abs().max() / max(1.0, float(w.abs().max()))) if w.numel() else 0.0


def check(case: Architecture, *, dynamic: bool, interpreted: bool = False) -> float:
    """The difference from eager PyTorch: compiled for the first sizes and run at them, or at the second ones.

    interpreted: imported and run by the reference interpreter, which leaves code generation out.
    """
    import ingot

    net = case.build()
    traced, other = case.sizes
    example = net.call(*traced)
    make = _interpreted if interpreted else ingot.compile
    model = make(net.module, dict(example), dynamic=_open(net, case) if dynamic else None)
    call = net.call(*other) if dynamic else example
    with torch.no_grad():
        expected = net.module(**_copied(call))
    return difference(model(**_copied(call)), expected)


def _interpreted(module: nn.Module, example: dict[str, Any], dynamic: Any) -> Callable[..., Any]:
    from ingot.frontends.torch import export_module, import_exported
    from ingot.frontends.torch.convert import to_numpy, to_torch
    from ingot.ir.interp import interpret

    imported = import_exported(export_module(module, example, dynamic))

    def graph(inputs: Sequence[Tensor]) -> list[Tensor]:
        return [to_torch(a) for a in interpret(imported.graph, [to_numpy(t) for t in inputs])]

    return imported.caller(graph)


def _open(net: Net, case: Architecture) -> Mapping[str, Any] | None:
    """The dynamic axes; a length that the architecture fixes has equal sizes twice."""
    if net.dynamic is None or case.sizes[0][1] != case.sizes[1][1]:
        return net.dynamic
    return {k: {axis: name for axis, name in axes.items() if name == "batch"} for k, axes in net.dynamic.items()}


def _copied(call: Call) -> dict[str, Any]:
    return {k: v.clone() if isinstance(v, Tensor) else v for k, v in call.items()}


def takes(module: nn.Module, name: str) -> bool:
    return name in inspect.signature(module.forward).parameters
