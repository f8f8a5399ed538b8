"""Sparse gradients of tables: the graph gives their indices and values, and torch's tensors are made of them outside.

return sparse_coo([30, 8], places, rows), dw   ->   return places, rows, dw
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

_sparse = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default

Join = Callable[[Sequence[Any]], tuple[Any, ...]]


def split_sparse(graph: fx.Graph) -> Join | None:
    """Lets `graph` give the parts of results that are sparse tensors of known size; what makes the results of them.

    None where there are no such. Others stay, and are refused by name.
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
        left = iter(parts)
        return tuple([next(left) if maker is None else maker(next(left), next(left)) for maker in makers])

    return join


def _maker(result: object) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    if not isinstance(result, fx.Node) or result.target is not _sparse:
        return None
    sparse_dims, dense_dims, size = result.args[:3]
    if not isinstance(size, Sequence) or not all(isinstance(n, int) for n in size):
        return None
    return partial(_sparse, sparse_dims, dense_dims, size, **result.kwargs)
