"""What stands around a group's anchor, whatever its strategy: where operands lie, and what becomes of its values."""

from __future__ import annotations

from ingot import ops
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops.views import strided
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf, reshape_index, store_at
from ingot.support.errors import CompileError


def operand_memory(body: Graph, operand: Node, ins: tuple[Layout, ...]) -> tuple[int, Layout]:
    """The input that an anchor's operand lies in, and its layout there. Raises CompileError where it has no strides."""
    found = strided(operand, dict(zip(body.inputs, ins, strict=True)))
    if found is None or found[0] not in body.inputs:
        raise CompileError("an operand that lies in memory with strides was expected", where=operand.loc)
    return body.inputs.index(found[0]), found[1]


def bind_result(em: Emitter, block: Block, anchor: Node, value: Expr) -> None:
    """Let `anchor` have `value` at whatever index it is read: its epilogue is aligned with it."""
    em.bind(anchor, Leaf(lambda b, index, mask: value, home=block, pinned=True))


def store_results(
    em: Emitter,
    block: Block,
    body: Graph,
    outs: tuple[Buffer, ...],
    layouts: tuple[Layout, ...],
    index: Index,
    mask: Expr | None,
    stream: bool = False,
) -> None:
    """Evaluate the group's results at `index` and store them."""
    for root, buffer, layout in zip(body.outputs, outs, layouts, strict=True):
        value = em.value(block, root, index, mask)
        store_at(block, buffer, ix.linear(index, layout.strides, layout.offset), value, mask, stream=stream)


def _find(node: Node, anchor: Node, seen: set[Node], path: list[Node]) -> bool:
    """Whether `anchor` is in what `node` is made of; the nodes from it to `node` are added to `path`."""
    if node is anchor:
        return True
    if node in seen:  # once each: words of random bits are made of both words before, twenty times
        return False
    seen.add(node)
    if any(_find(i, anchor, seen, path) for i in node.inputs):
        path.append(node)
        return True
    return False


def result_index(block: Block, root: Node, anchor: Node, index: Index) -> Index:
    """Where in the group's result the anchor's element at `index` belongs: the way back through reshapes and
    transposes."""
    path: list[Node] = []
    _find(root, anchor, set(), path)
    for node in path:  # from the anchor to the root
        if isinstance(node.op, ops.Reshape):
            index = reshape_index(block, node.shape, node.inputs[0].shape, index)
        elif isinstance(node.op, ops.Transpose):
            index = tuple(index[p] for p in node.op.permutation)
    return index


__all__ = ["bind_result", "operand_memory", "result_index", "store_results"]
