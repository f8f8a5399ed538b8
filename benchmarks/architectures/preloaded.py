"""What every process that checks an architecture has, before it is forked; no thread may be started here."""

import contextlib
import logging
import warnings

import torch

import ingot.pipeline.cpu
from benchmarks import architectures
from ingot.frontends.torch import export_module, import_exported

warnings.simplefilter("ignore")
torch.set_num_threads(1)
logging.getLogger("torch").setLevel(logging.ERROR)
with contextlib.suppress(ModuleNotFoundError):
    architectures.library("transformers").logging.set_verbosity_error()
    architectures.library("transformers.modeling_utils")
# most of what an export imports is imported by its first one
import_exported(export_module(torch.nn.Linear(2, 2), (torch.ones(3, 2),), {"input": {0: "n"}}))

__all__ = ["architectures", "ingot"]
