"""torchvision's suppression by class, as torch.export can trace it.

    batched_nms(boxes, scores, classes, t)   ->   nms(boxes + classes * (boxes.max() + 1), scores, t)

torchvision branches on the number of boxes, which is known only at run time: it returns early for none, and loops over
the classes for more than a thousand. For fewer boxes it shifts the boxes of each class apart, which is also right for
no boxes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def suppression_in_one() -> Iterator[None]:
    """Within the block, torchvision's `batched_nms` does not branch, if torchvision is loaded."""
    holders = [sys.modules[name] for name in ("torchvision.ops.boxes", "torchvision.ops") if name in sys.modules]
    originals = [module.batched_nms for module in holders]
    for module in holders:
        module.batched_nms = _batched_nms  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, original in zip(holders, originals, strict=True):
            module.batched_nms = original  # type: ignore[attr-defined]


def _batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    offsets = idxs.to(boxes) * (boxes.max() + torch.tensor(1).to(boxes))
    return torch.ops.torchvision.nms(boxes + offsets[:, None], scores, iou_threshold)
