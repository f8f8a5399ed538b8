"""Hugging Face folders: config.json and safetensors, with float or quantized weights."""

from ingot.frontends.huggingface.folder import Folder
from ingot.frontends.huggingface.weights import FolderWeights

__all__ = ["Folder", "FolderWeights"]
