"""Keeps recurrent ops whole while torch traces.

torch's own rule for `aten.lstm`, `gru` and `rnn` runs the recurrence step by step even to learn the shape of its
result, which takes seconds and fixes the length of the sequence. Here they get rules that give the shape alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch._C import DispatchKey

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
_LOCK = threading.RLock()


def _output(x: Tensor, hidden: Tensor, bidirectional: bool) -> Tensor:
    return x.new_empty((*x.shape[:-1], hidden.shape[-1] * (2 if bidirectional else 1)))


def _lstm(x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
          train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _output(x, hx[0], bidirectional), torch.empty_like(hx[0]), torch.empty_like(hx[1])


def _simple(x: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
            train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _output(x, hx, bidirectional), torch.empty_like(hx)


_RULES: tuple[tuple[torch._ops.OpOverload, Callable[..., object]], ...] = (
    (torch.ops.aten.lstm.input, _lstm),
    (torch.ops.aten.gru.input, _simple),
    (torch.ops.aten.rnn_tanh.input, _simple),
    (torch.ops.aten.rnn_relu.input, _simple),
)


@contextlib.contextmanager
def whole_recurrences() -> Iterator[None]:
    """Within it, tracing records recurrent ops with their shapes. Not for running models: results are uninitialised."""
    with _LOCK:
        before = [dict(op.py_kernels) for op, _ in _RULES]
        try:
            for op, rule in _RULES:
                op.py_kernels.update(dict.fromkeys(_KEYS, rule))
                op._dispatch_cache.clear()
            yield
        finally:
            for (op, _), kernels in zip(_RULES, before, strict=True):
                op.py_kernels.clear()
                op.py_kernels.update(kernels)
                op._dispatch_cache.clear()
