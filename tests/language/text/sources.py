"""Where files of llama.cpp's repository lie, which the source package of its Python binding has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HOW = (
    "pip download --no-binary :all: --no-deps --no-build-isolation llama-cpp-python (scikit-build-core installed), "
    "unpack it, and set INGOT_LLAMA_CPP=.../vendor/llama.cpp"
)


def llama_cpp(inside: str) -> Path:
    """A folder of its repository. Skips the test where there is none."""
    root = os.environ.get("INGOT_LLAMA_CPP")
    folder = Path(root or ".") / inside
    if not root or not folder.is_dir():
        pytest.skip(f"llama.cpp's files are not there: {HOW}")
    return folder
