"""Keeps recurrent ops whole while torch traces.

torch's own rule for `aten.lstm`, `gru` and `rnn` runs the recurrence step by step even to learn the shape of its
result, which takes seconds and fixes the length of the sequence. Here they get rules that give the shape alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table

from ingot.frontends.torch.tracing.switch import Switch

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


def _output(x: Tensor, hidden: Tensor, bidirectional: bool) -> Tensor:
    return x.new_empty((*x.shape[:-1], hidden.shape[-1] * (2 if bidirectional else 1)))


def _lstm(x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
          train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _output(x, hx[0], bidirectional), torch.empty_like(hx[0]), torch.empty_like(hx[1])


def _simple(x: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
            train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _output(x, hx, bidirectional), torch.empty_like(hx)


_RULES: tuple[tuple[torch._ops.OpOverload, Callable[..., Any]], ...] = (
    (torch.ops.aten.lstm.input, _lstm),
    (torch.ops.aten.gru.input, _simple),
    (torch.ops.aten.rnn_tanh.input, _simple),
    (torch.ops.aten.rnn_relu.input, _simple),
)


def _install() -> None:
    """Put the rules before torch's own, for tracing: only Python's dispatcher asks them."""
    for op, rule in _RULES:
        for key in _KEYS:
            op.py_kernels[key] = _with_rule(rule, op.py_kernels[key])
        # asked first for tensors of symbolic sizes, when a program is decomposed
        if op in decomposition_table:
            decomposition_table[op] = _with_rule(rule, decomposition_table[op])
        op._dispatch_cache.clear()


def _with_rule(rule: Callable[..., Any], torchs: Callable[..., Any]) -> Callable[..., Any]:
    def select(*args: Any, **kwargs: Any) -> Any:
        return (rule if whole_recurrences.on else torchs)(*args, **kwargs)

    return select


# within it, tracing records recurrent ops with their shapes; models that run are not touched
whole_recurrences = Switch("ingot_whole_recurrences", _install)
