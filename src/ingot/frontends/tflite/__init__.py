"""TFLite models as graphs: `import_tflite` reads files and bytes, with nothing but numpy."""

from ingot.frontends.tflite.model import ImportedModel, import_tflite, sizes_in_file

__all__ = ["ImportedModel", "import_tflite", "sizes_in_file"]
