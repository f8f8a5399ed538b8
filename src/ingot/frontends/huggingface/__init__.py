"""Folders of Hugging Face: config.json and safetensors, with floats or levels for weights."""

from ingot.frontends.huggingface.folder import Folder
from ingot.frontends.huggingface.weights import FolderWeights

__all__ = ["Folder", "FolderWeights"]
