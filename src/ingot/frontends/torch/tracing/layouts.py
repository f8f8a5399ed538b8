"""The memory layouts of results and inputs of a functional graph.

A result must have the strides that torch traced, as views are replayed on it: the model returns it with its axes
permuted, and torch permutes them back. Views of inputs or of other results are not computed: torch replays them.

    y = conv(x); t = transpose(view(y, [n, 4, h * w]), 1, 2); return y, t
    ->   the model: return permute(conv(x), [0, 2, 3, 1])
         after it: y = permute(result, [0, 3, 1, 2]); return y, transpose(view(y, [n, 4, h * w]), 1, 2)

Before the model runs, torch reads the memory that inputs are views of, as the model sees only its inputs' elements.
Image-shaped values that forward saves for backward have their channels last, as Ingot's kernels write and read them;
inputs in that layout are read as such.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import sympy
import torch
from torch import fx
from torch._guards import TracingContext
from torch.fx.node import map_arg
from torch.fx.proxy import GraphAppendingTracer
from torch.utils._sympy.functions import Max
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from ingot.support.dataclass import dataclass

Order = tuple[int, ...]  # a tensor's axes, outermost in memory first

_aten = torch.ops.aten
_EMPTY = slice(0)
# the function by which Inductor's code makes views that autograd takes for base tensors; a private one of torch
_torch_c: Any = torch._C
reinterpret = getattr(_torch_c._dynamo.guards, "_reinterpret_tensor", None)
_IMAGE_OPS = frozenset(
    (
        _aten.convolution,
        _aten._native_batch_norm_legit_functional,
        _aten._batch_norm_with_update_functional,
        _aten.max_pool2d_with_indices,
        _aten.avg_pool2d,
    )
)
_AXIS_MOVES = frozenset((_aten.permute.default, _aten.transpose.int))  # of images in which channels are no axis 1
# views in which elements may share memory
_OVERLAPPING_VIEWS = frozenset((_aten.expand.default, _aten.unfold.default, _aten.as_strided.default))


def dense_order(value: torch.Tensor) -> Order | None:
    """The axis order of a tensor whose elements fill its memory, None for others. Sizes may be open."""
    rows, steps = tuple(range(value.dim())), [_likely_size(s, 1 << 12) for s in value.stride()]
    if _is_dense(value, rows):
        return rows
    # of two axes with equal strides, the inner one has size 1
    order = sorted(rows, key=lambda axis: (-steps[axis], _likely_size(value.shape[axis], 2) == 1))
    return tuple(order) if _is_dense(value, order) else None


def order_of(value: object) -> Order | None:
    """The axis order of a dense tensor that is not row-major; None for all else."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_complex():
        return None
    order = dense_order(value)
    return None if order is None or order == tuple(range(value.dim())) else order


def _is_dense(value: torch.Tensor, order: Sequence[int], exactly: bool = False) -> bool:
    """Whether the strides are those of dense axes in this order. exactly: axes of size 1 are checked, too."""
    step: sympy.Basic = sympy.Integer(1)
    for axis in reversed(order):
        size, stride = _expression(value.shape[axis]), _expression(value.stride(axis))
        if (exactly or size != 1) and stride != step and sympy.expand(stride - step) != 0:
            return False
        step = step * size
    return step != 0


def _expression(size: int | torch.SymInt) -> sympy.Expr:
    """A size in a stride: torch's max(1, n) becomes n, as strides of an empty tensor do not matter."""
    if not isinstance(size, torch.SymInt):
        return sympy.Integer(size)
    e = size.node.expr
    extremes = {m: n for m in e.atoms(Max, sympy.Max) for n in _operands_but_one(m)}
    return sympy.expand(e.xreplace(extremes) if extremes else e)


def _operands_but_one(extreme: sympy.Basic) -> list[sympy.Basic]:
    others = [a for a in extreme.args if a != 1]
    return others if len(others) == 1 and len(extreme.args) == 2 else []


@dataclass(frozen=True)
class Results:
    """How a graph's results are computed.

    Attributes:
        computed: the values that the model returns.
        orders: the axis order of each computed value; None for row-major.
        strides: of each result, where they differ from those that torch traced; else None.
        finish: (the graph's inputs, the computed values) -> the results; None where the latter are the results. The
            packed values are one of its arguments.
        packed_count: of the last computed values, which are packed.
    """

    computed: tuple[fx.Node, ...]
    orders: tuple[Order | None, ...]
    strides: tuple[tuple[int, ...] | None, ...]
    finish: Callable[..., tuple[Any, ...]] | None
    packed_count: int = 0


class _ViewGraph:
    """A graph of views and sizes of the inputs of `graph` and of `computed`, which torch runs outside the model."""

    def __init__(self, graph: fx.Graph, computed: Iterable[fx.Node] = ()) -> None:
        self.graph = fx.Graph()
        inputs = graph.find_nodes(op="placeholder")
        self.node_of = {n: self.graph.placeholder(n.name) for n in (*inputs, *computed)}
        values = ((n, n.meta.get("val")) for n in inputs)
        tracer = GraphAppendingTracer(self.graph)  # one, for what is computed from several sizes
        self._sizes = {v.node.expr: fx.Proxy(self.node_of[n], tracer) for n, v in values if isinstance(v, torch.SymInt)}

    def has_size(self, value: object) -> bool:
        if isinstance(value, torch.SymInt):
            return all(s in self._sizes for s in value.node.expr.free_symbols)
        return isinstance(value, int)

    def size(self, value: int | torch.SymInt) -> Any:
        if not isinstance(value, torch.SymInt):
            return value
        expression = value.node.expr
        if expression not in self._sizes:
            self._sizes[expression] = sympy_interp(PythonReferenceAnalysis, dict(self._sizes), expression)
        node = self._sizes[expression]
        return node.node if isinstance(node, fx.Proxy) else int(node)

    def unknown_sizes(self, node: fx.Node) -> list[fx.Node]:
        """The sizes in the chain of views to `node` that this graph's inputs do not tell."""
        source, call = source_of(node), _call(node)
        if source is None:
            return []
        sizes = [n for n in call.all_input_nodes if n is not source and not self.has_size(n.meta.get("val"))]
        return [*sizes, *self.unknown_sizes(source)]

    def view(self, node: fx.Node) -> fx.Node:
        """`node`, a view of a value of this graph, by replaying its chain of views."""
        if node not in self.node_of:
            source, call = source_of(node), _call(node)
            assert source is not None, node
            self.view(source)
            if call not in self.node_of:
                args, kwargs = map_arg((call.args[1:], dict(call.kwargs)), self._argument)
                self.node_of[call] = self.call(call.target, self.node_of[source], *args, **kwargs)
            if call is not node:
                self.node_of[node] = self.call(operator.getitem, self.node_of[call], node.args[1])
        return self.node_of[node]

    def _argument(self, node: fx.Node) -> Any:
        return self.node_of[node] if node in self.node_of else self.size(node.meta["val"])

    def call(self, function: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_function(function, args, kwargs)

    def function(self, results: Iterable[Any]) -> Callable[..., tuple[Any, ...]]:
        self.graph.output(tuple(results))
        return fx.GraphModule({}, self.graph).forward


def cut_results(
    graph: fx.Graph, kept_slice: slice = _EMPTY, write_count: int = 0, packed: fx.Node | None = None
) -> Results:
    """Reduces `graph` to the results that the model must compute.

    kept_slice: positions of results that only a backward graph reads, whose axis order is free. write_count: of
    the last results, which are new values of inputs. packed: a call of (values, their axis orders), which is a result
    or has views that are. The model computes the values last, as one of its results."""
    (end,) = graph.find_nodes(op="output")
    results: Sequence[Any] = end.args[0]
    visible_count = len(results) - write_count
    saved = range(len(results))[kept_slice]
    visible = {r for i, r in enumerate(results[:visible_count]) if i not in saved and _is_strided(r)}
    returned = {r for r in results[visible_count:] if isinstance(r, fx.Node)}
    sizes = _ViewGraph(graph)
    packed_views = [] if packed is None else _users(packed)
    given = {*sizes.node_of, *packed_views}
    nodes = dict.fromkeys(r for r in results if isinstance(r, fx.Node) and r not in given)
    views = {r for r in nodes if _is_strided(r) and _is_replayed(r, visible, returned)}
    visible |= {root_of(r) for r in views}
    computed = dict.fromkeys(root_of(r) if r in views else r for r in nodes if not sizes.has_size(r.meta.get("val")))
    computed |= dict.fromkeys(n for r in nodes if r in views for n in sizes.unknown_sizes(r))  # the run finds them
    computed = {r: None for r in computed if r not in sizes.node_of and r is not packed}

    single = [*computed, *([] if packed is None else [packed])]
    images, view_graph = images_of(graph) & {results[i] for i in saved} - visible, _ViewGraph(graph, single)
    inputs = [view_graph.node_of[r] for r in single]
    orders = [_order(r, exactly=True) if r in visible else saved_order(r, is_image=r in images) for r in computed]
    for r, order in zip(computed, orders, strict=True):
        view_graph.node_of[r] = _as_traced(r, order, view_graph) if r in visible else _permuted(view_graph, r, order)
    for node in packed_views:
        view_graph.node_of[node] = view_graph.graph.node_copy(node, view_graph.node_of.__getitem__)
    outputs = [_result(r, view_graph) for r in results]
    members: Any = () if packed is None else packed.args
    if packed is not None:
        computed |= dict.fromkeys(members[0])
        orders += [None if order == tuple(range(len(order))) else order for order in members[1]]
    end.args = (tuple(computed),)
    graph.eliminate_dead_code()
    strides = [_strides(r) if r in images else None for r in results]
    finish = None if outputs == inputs else view_graph.function(outputs)
    return Results(tuple(computed), tuple(orders), tuple(strides), finish, 0 if packed is None else len(members[0]))


def _users(node: fx.Node) -> list[fx.Node]:
    """What is computed from `node`, except for the graph's results."""
    users = [user for user in node.users if user.op != "output"]
    return [n for user in users for n in (user, *_users(user))]


def cut_memory(graph: fx.Graph) -> tuple[list[fx.Node], Callable[..., tuple[Any, ...]] | None]:
    """(new inputs of `graph`, a function that computes them from the others): reads of an input's memory, which is
    larger than the input where that is a view.

    as_strided(slice(x, 0, 1), [2], [1], 2)   ->   an input f32[2]
    """
    view_graph = _ViewGraph(graph)
    reads = [n for n in graph.find_nodes(op="call_function", target=_aten.as_strided.default)]
    reads = [n for n in reads if root_of(n).op == "placeholder" and not view_graph.unknown_sizes(n)]
    if not reads:
        return [], None
    new_views, added, last = (
        [view_graph.view(n) for n in reads],
        list[fx.Node](),
        graph.find_nodes(op="placeholder")[-1],
    )
    for node in reversed(reads):
        with graph.inserting_after(last):
            placeholder = graph.placeholder(f"{node.name}_memory")
        placeholder.meta = dict(node.meta)
        node.replace_all_uses_with(placeholder)
        added.insert(0, placeholder)
    graph.eliminate_dead_code()
    return added, view_graph.function(new_views)


def copy_gradients(graph: fx.Graph, strides: Mapping[int, Sequence[int]]) -> None:
    """Have a backward graph compute gradients of leaves that are views with gaps or overlaps: autograd copies such a
    view into memory of its own, which is slower. strides: the leaves' strides, by the numbers of their gradients.

    slice(grad, 1, 0, 32)   ->   clone(slice(grad, 1, 0, 32))
    """
    (end,) = graph.find_nodes(op="output")
    results = list(end.args[0])
    for i, leaf_strides in strides.items():
        r = results[i]
        if not _is_strided(r) or source_of(r) is None or dense_order(r.meta["val"]) is not None:
            continue
        value = r.meta["val"].clone()
        if value.stride() == leaf_strides:
            with graph.inserting_before(end):
                results[i] = graph.call_function(_aten.clone.default, (r,))
            results[i].meta["val"] = value
    end.args = (tuple(results),)


def saved_results() -> slice:
    """Positions of a forward graph's results that only its backward graph reads."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None or context.output_strides is None:
        return _EMPTY
    return context.fw_metadata.tensors_saved_for_backwards_slice


def report_strides(results: Results) -> None:
    """Report the results' strides to AOTAutograd, which traced others."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides += results.strides


def _result(r: Any, view_graph: _ViewGraph) -> Any:
    if not isinstance(r, fx.Node) or r in view_graph.node_of:
        return view_graph.node_of[r] if isinstance(r, fx.Node) else r
    value: Any = r.meta.get("val")
    return view_graph.size(value) if view_graph.has_size(value) else view_graph.view(r)


def _is_replayed(r: fx.Node, visible: Collection[fx.Node], returned: Collection[fx.Node]) -> bool:
    """Whether torch replays a result as a view of an input or of another value that the model returns. A small part of
    a value that is no result is computed directly."""
    root = root_of(r)
    if root is r or root.op == "placeholder":
        return root is not r and r not in returned
    if root in visible or r not in visible:
        return root in visible
    siblings = [other for other in visible if root_of(other) is root]
    return len(siblings) > 1 or _size_in_bytes(r) >= _size_in_bytes(root) or _has_overlap(r)


def _as_traced(r: fx.Node, order: Order | None, view_graph: _ViewGraph) -> fx.Node:
    """The model's value for `r` with the strides that torch traced."""
    x: torch.Tensor = r.meta["val"]
    value = _permuted(view_graph, r, order)
    dims = (*x.shape, *x.stride())
    if _is_dense(x, order or range(x.dim()), exactly=True) or not all(map(view_graph.has_size, dims)):
        return value
    size, stride = [view_graph.size(n) for n in x.shape], [view_graph.size(n) for n in x.stride()]
    if order or dense_order(x) or 0 in x.shape:
        return _with_strides(view_graph, value, size, stride)
    if _has_overlap(r):
        return value
    return view_graph.call(
        _aten.copy_.default, view_graph.call(_aten.new_empty_strided.default, value, size, stride), value
    )


def _permuted(view_graph: _ViewGraph, r: fx.Node, order: Order | None) -> fx.Node:
    value, x = view_graph.node_of[r], r.meta["val"]
    if order is None:
        return value
    if not all(isinstance(n, int) for n in x.shape):
        return view_graph.call(_as_own_strides, _aten.permute.default, value, inverse(order))
    step, stride = 1, [0] * len(order)
    for axis in reversed(order):
        stride[axis], step = step, step * max(x.shape[axis], 1)
    return _with_strides(view_graph, value, [*x.shape], stride)


def _with_strides(view_graph: _ViewGraph, value: fx.Node, size: list[Any], stride: list[Any]) -> fx.Node:
    """`value` as a base tensor of other sizes and strides."""
    if reinterpret is not None and all(isinstance(n, int) for n in (*size, *stride)):
        return view_graph.call(reinterpret, value, tuple(size), tuple(stride))
    return view_graph.call(_as_own_strides, _aten.as_strided.default, value, size, stride)


def _as_own_strides(view: Callable[..., torch.Tensor], x: torch.Tensor, *args: Any) -> torch.Tensor:
    """A view that autograd takes for a base tensor: it forbids writes into views that a custom Function returns."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return view(x, *args)


def inverse(order: Order) -> Order:
    return tuple(order.index(axis) for axis in range(len(order)))


def _order(r: fx.Node, exactly: bool) -> Order | None:
    value: Any = r.meta.get("val")
    order = dense_order(value) if exactly else order_of(value)
    return None if order is None or order == tuple(range(len(order))) else order


def _call(node: fx.Node) -> fx.Node:
    """The call that computes `node`, which may be one of its several results."""
    source = node.args[0] if node.target is operator.getitem else node
    return source if isinstance(source, fx.Node) else node


def source_of(node: fx.Node) -> fx.Node | None:
    """The tensor that `node` is a view of, None for others."""
    call = _call(node)
    if call.op != "call_function" or not isinstance(call.target, torch._ops.OpOverload) or not call.args:
        return None
    source = call.args[0]
    if call.target._schema.is_mutable or not isinstance(source, fx.Node):
        return None
    return source if _is_strided(node) and _is_strided(source) and _storage(node) == _storage(source) else None


def root_of(node: fx.Node) -> fx.Node:
    source = source_of(node)
    return node if source is None else root_of(source)


def _storage(node: fx.Node) -> int:
    return node.meta["val"].untyped_storage()._cdata


def _is_strided(node: object) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _likely_size(size: int | torch.SymInt, default: int) -> int:
    """The size in the example, without a guard; `default` if it has none."""
    if not isinstance(size, torch.SymInt):
        return size
    env, expr = size.node.shape_env, size.node.expr
    if hasattr(env, "optimization_hint"):
        return env.optimization_hint(expr, fallback=default)
    hint = env.size_hint(expr, allow_none=True)  # PyTorch before 2.12
    return default if hint is None else int(hint)


def _size_in_bytes(node: fx.Node) -> int:
    value: torch.Tensor = node.meta["val"]
    return value.element_size() * math.prod(_likely_size(n, 1 << 12) for n in value.shape)


def _has_overlap(node: fx.Node | None) -> bool:
    """Whether elements of a view may share memory."""
    return node is not None and (_call(node).target in _OVERLAPPING_VIEWS or _has_overlap(source_of(node)))


def saved_order(node: fx.Node, *, is_image: bool) -> Order | None:
    """The axis order in which the model computes a value for the backward pass; None for row-major."""
    return _channels_last(node) if is_image else _order(node, exactly=False)


def _channels_last(node: fx.Node) -> Order:
    return 0, *range(2, node.meta["val"].dim()), 1


def _strides(node: fx.Node) -> tuple[int, ...]:
    shape, steps, step = node.meta["val"].shape, dict[int, int](), 1
    for axis in reversed(_channels_last(node)):
        steps[axis] = step
        step *= shape[axis]
    return tuple(steps[axis] for axis in range(len(shape)))


def images_of(graph: fx.Graph) -> set[object]:
    """Values with the shape of some operand or result of a convolution, pool or batch norm."""
    images = [n for n in graph.nodes if _is_image(n.meta.get("val"))]
    layers = [n for n in graph.nodes if getattr(n.target, "overloadpacket", None) in _IMAGE_OPS]
    near = {n for layer in layers for n in (layer, layer.args[0], *layer.users) if n.target not in _AXIS_MOVES}
    shapes = {n.meta["val"].shape for n in images if n in near}
    return {n for n in images if n.op != "placeholder" and n.meta["val"].shape in shapes}


def _is_image(value: object) -> bool:
    return has_known_layout(value) and value.dim() >= 3 and not value.is_complex()


def has_known_layout(value: object) -> TypeGuard[torch.Tensor]:
    """Whether a value is a tensor of constant sizes and strides."""
    return isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in (*value.shape, *value.stride()))
