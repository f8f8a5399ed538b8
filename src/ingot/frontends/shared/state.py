"""State that lasts from run to run, paired by the names of inputs and outputs.

(x, past) -> (y, present)   ->   (x; cache) -> (cache'; y)        keep(graph, {"past": "present"})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ingot.ir.node import Graph, Input
from ingot.support.errors import InputError

_MAX_LISTED_NAMES = 8  # that a message lists


def keep(graph: Graph, pairs: Mapping[str, str]) -> Graph:
    """The graph with some inputs, by label, as its state; each is paired with the output that replaces it in the next
    run. A state has its input's name.

    Raises InputError for unknown names, and for pairs that are not of one type of fixed size.
    """
    if not pairs:
        return graph
    state_count = len(graph.state)
    free = graph.inputs[: len(graph.inputs) - state_count]
    inputs = {n.op.label: n for n in free if isinstance(n.op, Input)}
    names = graph.output_names or tuple(f"output{i}" for i in range(len(graph.results)))
    outputs = {name: i for i, name in enumerate(names) if i >= state_count}
    _check_names("input", pairs, inputs)
    _check_names("output", pairs.values(), outputs)
    if len(set(pairs.values())) != len(pairs):
        raise InputError("state", expected="an output of its own for each input", got=dict(pairs))
    for label, name in pairs.items():
        old, new = inputs[label].type, graph.results[outputs[name]].type
        if old != new or not old.is_static:
            got = f"{label}: {old}, {name}: {new}"
            fix = "fix its sizes with dynamic=, or leave it an input and an output"
            raise InputError("state", expected="an input and an output of one type of fixed size", got=got, fix=fix)
    places = [outputs[name] for name in pairs.values()]
    order = [*places, *(i for i in range(len(graph.outputs)) if i not in places)]
    kept_inputs = [inputs[label] for label in pairs]
    return replace(
        graph,
        inputs=(*(n for n in free if n not in kept_inputs), *kept_inputs, *graph.inputs[len(free) :]),
        outputs=tuple(graph.outputs[i] for i in order),
        output_names=tuple(names[i] for i in order if i < len(names)),
        state=(*pairs, *graph.state),
    )


def _check_names(what: str, requested: Iterable[str], names: Mapping[str, object]) -> None:
    if unknown := [name for name in requested if name not in names]:
        ellipsis = f" and {len(names) - _MAX_LISTED_NAMES} more" if len(names) > _MAX_LISTED_NAMES else ""
        raise InputError(
            f"state: {what} {unknown[0]!r}", expected=f"one of {', '.join(list(names)[:_MAX_LISTED_NAMES])}{ellipsis}"
        )
