"""Control flow and calls. A region's graph takes every outer value that it reads as an operand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ingot import ops
from ingot.frontends.shared import bodies
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.rows import check_operands
from ingot.frontends.stablehlo import regions
from ingot.frontends.stablehlo.shardings import annotated
from ingot.frontends.stablehlo.syntax import Symbol
from ingot.frontends.stablehlo.values import (
    AnyValue,
    Call,
    Missing,
    Table,
    Token,
    flatten,
    plain_value,
    unflatten,
)
from ingot.ir.node import Input, Node
from ingot.ir.types import i32
from ingot.ops import custom

row = Table()


@row("func.call")
def call(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    return _call(c, c.text("callee"), operands)


def _call(c: Call, name: str, operands: Sequence[AnyValue]) -> tuple[AnyValue, ...]:
    function = c.importer.module.functions.get(name)
    if function is None:
        raise Unsupported(f"@{name}, which is not in the module")
    return c.importer.function(function, operands, c.loc)


@row("composite")
def composite(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    """The results of its decomposition."""
    decomposition = c.attributes.get("decomposition")
    if not isinstance(decomposition, Symbol):
        raise Unsupported("no decomposition")
    return _call(c, decomposition.name, operands)


def _own_inputs(values: Sequence[AnyValue], c: Call) -> tuple[AnyValue, ...]:
    """Inputs of a graph of its own, of the types of `values`."""
    inputs = [Input(f"{c.loc or c.op.name}.{i}", n.type)() for i, n in enumerate(flatten(values))]
    return unflatten(values, inputs)


@row("while")
def while_(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    """While(cond; body), which carries captured values after its own."""
    if not flatten(operands):
        raise Unsupported("without values")
    captures: dict[Node, Node] = {}
    carried = _own_inputs(operands, c)
    with c.importer.computed_sizes.inner_graph() as sizes:
        cond = c.importer.block(c.regions[0], carried, c.scope, captures)
        body = c.importer.block(c.regions[1], carried, c.scope, captures)
    inputs, outputs = flatten(carried), flatten(body)
    if len(inputs) != len(outputs):
        raise Unsupported(f"{len(outputs)} results of a body that takes {len(inputs)} values")
    if sizes or [n.shape for n in inputs] != [n.shape for n in outputs]:
        return _loop_of_changing_sizes(c, operands)
    op = ops.While(
        regions.graph(inputs, flatten(cond), captures),
        regions.graph(inputs, (*outputs, *captures.values()), captures),
    )
    results = op(*flatten(operands), *captures, loc=c.loc).results
    return unflatten(operands, results[: len(inputs)])


def _loop_of_changing_sizes(c: Call, operands: Sequence[AnyValue]) -> tuple[AnyValue, ...]:
    outer: dict[Node, Node] = {}  # values, by the inputs that stand for them inside

    def region(index: int, nodes: Sequence[Node]) -> tuple[Node, ...]:
        captures: dict[Node, Node] = {}
        results = c.importer.block(c.regions[index], unflatten(operands, nodes), c.scope, captures)
        outer.update((inner, node) for node, inner in captures.items())
        return flatten(results)

    results = bodies.loop(
        c.importer.computed_sizes, flatten(operands), lambda v: region(0, v)[0], lambda v: region(1, v), c.loc,
        outer=outer,
    )  # fmt: skip
    return unflatten(operands, results)


@row("if")
def if_(c: Call, pred: Node) -> tuple[AnyValue, ...]:
    is_then = c.importer.sizes.decided(pred)
    if is_then is not None:
        return c.importer.block(c.regions[0 if is_then else 1], (), c.scope)
    return _branches(c, ops.cast(pred, i32), (1, 0))


@row("case")
def case(c: Call, index: Node) -> tuple[AnyValue, ...]:
    return _branches(c, index, range(len(c.regions)))


def _branches(c: Call, index: Node, order: Sequence[int]) -> tuple[AnyValue, ...]:
    captures: dict[Node, Node] = {}
    with c.importer.computed_sizes.inner_graph() as sizes:
        results = [c.importer.block(c.regions[i], (), c.scope, captures) for i in order]
    kinds = results[0]
    if any(isinstance(v, Missing) for branch in results for v in branch):
        raise Unsupported("")
    nodes = [flatten(branch) for branch in results]
    if not nodes[0]:
        return tuple(v for v in kinds)
    if sizes or any([x.shape for x in n] != [x.shape for x in nodes[0]] for n in nodes):
        return unflatten(kinds, _branches_of_other_sizes(c, index, order))
    graphs = tuple(regions.graph((), n, captures) for n in nodes)
    case_results = ops.Case(graphs)(index, *captures, loc=c.loc).results
    return unflatten(kinds, case_results)


def _branches_of_other_sizes(c: Call, index: Node, order: Sequence[int]) -> Sequence[Node]:
    inner: list[Node] = []
    outer: list[Node] = []

    def branch(i: int) -> tuple[Node, ...]:
        captures: dict[Node, Node] = {}
        results = c.importer.block(c.regions[i], (), c.scope, captures)
        new = {node: stand_in for node, stand_in in captures.items() if stand_in not in inner}
        inner.extend(new.values())
        outer.extend(new)
        return flatten(results)

    return bodies.case(c.importer.computed_sizes, index, [partial(branch, i) for i in order], inner, outer, c.loc)


@row("map")
def map_(c: Call, *xs: AnyValue) -> tuple[AnyValue, ...]:
    return regions.region(c, 0, xs)(*xs)


@row("custom_call")
def custom_call(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    name = c.text("call_target_name")
    if name == "shape_assertion":
        (pred, *_) = operands
        if isinstance(pred, Node) and c.importer.sizes.decided(pred) is False:
            raise Unsupported(f"its condition is false: {c.text('error_message')}")
        return ()
    if name == STOP_GRADIENT:
        return tuple(ops.StopGradient()(x) if isinstance(x, Node) else x for x in operands)
    if name == UNKNOWN_GRADIENT:
        return tuple(ops.UnknownGradient()(x) if isinstance(x, Node) else x for x in operands)
    if name == COTANGENT:
        return tuple(ops.Cotangent(int(c.text("backend_config")))(x) for x in operands if isinstance(x, Node))
    if name == OWN_GRADIENT:
        return ops.CustomGradient(int(c.text("backend_config")))(*flatten(operands)).results
    if name == "Sharding" and len(operands) == 1:
        return (annotated(operands[0], c.attributes),)
    if name in _IDENTITIES:
        return tuple(operands)
    registration = custom.find("stablehlo", name)
    if registration is not None:
        return custom.apply(registration, _tensors(name, operands), _settings(c), c.loc).results
    target = CUSTOM.rows.get(f"target.{name}")
    if target is None:
        raise Unsupported(f"@{name}")
    shapes = c.ints("indices_of_shape_operands", ())  # of results, which a row knows from its operands
    values = [x for i, x in enumerate(operands) if i not in shapes]
    if any(isinstance(x, Complex) for x in values):
        raise Unsupported(f"@{name} of complex numbers")
    check_operands(target, len(values))
    results = target(c, *values)
    return results if isinstance(results, tuple) else (results,)


def _tensors(name: str, operands: Sequence[AnyValue]) -> list[Node]:
    nodes = [x for x in operands if isinstance(x, Node)]
    if len(nodes) != len(operands):
        raise Unsupported(f"@{name} of complex numbers or tokens")
    return nodes


def _settings(c: Call) -> dict[str, object]:
    """The attributes of a custom_call with a typed dictionary, as jax.ffi.ffi_call writes it."""
    settings = c.attributes.get("mhlo.backend_config", c.attributes.get("backend_config"))
    if not isinstance(settings, dict):
        return {}
    return {name: plain_value(value, name) for name, value in settings.items()}


# annotations of a value's sharding or memory
_IDENTITIES = frozenset((
    "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement", "LayoutConstraint",
    "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape",
))  # fmt: skip
CUSTOM = Table()  # `target.name` of a custom_call -> row
# marks on gradients that JAX's lowering is made to keep
STOP_GRADIENT, UNKNOWN_GRADIENT = "ingot.stop_gradient", "ingot.unknown_gradient"
COTANGENT, OWN_GRADIENT = "ingot.cotangent", "ingot.own_gradient"


@row("after_all", "create_token")
def after_all(c: Call, *tokens: AnyValue) -> AnyValue:
    return Token()
