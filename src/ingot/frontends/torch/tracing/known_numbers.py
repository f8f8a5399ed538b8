"""Buffers of one integer as known numbers, where torch.export would treat them as data.

self.register_buffer("stride", torch.tensor(2))          as codecs do (EnCodec, Mimi)
n = (x.shape[-1] - self.kernel) / self.stride + 1        a size, if stride is known
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


class KnownNumbers(TorchFunctionMode):
    """Within it, reads of such buffers of `net` give constants. is_written: whether some op writes one, so that its
    value is not known."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.names = {name: int(b.item()) for name, b in net.named_buffers() if _is_number(b)}
        self.is_written = False
        self._values: dict[int, tuple[Tensor, int]] = {}

    @contextmanager
    def of(self, net: nn.Module) -> Iterator[None]:
        """While torch traces `net`, which substitutes its buffers in each call."""

        def begin(module: nn.Module, *_: object) -> None:
            buffers = dict(module.named_buffers())
            self._values = {id(buffers[name]): (buffers[name], value) for name, value in self.names.items()}

        def end(module: nn.Module, *_: object) -> None:
            buffers = dict(module.named_buffers())
            self.is_written |= any(id(buffers.get(name)) not in self._values for name in self.names)

        hooks = net.register_forward_pre_hook(begin), net.register_forward_hook(end)
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        arguments = (args, kwargs or {})
        if any(id(v) in self._values for v in pytree.tree_leaves(arguments)):
            name = getattr(func, "__name__", "")
            self.is_written |= name.startswith("__i") or name == "__setitem__" or name.rstrip("_") + "_" == name
            arguments = pytree.tree_map(self._number_of, arguments)
        return func(*arguments[0], **arguments[1])

    def _number_of(self, value: Any) -> Any:
        number = self._values.get(id(value))
        return value if number is None else torch.tensor(number[1], dtype=number[0].dtype)


def _is_number(buffer: Tensor) -> bool:
    return (
        not buffer.shape and not buffer.is_floating_point() and not buffer.is_complex() and buffer.device.type == "cpu"
    )
