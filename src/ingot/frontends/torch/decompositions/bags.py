"""Backward passes of embedding bags. Each takes the arguments of the ATen op that it replaces."""

from __future__ import annotations

import torch
from torch import Tensor

_MEAN, _MAX = 1, 2


def table(
    grad: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, sizes: Tensor, maxima: Tensor, rows: int,
    scale_by_frequency: bool, mode: int, sparse: bool, weights: Tensor | None, padding: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient of the table: each row gets those of the bags that contain it, for maxima where it is the first one.

    bag: of each index, or empty. sizes: of bags, without padding. weights: of each index, for sums.
    """
    if sparse:
        return NotImplemented  # a sparse tensor, which the graph cannot express
    zeros = grad.new_zeros((rows, grad.shape[1]))
    if mode == _MAX:
        bag_gradients = torch.where((sizes != 0)[:, None], grad, 0.0)
        return zeros.scatter_add(0, maxima.to(torch.int64), bag_gradients)
    if mode == _MEAN:
        grad = grad / sizes.clamp(min=1)[:, None]
    row_gradients = grad.index_select(0, _bags(indices, offsets, bag))
    if weights is not None:
        row_gradients = row_gradients * weights[:, None]
    if scale_by_frequency:
        frequencies = indices.new_zeros(rows).index_add(0, indices, torch.ones_like(indices))
        row_gradients = row_gradients / frequencies.index_select(0, indices)[:, None]
    if padding >= 0:
        row_gradients = torch.where((indices == padding)[:, None], 0.0, row_gradients)
    return zeros.index_add(0, indices, row_gradients)


def _bags(indices: Tensor, offsets: Tensor, bag: Tensor) -> Tensor:
    """The bag of each index, from the number of bags that begin up to it."""
    if bag.shape[0]:
        return bag
    bag_starts = offsets.new_zeros(indices.shape[0] + 1).index_add(0, offsets, torch.ones_like(offsets))
    return bag_starts[:-1].cumsum(0) - 1


def weights(
    grad: Tensor, table: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, mode: int, padding: int = -1
) -> Tensor:
    """The gradient of the indices' weights, for bags that are sums."""
    gradients = (table.index_select(0, indices) * grad.index_select(0, _bags(indices, offsets, bag))).sum(1)
    return torch.where(indices == padding, 0.0, gradients) if padding >= 0 else gradients
