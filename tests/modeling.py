"""Networks of `transformers`, which text models can build whether torchvision is fit or not."""

from __future__ import annotations

import sys
from typing import Any

import pytest


def modeling(name: str) -> Any:
    """The module `transformers.models.NAME.modeling_NAME`; skips the test where there is none."""
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        if "torchvision" not in sys.modules:  # one of another PyTorch fails at import
            patch.setitem(sys.modules, "torchvision", None)
        return pytest.importorskip(f"transformers.models.{name}.modeling_{name}", exc_type=ImportError)
