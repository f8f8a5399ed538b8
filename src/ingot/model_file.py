"""What a file holds, by its content and not by its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from ingot.runtime import artifact
from ingot.support.files import open_regular
from ingot.support.formats import Format, foreign

Kind = Literal["onnx", "torch", "stablehlo", "artifact"]
# MLIR: bytecode, or text that begins with a module, a function or an alias, comments before it
_MLIR = re.compile(rb"ML\xefR|(?:\s|//[^\n]*\n)*(?:module\b|\"builtin\.module\"|func\.func\b|[#!]\w+ = )")
_HEAD = 4096
_ZIP = b"PK\x03\x04"  # torch.export.save writes a zip archive


def kind_of(path: Path) -> Kind | Format:
    """What to read the file as, ONNX having no mark of its own, or what it is that is not read. Raises OSError."""
    if found := foreign(path):
        return found
    with open_regular(path) as file:
        head = file.read(_HEAD)
    if head.startswith(artifact.MAGIC):
        return "artifact"
    if _MLIR.match(head):
        return "stablehlo"
    return "torch" if head.startswith(_ZIP) else "onnx"
