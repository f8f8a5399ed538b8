"""Tracing nn.TransformerEncoder and decoder without testing whether a given mask is causal.

They branch on the mask's values, which torch.export cannot trace, and pass the answer on as a hint. The hint is
redundant, as the mask is passed, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.nn.modules import transformer


@contextmanager
def masks_unread() -> Iterator[None]:
    """Within the block, a mask counts as causal only where the caller says so."""
    detector = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = _causal_hint
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = detector


def _causal_hint(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True
