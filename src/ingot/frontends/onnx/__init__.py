"""ONNX models as graphs: `import_onnx`."""

from ingot.support.errors import ImportModelError

try:
    from ingot.frontends.onnx import protos  # noqa: F401
except ImportError as e:
    fix = "pip install 'ingot-compiler[onnx]'"
    raise ImportModelError("reading ONNX models needs the onnx package", fix=fix) from e

from ingot.frontends.onnx.host import hosted, stages_of
from ingot.frontends.onnx.importer import import_onnx, inner_values, open_axes

__all__ = ["hosted", "import_onnx", "inner_values", "open_axes", "stages_of"]
