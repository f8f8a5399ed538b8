"""PyTorch in: `export_module` traces an nn.Module, `import_exported` turns the program into a graph.

program = export_module(net, (x,), dynamic={"x": {0: "batch"}})
imported = import_exported(program)
imported.graph                                    # the graph, sizes symbolic
imported.inputs.flatten(args, kwargs)             # the user's call -> the graph's inputs
imported.outputs.unflatten(tensors)               # the graph's outputs -> the model's own structure
"""

from ingot.support.errors import ImportModelError
from ingot.support.log import warn_if_untested

try:
    import torch
except ImportError as e:
    raise ImportModelError("reading PyTorch models needs PyTorch", fix="pip install 'ingot-compiler[torch]'") from e
else:
    warn_if_untested("torch", torch.__version__)

from ingot.frontends.torch.convert import to_torch
from ingot.frontends.torch.export import export_module
from ingot.frontends.torch.file import import_sized, load_exported
from ingot.frontends.torch.model import ImportedModel
from ingot.frontends.torch.program import import_exported

__all__ = ["ImportedModel", "export_module", "import_exported", "import_sized", "load_exported", "to_torch"]
