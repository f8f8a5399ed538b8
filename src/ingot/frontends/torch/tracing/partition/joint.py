"""AOTAutograd's joint graph of a step, partitioned into forward and backward.

The minimal cut is torch's (min_cut_rematerialization_partition). Before it, rewrites avoid saving a value twice:

    y = hardtanh(x, 0, 6); le(x, 0)   ->   le(y, 0): backward reads y, which the next layer saves, instead of x
    clone(x), detach(x)               ->   x: nothing is written in place in a functional graph
    unbind(x)[1]                      ->   select(x, 1), and likewise split: views that torch does not recognize
    native_batch_norm_backward(.., mean, variance, .., train=True)   ->   with None for the two, as they are not read
    a = x * 2; b = x * 2              ->   only a; torch's pass for this imports Inductor, which takes half a second
    y = f(p); copy_(p, z)             ->   f(clone(p)), which is saved where needed: backward would read z as p

Random draws inside a checkpoint are always saved: recomputing would draw other numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import fx
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition, must_recompute
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

from ingot.frontends.torch.tracing.partition.images import expand_norms, pad_images
from ingot.frontends.torch.tracing.partition.saved import drop_constants, drop_parts, drop_views, narrow_before_repeats
from ingot.frontends.torch.tracing.partition.scores import recompute_scores

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
    if _is_on_gpu(joint.graph):
        expand_norms(joint.graph)
        pad_images(joint.graph)
    _merge_equal(joint.graph)
    recompute_scores(joint.graph)
    narrow_before_repeats(joint.graph)
    _clone_written(joint.graph)
    joint.recompile()
    with config.patch(recompute_views=True, cse=False):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    drop_views(forward, backward, options["num_fwd_outputs"])
    drop_parts(forward, backward, options["num_fwd_outputs"])
    drop_constants(forward, backward, options["num_fwd_outputs"])
    _drop_copies(forward.graph)
    forward.recompile()
    return forward, backward


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
