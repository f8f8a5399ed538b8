"""TensorFlow's models as graphs, read without TensorFlow: `import_tensorflow`; functions of a process that has it."""

from ingot.frontends.tensorflow.function import of_function
from ingot.frontends.tensorflow.model import ImportedModel, import_tensorflow

__all__ = ["ImportedModel", "import_tensorflow", "of_function"]
