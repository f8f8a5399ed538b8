"""A module through export, import and the interpreter, against PyTorch itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from ingot.frontends.torch import ImportedModel, export_module, import_exported
from ingot.frontends.torch.convert import to_numpy, to_torch
from ingot.integrations.torch_compile import ingot_backend
from ingot.ir.interp import interpret


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def run(model: ImportedModel, *args: Any, **kwargs: Any) -> Any:
    """The imported model on torch tensors, interpreted, in the model's own structure."""

    def graph(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        # rows, as compiled code gives them
        return [to_torch(a.copy(order="C")) for a in interpret(model.graph, [to_numpy(t) for t in inputs])]

    return model.caller(graph)(*args, **kwargs)


def close(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """The same structure, dtypes and shapes; floats within `tolerance` of the largest magnitude, NaN where NaN is."""
    flat, spec = pytree.tree_flatten(got)
    reference, wanted_spec = pytree.tree_flatten(expected)
    assert spec == wanted_spec
    for g, w in zip(flat, reference, strict=True):
        if not isinstance(w, torch.Tensor):
            assert g == w
            continue
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        if w.is_complex():
            g, w = torch.view_as_real(g.resolve_conj()), torch.view_as_real(w.resolve_conj())
        if not w.is_floating_point():
            assert torch.equal(g, w)
            continue
        finite = w[w.isfinite()].double()
        scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
        torch.testing.assert_close(g.double(), w.double(), rtol=0, atol=tolerance * scale, equal_nan=True)


def agree(target: Callable[..., Any] | nn.Module, *args: Any, tolerance: float = 1e-5) -> ImportedModel:
    """`target` on `args`: the imported graph gives what PyTorch gives. Returns the imported model."""
    net = (target if isinstance(target, nn.Module) else Function(target)).eval()
    with torch.no_grad():
        expected = net(*pytree.tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, args))
    model = import_exported(export_module(net, args))
    close(run(model, *args), expected, tolerance)
    return model


# torch.compile in one piece, by Ingot where no backend is named: dynamo raises where it would else leave a part, or
# all, to eager PyTorch. A test of what cannot be one piece says fullgraph=False, and asserts its programs and `breaks`.
compile_whole = partial(torch.compile, backend="ingot", fullgraph=True)


def breaks() -> set[str]:
    """What dynamo has broken graphs for, since `fresh_dynamo` began a test."""
    return {str(reason).partition("\n")[0] for reason in counters["graph_break"]}


class Spy:
    """Compiles, by interpretation where not told otherwise, and counts."""

    def __init__(self, compile_model: Callable[..., Any] | None = None) -> None:
        self.models: list[ImportedModel] = []
        self._compile = compile_model or partial(partial, run)

    def __call__(self, model: ImportedModel) -> Callable[..., Any]:
        self.models.append(model)
        return self._compile(model)

    @property
    def backend(self) -> Callable[..., Any]:
        return partial(ingot_backend, compile_model=self)
