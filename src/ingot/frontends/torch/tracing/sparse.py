"""Sparse gradients of embedding tables: the graph returns indices and values, and torch's tensors are built outside.

return sparse_coo([30, 8], places, rows), dw   ->   return places, rows, dw

torch omits rows of padding, so that the number of rows depends on data: that cannot be traced, and dynamo would run the
whole function eagerly. Here they are kept as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import DispatchKey

from ingot.frontends.torch.tracing.switch import Switch

_sparse = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
_backward = torch.ops.aten.embedding_sparse_backward.default
_COMPOSITE = DispatchKey.CompositeImplicitAutograd

Join = Callable[[Sequence[Any]], tuple[Any, ...]]


def split_sparse(graph: fx.Graph) -> Join | None:
    """Replaces results of `graph` that are sparse tensors of known size by their parts; returns the function that joins

    the parts again, None without such results. Other sparse results stay, and are refused by name.
    """
    (end,) = graph.find_nodes(op="output")
    results: Sequence[Any] = end.args[0]
    makers = [_maker(r) for r in results]
    if not any(makers):
        return None
    pairs = zip(results, makers, strict=True)
    end.args = (tuple(part for r, maker in pairs for part in (r.args[3:5] if maker else (r,))),)
    graph.eliminate_dead_code()

    def join(parts: Sequence[Any]) -> tuple[Any, ...]:
        remaining = iter(parts)
        return tuple(
            [next(remaining) if maker is None else maker(next(remaining), next(remaining)) for maker in makers]
        )

    return join


def _maker(result: object) -> Callable[[Tensor, Tensor], Tensor] | None:
    if not isinstance(result, fx.Node) or result.target is not _sparse:
        return None
    sparse_dims, dense_dims, size = result.args[:3]
    if not isinstance(size, Sequence) or not all(isinstance(n, int) for n in size):
        return None
    return partial(_sparse, sparse_dims, dense_dims, size, **result.kwargs)


def _install() -> None:
    # only Python's dispatcher, which is active while torch traces, uses it
    _backward.py_impl(_COMPOSITE)(_rows)


def _rows(grad: Tensor, indices: Tensor, count: int, padding: int, by_frequency: bool) -> Tensor:
    if padding_as_zeros.on and padding >= 0:
        grad, padding = torch.where((indices == padding)[..., None], 0.0, grad), -1
    return _backward._op_dk(_COMPOSITE, grad, indices, count, padding, by_frequency)


# within it, traced sparse gradients have zeros as rows of padding; eager execution is unaffected
padding_as_zeros = Switch("ingot_padding_as_zeros", _install)
