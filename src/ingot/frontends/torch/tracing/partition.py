"""AOTAutograd's joint graph of a step, partitioned into forward and backward.

The minimal cut is torch's (min_cut_rematerialization_partition). Before it, rewrites avoid saving a value twice:

    y = hardtanh(x, 0, 6); le(x, 0)   ->   le(y, 0): backward reads y, which the next layer saves, instead of x
    clone(x), detach(x)               ->   x: nothing is written in place in a functional graph
    unbind(x)[1]                      ->   select(x, 1), and likewise split: views that torch does not recognize
    native_batch_norm_backward(.., mean, variance, .., train=True)   ->   with None for the two, as they are not read
    a = x * 2; b = x * 2              ->   only a; torch's pass for this imports Inductor, which takes half a second
    y = f(p); copy_(p, z)             ->   f(clone(p)), which is saved where needed: backward would read z as p
    _to_copy(expand(x), f16)          ->   expand(_to_copy(x, f16))

Views of saved values are not saved, as recomputing them is free, while saving a view of a channels-last image would
copy it. Nor are keys that are repeated for groups of heads, nor the three parts of a projection.
Random draws inside a checkpoint are always saved: recomputing would draw other numbers.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import fx
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition, must_recompute
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

_aten = torch.ops.aten
# comparisons with a clamp's bound that give the same for its result as for its operand -> the bound's argument index
_BOUND_OPS = {_aten.le.Scalar: 1, _aten.ge.Scalar: 2}


def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """(forward, backward): AOTAutograd's `partition_fn`."""
    _drop_copies(joint.graph)
    _drop_running_statistics(joint.graph)
    _select_parts(joint.graph)
    _ask_results(joint.graph)
    _keep_draws(joint.graph)
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
