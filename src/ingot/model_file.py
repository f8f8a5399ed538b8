"""What a file holds, by its content and not by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ingot.runtime import artifact
from ingot.support.files import open_regular
from ingot.support.formats import Format, foreign

Kind = Literal["onnx", "torch", "artifact"]
_ZIP = b"PK\x03\x04"  # torch.export.save writes a zip archive


def kind_of(path: Path) -> Kind | Format:
    """What to read the file as, ONNX having no mark of its own, or what it is that is not read. Raises OSError."""
    if found := foreign(path):
        return found
    with open_regular(path) as file:
        head = file.read(len(artifact.MAGIC))
    if head == artifact.MAGIC:
        return "artifact"
    return "torch" if head.startswith(_ZIP) else "onnx"
