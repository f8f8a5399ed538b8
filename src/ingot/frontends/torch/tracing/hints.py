"""nn.TransformerEncoder and its decoder without the question whether a mask that was given is the causal one.

They compare its values and branch, which torch.export cannot trace, and hand the answer on as a hint beside the mask:
the mask says all that there is to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.nn.modules import transformer


@contextmanager
def masks_unread() -> Iterator[None]:
    """Within, a mask counts as causal only where the caller says so."""
    detector = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = _causal_hint
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = detector


def _causal_hint(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True
