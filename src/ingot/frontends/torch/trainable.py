"""A module together with its loss, to be exported for training."""

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
    """Called with the module's arguments and the targets behind them: (loss, results); without a loss, the results."""

    def __init__(self, net: nn.Module, loss: Callable[..., Any] | None, targets: int) -> None:
        super().__init__()
        self.net, self._loss, self._targets = net, loss, targets
        self.training = False  # of this module alone: the one inside stays in the mode that it is in

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._loss is None:
            return self.net(*args, **kwargs)
        count = len(args) - self._targets
        out = self.net(*args[:count], **kwargs)
        value = self._loss(out, *args[count:])
        check_loss(value, Tensor, "tensor")
        return value, out


def with_loss(
    net: nn.Module, loss: Callable[..., Any] | None, example_inputs: Any, targets: tuple[Any, ...], dynamic: Any
) -> tuple[WithLoss, Inputs, Any]:
    """The module to export, its example inputs and `dynamic` for them. targets: examples, where the loss is a function.

    Raises InputError for example inputs that are missing, and names in `dynamic` that are no arguments.
    """
    if example_inputs is None:
        fix = "ingot.train(net, loss, optimizer, (x,), (y,))"
        raise InputError("example_inputs", expected="example inputs", got="none", fix=fix)
    read = targets if loss is not None else ()
    whole = WithLoss(net, loss, len(read))
    if isinstance(example_inputs, Mapping):
        if read:
            fix = "give the inputs as a tuple"
            raise InputError("example_inputs", expected="a tuple, with a loss function", got="a mapping", fix=fix)
        return whole, example_inputs, dynamic
    inputs = (*(example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)), *read)
    return whole, inputs, _positional(net, dynamic, len(inputs), len(read))


def _positional(net: nn.Module, dynamic: Any, count: int, targets: int) -> Any:
    """`dynamic` by the names of forward's arguments, and `target` or `target_1`..., for arguments by position."""
    if not isinstance(dynamic, Mapping):
        return dynamic if dynamic is None or isinstance(dynamic, bool | str) else {"args": tuple(dynamic)}
    own_names = list(inspect.signature(net.forward).parameters)[: count - targets]
    names = [*own_names, *target_names(targets)]
    if unknown := [k for k in dynamic if k not in names]:
        raise InputError("dynamic", expected=f"some of {', '.join(names)}", got=unknown)
    return {"args": tuple(dynamic.get(n) for n in names)}
