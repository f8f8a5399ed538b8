"""Values that only the backward pass reads, in one tensor, and gradients in another.

    forward -> (y, a, b, c)      ->   forward -> (y, pack([a, b, c]))
    backward(a, b, c, grad)      ->   backward(packed, grad), which reads unpack(packed, 0), ...

A network of 50 layers saves some 300 values. Each costs an allocation, a saved variable of autograd's and a check of an
argument: together several milliseconds of the host for a step. The programs read and write the values where they lie in
the buffer. `pack` and `unpack` mark this in the graphs; they also compute it, for whoever runs or traces such a graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from ingot.frontends.torch.tracing.layouts import (
    Order,
    dense_order,
    has_known_layout,
    images_of,
    inverse,
    reinterpret,
    root_of,
    saved_order,
    source_of,
)
from ingot.integrations.torch_flat import placeholders
from ingot.runtime.arguments import side_by_side
from ingot.support.dataclass import dataclass

_aten = torch.ops.aten
_SMALL_BYTES = 4 << 20  # of a gradient that lies beside others


def pack(values: Sequence[torch.Tensor], orders: Sequence[Order]) -> torch.Tensor:
    """The bytes of dense tensors side by side, uint8 [n]. orders: of their axes in memory."""
    offsets, nbytes = side_by_side(map(_nbytes, values))
    packed = torch.zeros(nbytes, dtype=torch.uint8, device=values[0].device)
    for value, offset, order in zip(values, offsets, orders, strict=True):
        unpack(packed, offset, value.shape, order, value.dtype).copy_(value)
    return packed


def unpack(packed: torch.Tensor, offset: int, shape: Sequence[int], order: Order, dtype: torch.dtype) -> torch.Tensor:
    """The tensor at a byte offset. order: of its axes in memory."""
    sizes = [shape[axis] for axis in order]
    nbytes = dtype.itemsize * torch.Size(sizes).numel()
    return packed[offset : offset + nbytes].view(dtype).view(sizes).permute(inverse(order))


def _nbytes(value: torch.Tensor) -> int:
    return value.numel() * value.element_size()


def packed_partition(partition: Callable[..., Any]) -> Callable[..., tuple[fx.GraphModule, fx.GraphModule]]:
    """A function that partitions a step (AOTAutograd's `partition_fn`), with the values that forward saves packed."""

    def partition_and_pack(
        joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        forward, backward = partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **options)
        _pack_saved(forward, backward, num_fwd_outputs)
        return forward, backward

    return partition_and_pack


def _pack_saved(forward: fx.GraphModule, backward: fx.GraphModule, result_count: int) -> None:
    """Pack what can be: values of known sizes that have memory of their own, and that no result is a view of."""
    (end,) = forward.graph.find_nodes(op="output")
    results, saved = list(end.args[0][:result_count]), list(end.args[0][result_count:])
    readers = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    inputs = forward.graph.find_nodes(op="placeholder")
    # sizes that the run finds are ints of the graph
    has_ints = any(isinstance(n.meta.get("val"), torch.SymInt) for n in forward.graph.nodes)
    if has_ints or not all(has_known_layout(n.meta.get("val")) for n in inputs):
        return
    visible = {root_of(r) for r in results if isinstance(r, fx.Node)}
    members = [n for n in saved if _can_pack(n, readers) and n not in visible]
    if len({n.meta["val"].device for n in members}) != 1 or len(members) < 2:
        return

    images = images_of(forward.graph)
    values: list[torch.Tensor] = [n.meta["val"] for n in members]
    orders = [saved_order(n, is_image=n in images) or tuple(range(n.meta["val"].dim())) for n in members]
    offsets, nbytes = side_by_side(map(_nbytes, values))
    with forward.graph.inserting_before(end):
        packed = forward.graph.call_function(pack, (members, orders))
    packed.meta["val"] = values[0].new_empty(nbytes, dtype=torch.uint8)
    others = [n for n in saved if n not in members]
    end.args = ((*results, packed, *others),)

    first = readers[saved[0].name]
    with backward.graph.inserting_before(first):
        buffer = backward.graph.placeholder(packed.name)
    buffer.meta["val"] = packed.meta["val"]
    start = next(n for n in backward.graph.nodes if n.op != "placeholder")
    for node, offset, order, value in zip(members, offsets, orders, values, strict=True):
        reader = readers[node.name]
        with backward.graph.inserting_before(start):
            member = backward.graph.call_function(unpack, (buffer, offset, tuple(value.shape), order, value.dtype))
        member.meta = dict(reader.meta)
        reader.replace_all_uses_with(member)
        backward.graph.erase_node(reader)
    forward.recompile()
    backward.recompile()


def _can_pack(node: object, readers: Mapping[str, fx.Node]) -> bool:
    """Whether a saved value is computed by the program into memory of its own, and backward reads its elements alone.
    readers: backward's inputs by name."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.name not in readers:
        return False
    value = node.meta.get("val")
    if not has_known_layout(value) or value.layout is not torch.strided:
        return False
    is_written = any(getattr(getattr(user.target, "_schema", None), "is_mutable", False) for user in node.users)
    reads_memory = any(user.target is _aten.as_strided.default for user in readers[node.name].users)
    is_checked = not node.meta.get("saved_tensor_with_no_vc_check", False)
    is_dense = value.numel() > 0 and not value.is_complex() and source_of(node) is None
    return is_dense and is_checked and not is_written and not reads_memory


def pack_gradients(graph: fx.Graph, leaves: Collection[int]) -> None:
    """Have a backward graph return gradients of leaves as parts of one tensor: an allocation for all of them. leaves:
    the positions of such results. Large ones are separate: a gradient that is kept would keep the others' memory.

    return (mm(a, b), sum(c))   ->   p = pack([mm(a, b), sum(c)]); return (part of p, part of p)
    """
    (end,) = graph.find_nodes(op="output")
    results = list(end.args[0])
    if reinterpret is None or not all(has_known_layout(n.meta.get("val")) for n in placeholders(graph)):
        return
    uses = Counter(root_of(r) for r in results if isinstance(r, fx.Node))
    places = {root_of(r): i for i, r in enumerate(results) if i in leaves and isinstance(r, fx.Node)}
    members = {n: i for n, i in places.items() if uses[n] == 1 and _is_small_gradient(results[i], n)}
    if len({n.meta["val"].device for n in members}) != 1 or len(members) < 2:
        return
    values: list[torch.Tensor] = [n.meta["val"] for n in members]
    orders = [dense_order(value) for value in values]
    offsets, _ = side_by_side(map(_nbytes, values))
    with graph.inserting_before(end):
        packed = graph.call_function(pack, ([*members], orders))
        typed = {t: graph.call_function(_aten.view.dtype, (packed, t)) for t in dict.fromkeys(v.dtype for v in values)}
        for i, value, offset in zip(members.values(), values, offsets, strict=True):
            x, start = results[i].meta["val"], offset // value.dtype.itemsize
            results[i] = graph.call_function(reinterpret, (typed[x.dtype], tuple(x.shape), x.stride(), start))
    end.args = (tuple(results),)


def _is_small_gradient(result: fx.Node, root: fx.Node) -> bool:
    """Whether a result, a view of all of `root`, is dense, of known sizes, and small."""
    value, whole = result.meta.get("val"), root.meta.get("val")
    if root.op != "call_function" or not has_known_layout(value) or not has_known_layout(whole):
        return False
    if value.layout is not torch.strided or whole.layout is not torch.strided or value.is_complex():
        return False
    is_whole = value.dtype == whole.dtype and value.numel() == whole.numel()
    is_dense = dense_order(value) is not None and dense_order(whole) is not None
    return is_whole and is_dense and 0 < _nbytes(value) <= _SMALL_BYTES


def packed_result(graph: fx.Graph) -> fx.Node | None:
    """The call of `pack` in a graph, which is one of its results or has views that are."""
    return next(iter(graph.find_nodes(op="call_function", target=pack)), None)


@dataclass(frozen=True)
class PackedInput:
    """An input of a graph that its last inputs lie in. position: its own. orders: of the axes of each of them."""

    position: int
    orders: tuple[Order, ...]


def cut_packed_input(graph: fx.Graph) -> PackedInput | None:
    """Replace what `graph` unpacks by inputs of their own, the last ones."""
    inputs = graph.find_nodes(op="placeholder")
    position = next((i for i, n in enumerate(inputs) if any(user.target is unpack for user in n.users)), None)
    if position is None:
        return None
    calls, last = list(inputs[position].users), inputs[-1]
    for call in calls:
        with graph.inserting_after(last):
            last = graph.placeholder(call.name)
        last.meta = dict(call.meta)
        call.replace_all_uses_with(last)
        graph.erase_node(call)
    inputs[position].meta["is_packed"] = True
    return PackedInput(position, tuple([cast(Order, call.args[3]) for call in calls]))


__all__ = ["PackedInput", "cut_packed_input", "pack", "pack_gradients", "packed_partition", "packed_result", "unpack"]
