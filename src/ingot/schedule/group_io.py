"""The operands and results of a group's anchor, for all strategies: their memory, the epilogue, and stores."""

from __future__ import annotations

from ingot import ops
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops.views import strided_base
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf, reshape_index, store_at
from ingot.support.errors import CompileError


def operand_memory(body: Graph, operand: Node, ins: tuple[Layout, ...]) -> tuple[int, Layout]:
    """The position of the input that holds an anchor's operand, and its layout there.

    Raises CompileError if no strides express it.
    """
    match = strided_base(operand, dict(zip(body.inputs, ins, strict=True)))
    if match is None or match[0] not in body.inputs:
        raise CompileError("an operand stored with strides in one input was expected", where=operand.loc)
    return body.inputs.index(match[0]), match[1]


def bind_result(em: Emitter, block: Block, anchor: Node, value: Expr) -> None:
    """Bind `anchor` to `value` at every index: its epilogue reads it at the index of the result alone."""
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


def _find(node: Node, anchor: Node, visited: set[Node], path: list[Node]) -> bool:
    """Whether `node` depends on `anchor`. Appends the nodes from the anchor to `node` to `path`."""
    if node is anchor:
        return True
    if node in visited:  # rounds of random bits share operands: without the set the walk is exponential
        return False
    visited.add(node)
    if any(_find(i, anchor, visited, path) for i in node.inputs):
        path.append(node)
        return True
    return False


def result_index(block: Block, root: Node, anchor: Node, index: Index) -> Index:
    """The index in the group's result of the anchor's element at `index`, through reshapes and transposes."""
    path: list[Node] = []
    _find(root, anchor, set(), path)
    for node in path:  # from the anchor to the root
        if isinstance(node.op, ops.Reshape):
            index = reshape_index(block, node.shape, node.inputs[0].shape, index)
        elif isinstance(node.op, ops.Transpose):
            index = tuple(index[p] for p in node.op.permutation)
    return index


__all__ = ["bind_result", "operand_memory", "result_index", "store_results"]
