"""Writes of whole buffers as results of an exported program.

    count.add_(1)                                 count' = add(count, 1)
    y = batch_norm(x, ..., mean, var, True)  ->   y, _, _, mean', var' = batch_norm_functional(x, ..., mean, var, True)
    return y                                      return mean', var', count', y

`run_decompositions` does the same, but traces the program again, which is a fifth of the time to compile a convolution
network for training.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument

from ingot.frontends.torch.tracing.inplace import Names, destination, functional_name

_aten = torch.ops.aten
_Writes = Mapping[fx.Node, Sequence[fx.Node]]


def buffers_as_results(program: ExportedProgram) -> ExportedProgram:
    """A program that writes none of its buffers; `program` itself where it writes none, or where it writes part of a
    buffer, reads one through an alias, or writes something else."""
    nodes = list(program.graph.nodes)
    writes = {n: target for n in nodes if n.op == "call_function" and (target := _written_arguments(n))}
    if not writes:
        return program
    names, buffers = Names(nodes), _buffers(program)
    writes = {n: target for n, target in writes.items() if any(map(names.holds_input, target))}
    changed = {t for target in writes.values() for t in target}
    is_observed = any(names.is_seen(n, t) for n, target in writes.items() for t in target)
    if is_observed or not writes or not changed <= buffers.keys():
        return program
    places = [n for n in nodes if n in changed]
    graph = _functional(nodes, writes, places)
    if graph is None:
        return program
    (end,) = (n for n in graph.nodes if n.op == "output")
    specs = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(value.name), buffers[place])
        for place, value in zip(places, end.args[0], strict=False)
    ]
    copied, signature = copy.copy(program), program.graph_signature
    copied._graph_module = fx.GraphModule(program.graph_module, graph)
    copied._graph_module.meta = program.graph_module.meta
    copied._graph_signature = replace(signature, output_specs=[*specs, *signature.output_specs])
    return copied


def _buffers(program: ExportedProgram) -> dict[fx.Node, str]:
    """The placeholders of buffers that share no memory, and the buffers' names."""
    state = {**program.constants, **program.state_dict}
    tensors = {name: t for name, t in state.items() if isinstance(t, torch.Tensor)}
    users = Counter(t.untyped_storage().data_ptr() for t in {id(t): t for t in tensors.values()}.values())
    specs = {s.arg.name: s for s in program.graph_signature.input_specs if s.kind is InputKind.BUFFER}
    buffers = {n: str(specs[n.name].target) for n in program.graph.nodes if n.op == "placeholder" and n.name in specs}
    uses = Counter(id(tensors[name]) for name in buffers.values() if name in tensors)
    return {
        n: name
        for n, name in buffers.items()
        if name in tensors and uses[id(tensors[name])] == 1 and users[tensors[name].untyped_storage().data_ptr()] == 1
    }


def _written_arguments(node: fx.Node) -> tuple[fx.Node, ...]:
    """The arguments that an op writes, even if its schema does not say so. An unknown op counts as writing its first
    argument."""
    target = node.target
    if target is _aten.batch_norm.default:
        mean, var, training = node.args[3:6]
        if training and isinstance(mean, fx.Node) and isinstance(var, fx.Node):
            return destination(mean), destination(var)
        return ()
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable or target._opname == "detach_":
        return ()
    return (destination(node),)


def _functional(nodes: Sequence[fx.Node], writes: _Writes, places: Sequence[fx.Node]) -> fx.Graph | None:
    """The graph without its writes; the latest values of `places` are its first results. None where a write has no
    functional form, or changes a buffer's shape."""
    graph = fx.Graph()
    new_nodes: dict[fx.Node, Any] = {}
    for node in nodes:
        if node.op == "output":
            (results,) = fx.map_arg(cast(Any, node.args), new_nodes.__getitem__)
            next_values = [new_nodes[place] for place in places]
            if any(
                a.meta["val"].shape != place.meta["val"].shape for a, place in zip(next_values, places, strict=True)
            ):
                return None
            graph.output((*next_values, *results))
        elif node not in writes:
            new_nodes[node] = graph.node_copy(node, new_nodes.__getitem__)
            if node.op == "placeholder":
                new_nodes[node].name = node.name  # it identifies inputs, and torch would rename `input`
        elif (values := _computed(graph, node, new_nodes)) is not None:
            new_nodes |= dict(zip((node, *writes[node]), values, strict=True))
        else:
            return None
    return graph


def _computed(graph: fx.Graph, node: fx.Node, new_nodes: Mapping[fx.Node, fx.Node]) -> tuple[fx.Node, ...] | None:
    """The result of `node`, then the new values of the arguments that it writes."""
    args, kwargs = fx.map_arg(cast(Any, (node.args, node.kwargs)), new_nodes.__getitem__)
    if node.target is _aten.batch_norm.default:
        *operands, _cudnn = args
        statistics = [n.meta["val"] for n in operands[3:5]]
        values = (node.meta["val"], *statistics, *statistics)  # the batch statistics are not read
        call = _call(graph, node, values, _aten._native_batch_norm_legit_functional.default, operands)
        return tuple(_call(graph, node, values[i], operator.getitem, (call, i)) for i in (0, 3, 4))
    op: Any = torch.ops
    for name in functional_name(cast(Any, node.target)).split("."):
        op = getattr(op, name, None)
    if op is None:
        return None
    old_value, (values, named) = node.meta["val"], fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    new_value = op(*values, **named)
    if (old_value.dtype, old_value.shape) != (new_value.dtype, new_value.shape):
        return None
    computed = _call(graph, node, new_value, op, args, kwargs)
    return computed, computed


def _call(
    graph: fx.Graph, origin: fx.Node, value: Any, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> fx.Node:
    """A call of `op` with the metadata of `like`."""
    node = graph.call_function(op, tuple(args), dict(kwargs or {}))
    node.meta = origin.meta | {"val": value}
    return node
