"""Ingot: a trained model goes in, one optimized native program comes out.

    import ingot
    m = ingot.compile("model.onnx")          # or a ModelProto, an nn.Module with example inputs, an ExportedProgram
    y = m(x)
    m.save("model.ingot"); m = ingot.load("model.ingot")

Importing this package imports the runtime only: a saved artifact needs neither the compiler nor a framework.
"""

from typing import TYPE_CHECKING

from ingot.api import lazy
from ingot.api.attack import attack
from ingot.api.attribute import attribute, attribution
from ingot.api.bounds import bounds
from ingot.api.certify import certify
from ingot.api.compile import compile
from ingot.api.export import export
from ingot.api.grad import grad, value_and_grad
from ingot.api.load import load
from ingot.api.prune import prune
from ingot.api.quantize import quantize
from ingot.api.register_op import register_op
from ingot.api.simulate import simulate
from ingot.api.train import train
from ingot.integrations.jax import jit
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import (
    ArtifactError,
    CompileError,
    ConstraintError,
    DeviceError,
    ImportModelError,
    IngotError,
    InputError,
    LimitError,
    ShapeError,
    UnsupportedOpError,
    VerifyError,
)
from ingot.support.limits import Limits

if TYPE_CHECKING:
    from ingot import ops as ops
    from ingot import optim as optim
    from ingot.api.language_model import LanguageModel
    from ingot.api.launch import launch
    from ingot.integrations.onnxruntime.session import InferenceSession
    from ingot.transform.train.adversary import Adversary

__all__ = [
    "Adversary", "ArtifactError", "CompileError", "CompiledModel", "ConstraintError", "DeviceError",
    "ImportModelError", "InferenceSession", "IngotError", "InputError", "LanguageModel", "LimitError", "Limits",
    "ShapeError", "UnsupportedOpError", "VerifyError", "__version__", "attack", "attribute", "attribution",
    "bounds", "certify", "compile", "export", "grad", "jit", "launch", "load", "prune", "quantize", "register_op",
    "simulate", "train", "value_and_grad",
]  # fmt: skip

__version__ = "0.2.0"

__getattr__, __dir__ = lazy.attach(
    __name__,
    __all__,
    ("ops", "optim"),
    {
        "Adversary": "ingot.transform.train.adversary",
        "InferenceSession": "ingot.integrations.onnxruntime.session",
        "LanguageModel": "ingot.api.language_model",
        "launch": "ingot.api.launch",
    },
)
