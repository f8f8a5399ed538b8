"""TorchScript archives and ScriptModules, as modules that torch.export can trace."""

from ingot.frontends.torch.script.archive import load
from ingot.frontends.torch.script.evaluate import Evaluator
from ingot.frontends.torch.script.examples import examples
from ingot.frontends.torch.script.extract import extract
from ingot.frontends.torch.script.graph import Program

__all__ = ["Evaluator", "Program", "examples", "extract", "load"]
