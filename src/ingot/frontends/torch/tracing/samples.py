"""Detecting writes that change no version counter: `p.data -= rate * p.grad` leaves p's version unchanged."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_SAMPLE_ELEMENTS = (
    16  # adjacent elements in the middle of each tensor, the fastest to read: an optimizer changes nearly all
)


class Samples:
    """Elements of tensors in the CPU's memory, to be compared with their earlier values.

    Reading from a GPU would stall it. A write that touches none of the elements is missed.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        views: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors:
            if tensor.is_cpu and tensor.layout == torch.strided and tensor.numel():
                views.setdefault(tensor.dtype, []).append(_sample(tensor.detach()))
        self._views = [(v, torch.cat(v)) for v in views.values()]

    def changed(self) -> bool:
        return any([not _is_equal(torch.cat(views), before) for views, before in self._views])


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    # compared as bits, a NaN equals itself
    return torch.equal(a, b) or torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    if reach != tensor.numel():  # the memory has gaps or overlapping elements
        return tensor[(slice(0, 1),) * tensor.dim()].reshape(1)
    count = min(reach, _SAMPLE_ELEMENTS)
    return tensor.as_strided((count,), (1,), tensor.storage_offset() + (reach - count) // 2)
