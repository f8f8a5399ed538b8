"""TensorFlow's models as graphs: `import_tensorflow` reads files without TensorFlow, `of_function` takes functions."""

from ingot.frontends.tensorflow.function import of_function
from ingot.frontends.tensorflow.model import ImportedModel, import_tensorflow

__all__ = ["ImportedModel", "import_tensorflow", "of_function"]
