"""GGUF files, as llama.cpp writes them: metadata, and weights in blocks."""

from ingot.frontends.gguf.blocks import FORMATS, BlockFormat
from ingot.frontends.gguf.file import GGUFFile, Tensor, Value
from ingot.frontends.gguf.weights import GGUFWeights

__all__ = ["FORMATS", "BlockFormat", "GGUFFile", "GGUFWeights", "Tensor", "Value"]
