"""Images on GPUs, where memory takes longer than arithmetic.

y = batch_norm(x)                 ->   (x - mean) * scale * weight + bias, which backward recomputes from x
conv(x, padding=1)                ->   conv(pad(x)), and pad(x) is saved: its kernel writes it, instead of a copy of
                                       x before the convolution in forward and another one in backward
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode

from ingot.frontends.torch.tracing.layouts import has_known_layout
from ingot.support.dataclass import dataclass

_aten = torch.ops.aten
_CONVOLUTION_BACKWARD = _aten.convolution_backward.default
_CHANNELS, _PIXELS = 4, 2  # of 16 bits in 8 bytes; of so many channels in 16 bytes
_IMAGE_ARGUMENT: dict[Any, int] = {_aten.convolution.default: 0, _CONVOLUTION_BACKWARD: 1}


def expand_norms(graph: fx.Graph) -> None:
    """Compute the results of batch norms in training mode from their operands and statistics."""
    for norm in graph.find_nodes(op="call_function", target=_aten._native_batch_norm_legit_functional.default):
        args: Any = norm.args
        x, weight, bias, _, _, is_training, *_ = args
        items: dict[Any, fx.Node] = {user.args[1]: user for user in norm.users}
        if not is_training or not {0, 1, 2} <= items.keys() or items[1].meta["val"].dtype != torch.float32:
            continue
        shape = [-1, *[1] * (x.meta["val"].dim() - 2)]
        steps = (
            (_aten.sub.Tensor, items[1]),
            (_aten.mul.Tensor, items[2]),
            (_aten.mul.Tensor, weight),
            (_aten.add.Tensor, bias),
        )
        value = x
        with graph.inserting_before(max(items.values()).next):
            for target, channels in steps:
                if channels is not None:
                    value = _call(graph, target, value, _call(graph, _aten.view.default, channels, shape))
            value = _call(graph, _aten._to_copy.default, value, dtype=items[0].meta["val"].dtype)
        items[0].replace_all_uses_with(value)


def _window(reader: fx.Node) -> Any:
    """(image, kernel, bias, strides, pads, dilations, is transposed, ...) of a convolution or of its gradients."""
    return reader.args[_IMAGE_ARGUMENT[reader.target] :]


def _pads(reader: fx.Node) -> tuple[int, ...]:
    """The pads along each axis."""
    image, pads = _window(reader)[0], _window(reader)[4]
    return tuple(pads) * (image.meta["val"].dim() - 2) if len(pads) == 1 else tuple(pads)


def pad_images(graph: fx.Graph) -> None:
    """Pad images once that convolutions read with a border of zeros and whose kernels' gradients read them again."""
    (end,) = graph.find_nodes(op="output")
    images: list[Any] = [n.args[1] for n in graph.find_nodes(op="call_function", target=_CONVOLUTION_BACKWARD)]
    for x in dict.fromkeys(images):
        if x.op == "placeholder" or end in x.users or not has_known_layout(x.meta.get("val")):
            continue
        readers = [n for n in x.users if n.target in _IMAGE_ARGUMENT and _window(n)[0] is x]
        borders = {pads for n in readers if any(pads := _pads(n))}
        # without a border and strides, the rows of a product are all pixels, which are side by side in memory
        reads_rows = any(not any(_pads(n)) and {*_window(n)[3]} == {1} for n in readers)
        is_transposed = any(_window(n)[6] for n in readers)
        if len(borders) != 1 or reads_rows or is_transposed:
            continue
        (border,) = borders
        padded_readers = [n for n in readers if any(_pads(n))]
        more = _MorePads.of(padded_readers)
        image = x.meta["val"]
        sizes = [n + 2 * p for n, p in zip(image.shape[2:], border, strict=True)]
        amounts = [n for p in reversed(border) for n in (p, p)]
        with graph.inserting_before(x.next):
            if more is not None:
                amounts[1] += more.columns + -(sizes[-1] + more.columns) % _PIXELS
                amounts += [0, more.channels]
            padded = read = inner = _call(graph, _aten.constant_pad_nd.default, x, amounts, 0.0)
            if more is not None:
                read = _call(graph, _aten.slice.Tensor, padded, image.dim() - 1, 0, sizes[-1] + more.columns)
                inner = _call(graph, _aten.slice.Tensor, padded, 1, 0, image.shape[1])
            for axis, p in enumerate(border, 2):
                inner = _call(graph, _aten.slice.Tensor, inner, axis, p, p + image.shape[axis])
        for reader in padded_readers:
            is_forward = reader.target is not _CONVOLUTION_BACKWARD
            own = reader if is_forward else _split_gradients(graph, reader)
            own.replace_input_with(x, read)
            own.update_arg(_IMAGE_ARGUMENT[own.target] + 4, [0] * len(border))
            if more is not None:
                more.widen_kernel(graph, own)
        for user in [n for n in x.users if n is not padded]:
            user.replace_input_with(x, inner)


@dataclass(frozen=True)
class _MorePads:
    """Zeros behind the channels of an image and the columns of its kernels, so that lines of a window are read in
    vectors of 16 bytes:   7x7 kernels of 3 channels -> 7x8 of 4."""

    channels: int
    columns: int

    @staticmethod
    def of(readers: list[fx.Node]) -> _MorePads | None:
        """Those of an image of few channels of 16 bits whose gradient nobody wants; None if it needs none."""
        (kernel, *others) = {_window(n)[1].meta["val"].shape for n in readers}
        image = _window(readers[0])[0].meta["val"]
        groups = {_window(n)[8] for n in readers if n.target is not _CONVOLUTION_BACKWARD}
        masks: list[Any] = [n.args[-1] for n in readers if n.target is _CONVOLUTION_BACKWARD]
        wants_image = any(mask[0] for mask in masks)
        channels = -image.shape[1] % _CHANNELS
        if others or wants_image or groups != {1} or image.dtype.itemsize != 2 or image.dim() != 4:
            return None
        if not channels or not _CHANNELS < 2 * image.shape[1] < 2 * _CHANNELS:
            return None
        return _MorePads(channels, -kernel[-1] % _PIXELS)

    def widen_kernel(self, graph: fx.Graph, reader: fx.Node) -> None:
        """Give a convolution, or the gradient of its kernel, a kernel of as many channels and columns."""
        kernel = _window(reader)[1]
        *_, columns = kernel.meta["val"].shape
        with graph.inserting_before(reader):
            amounts = [0, self.columns, 0, 0, 0, self.channels]
            wide = _call(graph, _aten.constant_pad_nd.default, kernel, amounts, 0.0)
        reader.replace_input_with(kernel, wide)
        if reader.target is not _CONVOLUTION_BACKWARD:
            return
        for item in [user for user in reader.users if user.args[1] == 1]:
            readers = list(item.users)
            item.meta["val"] = wide.meta["val"]
            with graph.inserting_before(item.next):
                inner = _call(graph, _aten.slice.Tensor, item, 1, 0, kernel.meta["val"].shape[1])
                inner = _call(graph, _aten.slice.Tensor, inner, 3, 0, columns)
            for user in readers:
                user.replace_input_with(item, inner)
        reader.meta["val"] = (None, wide.meta["val"], *reader.meta["val"][2:])


def _split_gradients(graph: fx.Graph, backward: fx.Node) -> fx.Node:
    """Compute the gradients of a convolution's kernel and bias by a call of their own, which is returned. That of its
    image, which `backward` is left with, reads no elements of the image."""
    args: Any = backward.args
    *operands, mask = args
    with graph.inserting_after(backward):
        others = graph.call_function(_CONVOLUTION_BACKWARD, (*operands, [False, *mask[1:]]))
    backward.args = (*operands, [mask[0], False, False])
    image, *values = backward.meta["val"]
    others.meta["val"], backward.meta["val"] = (None, *values), (image, None, None)
    for item in [user for user in backward.users if user.args[1] != 0]:
        item.replace_input_with(backward, others)
    return others


def _call(graph: fx.Graph, target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
    """A call with its value."""
    node = graph.call_function(target, args, kwargs)
    values: Any = fx.map_arg(args, lambda n: n.meta["val"])
    with detect_fake_mode(values) or nullcontext():
        node.meta["val"] = target(*values, **kwargs)
    return node
