"""A module with its loss, to be exported for training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ingot.frontends.shared.targets import check_loss, target_names
from ingot.frontends.torch.export import Inputs
from ingot.support.errors import InputError

PREFIX = "net."  # of the names of the module's tensors


class WithLoss(nn.Module):
    """Called with the module's arguments, then the targets: (loss, results); without a loss, the results."""

    def __init__(self, net: nn.Module, loss: Callable[..., Any] | None, targets: int) -> None:
        super().__init__()
        self.net, self._loss, self._targets = net, loss, targets
        self.training = False  # of this module alone: the inner module keeps its mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._loss is None:
            return self.net(*args, **kwargs)
        count = len(args) - self._targets
        results = self.net(*args[:count], **kwargs)
        value = self._loss(results, *args[count:])
        check_loss(value, Tensor, "tensor")
        return value, results


def with_loss(
    net: nn.Module, loss: Callable[..., Any] | None, example_inputs: Any, targets: tuple[Any, ...], dynamic: Any
) -> tuple[WithLoss, Inputs, Any]:
    """The module to export, its example inputs and their `dynamic`. targets: examples, where the loss is a function.

    Raises InputError for example inputs that are missing, and names in `dynamic` that are no arguments.
    """
    if example_inputs is None:
        fix = "ingot.train(net, loss, optimizer, (x,), (y,))"
        raise InputError("example_inputs", expected="example inputs", got="none", fix=fix)
    read = targets if loss is not None else ()
    module = WithLoss(net, loss, len(read))
    if isinstance(example_inputs, Mapping):
        if read:
            fix = "give the inputs as a tuple"
            raise InputError("example_inputs", expected="a tuple, with a loss function", got="a mapping", fix=fix)
        return module, example_inputs, dynamic
    inputs = (*(example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)), *read)
    return module, inputs, _positional(net, dynamic, len(inputs), len(read))


def _positional(net: nn.Module, dynamic: Any, count: int, targets: int) -> Any:
    """`dynamic` by the names of forward's arguments, and `target` or `target_1`..., for arguments by position."""
    if not isinstance(dynamic, Mapping):
        return dynamic if dynamic is None or isinstance(dynamic, bool | str) else {"args": tuple(dynamic)}
    own_names = list(inspect.signature(net.forward).parameters)[: count - targets]
    names = [*own_names, *target_names(targets)]
    if unknown := [k for k in dynamic if k not in names]:
        raise InputError("dynamic", expected=f"some of {', '.join(names)}", got=unknown)
    return {"args": tuple(dynamic.get(n) for n in names)}
