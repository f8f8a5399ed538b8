"""Which values forward saves.

    _to_copy(expand(x), f16)          ->   expand(_to_copy(x, f16)), before the cut

    cat([a, b]), cat([a, b, c])       ->   cat([a, b, c]), of which backward reads a slice for the former

Views of saved values are not saved, as recomputing them is free, while saving a view of a channels-last image would
copy it. Nor are keys that are repeated for groups of heads, nor the three parts of a projection, nor constants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import fx

_aten = torch.ops.aten


def drop_views(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> None:
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


def drop_parts(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> None:
    """Removes parts of saved concatenations from the saved values: those of a dense block are the first ones of its
    last. results: as of `drop_views`."""
    (end,) = forward.graph.find_nodes(op="output")
    saved = list(end.args[0])
    placeholders = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    first = next(n for n in backward.graph.nodes if n.op != "placeholder")
    kept = [n for n in dict.fromkeys(saved[results:]) if isinstance(n, fx.Node) and n.name in placeholders and _size(n)]
    whole = [n for n in kept if n.target is _aten.cat.default]
    dropped = set[fx.Node]()
    for value in sorted(kept, key=_size, reverse=True):
        for cat in whole:
            place = None if cat in dropped or cat is value else _place_in(value, cat)
            if place is None or _size(cat) == _size(value):
                continue
            with backward.graph.inserting_before(first):
                part = backward.graph.call_function(_aten.slice.Tensor, (placeholders[cat.name], *place))
            part.meta = dict(placeholders[value.name].meta)
            placeholders[value.name].replace_all_uses_with(part)
            dropped.add(value)
            break
    if not dropped:
        return
    for value in dropped:
        backward.graph.erase_node(placeholders[value.name])
    end.args = (tuple(n for i, n in enumerate(saved) if i < results or n not in dropped),)
    for module in (forward, backward):
        module.graph.eliminate_dead_code()
        module.recompile()


def _place_in(value: fx.Node, cat: fx.Node) -> tuple[int, int, int] | None:
    """(axis, start, end) of `value`, or of what it is a concatenation of, in a concatenation; None if it is no part."""
    operands, axis = _concatenated(cat)
    parts, own_axis = _concatenated(value) if value.target is _aten.cat.default else ([value], axis)
    sizes = [n.meta["val"].shape[axis] for n in operands]
    may_be_part = own_axis == axis and value.meta["val"].dtype == cat.meta["val"].dtype
    if not may_be_part or not all(isinstance(n, int) for n in sizes):
        return None
    ends = [0, *accumulate(sizes)]
    begins = range(len(operands) - len(parts) + 1)
    return next(((axis, ends[i], ends[i + len(parts)]) for i in begins if operands[i : i + len(parts)] == parts), None)


def _concatenated(cat: fx.Node) -> tuple[list[fx.Node], int]:
    """The operands of a concatenation, except for the empty ones that torch allows of another rank, and its axis."""
    (operands, *rest), rank = cat.args, cat.meta["val"].dim()
    axis = rest[0] if rest else cat.kwargs.get("dim", 0)
    assert isinstance(axis, int) and isinstance(operands, list | tuple)
    return [n for n in operands if isinstance(n, fx.Node) and n.meta["val"].dim() == rank], axis % rank


def narrow_before_repeats(graph: fx.Graph) -> None:
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


def drop_constants(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> None:
    """Removes values that depend on no input, such as a causal mask, from the saved values; backward computes them, and
    the compiler knows what they are there, too. results: as of `drop_views`."""
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
