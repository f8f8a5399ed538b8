"""AOTAutograd's joint graph of a step, partitioned into forward and backward.

The minimal cut is torch's (min_cut_rematerialization_partition). Before it, rewrites avoid saving a value twice:

    y = hardtanh(x, 0, 6); le(x, 0)   ->   le(y, 0): backward reads y, which the next layer saves, instead of x
    clone(x), detach(x)               ->   x: nothing is written in place in a functional graph
    unbind(x)[1]                      ->   select(x, 1), and likewise split: views that torch does not recognize
    native_batch_norm_backward(.., mean, variance, .., train=True)   ->   with None for the two, as they are not read
    a = x * 2; b = x * 2              ->   only a; torch's pass for this imports Inductor, which takes half a second
    y = f(p); copy_(p, z)             ->   f(clone(p)), which is saved where needed: backward would read z as p
    _to_copy(expand(x), f16)          ->   expand(_to_copy(x, f16))

On GPUs, where memory takes longer than arithmetic:

    y = batch_norm(x)                 ->   (x - mean) * scale * weight + bias, which backward recomputes from x
    conv(x, padding=1)                ->   conv(pad(x)), and pad(x) is saved: its kernel writes it, instead of a copy of
                                           x before the convolution in forward and another one in backward

Views of saved values are not saved, as recomputing them is free, while saving a view of a channels-last image would
copy it. Nor are keys that are repeated for groups of heads, nor the three parts of a projection.
Random draws inside a checkpoint are always saved: recomputing would draw other numbers.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import Any

import torch
from torch import fx
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition, must_recompute
from torch._guards import detect_fake_mode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

from ingot.frontends.torch.tracing.layouts import has_known_layout
from ingot.support.dataclass import dataclass

_aten = torch.ops.aten
# comparisons with a clamp's bound that give the same for its result as for its operand -> the bound's argument index
_BOUND_OPS = {_aten.le.Scalar: 1, _aten.ge.Scalar: 2}
_CONVOLUTION_BACKWARD = _aten.convolution_backward.default
_CHANNELS, _PIXELS = 4, 2  # of 16 bits in 8 bytes; of so many channels in 16 bytes
_IMAGE_ARGUMENT: dict[Any, int] = {_aten.convolution.default: 0, _CONVOLUTION_BACKWARD: 1}


def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """(forward, backward): AOTAutograd's `partition_fn`."""
    _drop_copies(joint.graph)
    _drop_running_statistics(joint.graph)
    _select_parts(joint.graph)
    _ask_results(joint.graph)
    _keep_draws(joint.graph)
    if _is_on_gpu(joint.graph):
        _expand_norms(joint.graph)
        _pad_images(joint.graph)
    _merge_equal(joint.graph)
    _narrow_before_repeats(joint.graph)
    _clone_written(joint.graph)
    joint.recompile()
    with config.patch(recompute_views=True, cse=False):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    _drop_kept_views(forward, backward, options["num_fwd_outputs"])
    _drop_kept_constants(forward, backward, options["num_fwd_outputs"])
    _drop_copies(forward.graph)
    forward.recompile()
    return forward, backward


def _drop_kept_views(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> None:
    """Removes views of saved values from the saved values, and saves a value in place of what repeats it or of views
    that are as large together; backward recomputes them. results: the number of forward's results that the caller
    gets."""
    (end,) = forward.graph.find_nodes(op="output")
    saved = list(end.args[0])
    placeholders = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    first = next(n for n in backward.graph.nodes if n.op != "placeholder")
    chains = {n: _views(n) for n in saved[results:] if isinstance(n, fx.Node) and n.name in placeholders}
    viewed = Counter[fx.Node]()  # elements of views, by what they are views of
    for n, chain in chains.items():
        if chain and all(map(_is_free, chain)):
            viewed[_base(chain)] += _size(n)
    for value, chain in chains.items():
        depth = next((i for i, n in enumerate(chain) if n.args[0] in saved[results:]), None)
        if depth is not None and all(map(_is_free, chain[: depth + 1])):
            chain = chain[: depth + 1]
        elif not chain or not max(_size(value) - 1, viewed[_base(chain)]) >= _size(_base(chain)) > 0:
            continue
        base, placeholder = _base(chain), placeholders[value.name]
        if base.name not in placeholders:
            with backward.graph.inserting_before(placeholder):
                placeholders[base.name] = backward.graph.placeholder(base.name)
            placeholders[base.name].meta = dict(base.meta)
            saved[saved.index(value, results)] = base
        else:
            saved.pop(saved.index(value, results))
        copies = {base: placeholders[base.name]}
        for n in reversed(chain):
            with backward.graph.inserting_before(first):
                copies[n] = backward.graph.node_copy(n, copies.__getitem__)
        placeholder.replace_all_uses_with(copies[value])
        backward.graph.erase_node(placeholder)
    if saved != [*end.args[0]]:
        end.args = (tuple(saved),)
        for module in (forward, backward):
            module.graph.eliminate_dead_code()
            module.recompile()


def _views(value: fx.Node) -> list[fx.Node]:
    """The views and copies that make `value` of another value, the last one first."""
    chain: list[fx.Node] = []
    while _is_free(value) or value.target is _aten.clone.default:
        chain.append(value)
        (value,) = value.all_input_nodes
    return chain


def _is_free(node: fx.Node) -> bool:
    """Whether a call is a view of its first argument, also where torch keeps autograd from seeing that."""
    return is_view(node) or (node.target is _aten._unsafe_view.default and len(node.all_input_nodes) == 1)


def _base(chain: Sequence[fx.Node]) -> fx.Node:
    """What a chain of views and copies begins with."""
    return chain[-1].all_input_nodes[0]


def _size(node: fx.Node) -> int:
    """The elements of a value; 0 if they are not known."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in value.shape):
        return 0
    return value.numel()


def _narrow_before_repeats(graph: fx.Graph) -> None:
    """Convert values to fewer bits before they are repeated: _to_copy(expand(x), f16) -> expand(_to_copy(x, f16))."""
    for node in graph.find_nodes(op="call_function", target=_aten._to_copy.default):
        chain = _views(node.all_input_nodes[0])
        if list(node.kwargs) != ["dtype"] or not chain or any(len(n.users) > 1 for n in chain):
            continue
        value = _base(chain)
        if not _size(node) > _size(value) > 0 or node.meta["val"].itemsize > value.meta["val"].itemsize:
            continue
        for n in (node, *reversed(chain)):
            assert callable(n.target)
            meta = n.meta | {"val": n.target(value.meta["val"], *n.args[1:], **n.kwargs)}
            with graph.inserting_before(node):
                value = graph.call_function(n.target, (value, *n.args[1:]), n.kwargs)
            value.meta = meta
        node.replace_all_uses_with(value)
    graph.eliminate_dead_code()


def _drop_kept_constants(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> None:
    """Removes values that depend on no input, such as a causal mask, from the saved values; backward computes them, and
    the compiler knows what they are there, too. results: as of `_drop_kept_views`."""
    constants = dict.fromkeys(n for n in forward.graph.nodes if n.op == "call_function")
    for n in forward.graph.nodes:
        tags = getattr(n.target, "tags", ())
        is_pure = isinstance(n.target, torch._ops.OpOverload) and not n.target._schema.is_mutable
        is_known = is_pure and torch.Tag.nondeterministic_seeded not in tags
        if n in constants and not (is_known and all(i in constants for i in n.all_input_nodes)):
            del constants[n]
    (end,) = forward.graph.find_nodes(op="output")
    saved = list(end.args[0])
    placeholders = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    kept = [n for n in saved[results:] if n in constants and n.name in placeholders]
    if not kept:
        return
    copies: dict[fx.Node, fx.Node] = {}
    first = next(n for n in backward.graph.nodes if n.op != "placeholder")
    with backward.graph.inserting_before(first):
        for n in constants:
            copies[n] = backward.graph.node_copy(n, copies.__getitem__)
    for n in kept:
        placeholders[n.name].replace_all_uses_with(copies[n])
        backward.graph.erase_node(placeholders[n.name])
    end.args = (tuple(n for i, n in enumerate(saved) if i < results or n not in kept),)
    for module in (forward, backward):
        module.graph.eliminate_dead_code()
        module.recompile()


def is_view(node: fx.Node) -> bool:
    """Whether a call returns a view of its first argument, and its other arguments are numbers."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable or node.kwargs:
        return False
    returns = node.target._schema.returns
    is_alias = len(returns) == 1 and returns[0].alias_info is not None
    return is_alias and node.all_input_nodes == [node.args[0]]


def _drop_copies(graph: fx.Graph) -> None:
    """Remove copies, except results, which must not alias another result or an input."""
    for target in (_aten.clone.default, _aten.detach.default):
        for node in graph.find_nodes(op="call_function", target=target):
            if not node.kwargs and all(user.op != "output" for user in node.users):
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)


def _clone_written(graph: fx.Graph) -> None:
    """Have all ops read copies of the inputs that the graph writes, which backward must not recompute."""
    first = next(n for n in graph.nodes if n.op != "placeholder")
    writes = (_aten.copy_.default, _aten.set_.source_Tensor)
    for p in dict.fromkeys(n.args[0] for n in graph.nodes if n.target in writes):
        if isinstance(p, fx.Node) and p.op == "placeholder":
            with graph.inserting_before(first):
                copied = graph.call_function(_aten.clone.default, (p,))
            copied.meta = {"val": p.meta["val"].clone(), "recompute": CheckpointPolicy.MUST_SAVE}
            readers = [user for user in p.users if user is not copied and user.target not in writes]
            for user in readers:
                user.replace_input_with(p, copied)


def _drop_running_statistics(graph: fx.Graph) -> None:
    """Remove the running mean and variance from gradients of batch norms in training mode, which do not read them:
    their new values would be saved."""
    for node in graph.find_nodes(op="call_function", target=_aten.native_batch_norm_backward.default):
        mean, variance, is_training = 3, 4, 7
        if node.args[is_training] is True:
            node.update_arg(mean, None)
            node.update_arg(variance, None)


def _is_on_gpu(graph: fx.Graph) -> bool:
    return any(value.is_cuda for n in graph.nodes if isinstance(value := n.meta.get("val"), torch.Tensor))


def _expand_norms(graph: fx.Graph) -> None:
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


def _pad_images(graph: fx.Graph) -> None:
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


def _select_parts(graph: fx.Graph) -> None:
    """Replace ops that return all parts of a tensor along an axis by one view for each part."""
    for node in graph.find_nodes(op="call_function", target=_aten.unbind.int):
        axis = node.args[1] if len(node.args) > 1 else 0
        _replace_parts(graph, node, lambda i, axis=axis: (_aten.select.int, (axis, i)))
    for target in (_aten.split.Tensor, _aten.split_with_sizes.default):
        for node in graph.find_nodes(op="call_function", target=target):
            axis = node.args[2] if len(node.args) > 2 else 0
            sizes = [part.shape[axis] for part in node.meta["val"]]
            if all(isinstance(n, int) for n in sizes):
                bounds = [0, *accumulate(sizes)]
                _replace_parts(
                    graph, node, lambda i, axis=axis, bounds=bounds: (_aten.slice.Tensor, (axis, *bounds[i : i + 2]))
                )


def _replace_parts(graph: fx.Graph, node: fx.Node, part: Callable[[int], tuple[Any, tuple[int, ...]]]) -> None:
    """Replace the results of `node` by calls of an op on its operand. part: the op and its other arguments."""
    if node.kwargs or any(user.target is not operator.getitem for user in node.users):
        return
    for user in list(node.users):
        number = user.args[1]
        assert isinstance(number, int)
        target, args = part(number)
        with graph.inserting_before(user):
            view = graph.call_function(target, (node.args[0], *args))
        view.meta = dict(user.meta)
        user.replace_all_uses_with(view)
        graph.erase_node(user)
    graph.erase_node(node)


def _ask_results(graph: fx.Graph) -> None:
    """x <= low and x >= high are y <= low and y >= high of y = hardtanh(x, low, high), NaN included."""
    for clamp in graph.find_nodes(op="call_function", target=_aten.hardtanh.default):
        x, *bounds = clamp.args
        for user in list(x.users):
            bound_index = _BOUND_OPS.get(user.target)
            if bound_index is not None and bounds[bound_index - 1 : bound_index] == [user.args[1]] and user > clamp:
                user.replace_input_with(x, clamp)


def _keep_draws(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and must_recompute(node):
            items = [user for user in node.users if user.target is operator.getitem]
            for kept_node in (node, *items):
                kept_node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _merge_equal(graph: fx.Graph) -> None:
    """Merge calls of the same op with the same arguments, up to the first write. A result must have its own memory:
    neither it nor a view of it is merged."""
    (end,) = graph.find_nodes(op="output")
    results = {storage for n in end.all_input_nodes if (storage := _storage(n)) is not None}
    first_by_key: dict[tuple[object, ...], fx.Node] = {}
    for node in graph.nodes:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            continue
        if target._schema.is_mutable:
            return
        values = node.meta.get("val")
        tensors = values if isinstance(values, tuple | list) else (values,)
        if torch.Tag.nondeterministic_seeded in target.tags or not all(isinstance(v, torch.Tensor) for v in tensors):
            continue
        flat, spec = pytree.tree_flatten((node.args, node.kwargs))
        # numbers are compared as text, as 1 == 1.0 == True and 0.0 == -0.0
        leaves = (a if isinstance(a, fx.Node) else (type(a), repr(a)) for a in flat)
        first = first_by_key.setdefault((target, str(spec), *leaves), node)
        if first is not node and _storage(node) not in results:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _storage(node: fx.Node) -> StorageWeakRef | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return StorageWeakRef(value.untyped_storage())
