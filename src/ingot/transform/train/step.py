"""One graph for a step of training: forward, loss, gradients, clipping, the optimizer's update.

    inputs..., lr, state...   ->   next state..., loss, metrics...

The state consists of the parameters, the model's buffers, the optimizer's moments and the number of updates, and
depending on the options of accumulated gradients and the loss scale of float16.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from ingot import ops
from ingot.autodiff import differentiable, differentiable_operands, gradients
from ingot.ir.node import Graph, Input, Node, Project, rebuild, splat_of, topological
from ingot.ir.types import DType, TensorType, bf16, f16, f32, f64, i64, static_shape, word_fix
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.optim import Optimizer
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, check_number, check_patterns
from ingot.transform.train.adversary import Adversary
from ingot.transform.train.losses import loss_named, metric_named
from ingot.transform.train.sources import StateTensor, Trainable

PRECISIONS: dict[str, DType | None] = {"float32": None, "bfloat16": bf16, "float16": f16, "tf32": None, "ieee": None}
LR, TARGET = "lr", "target"
UPDATES, ACCUMULATED, SCALE, CLEAN_UPDATES = "updates", "accumulated turns", "loss scale", "updates since an overflow"
_INITIAL_SCALE, _UPDATES_PER_GROWTH = 65536.0, 2000  # as PyTorch's GradScaler


@dataclass(frozen=True)
class Recipe:
    """The options of training. loss: its name; None if the model's first result is the loss. target: the type of the
    target, if it is not the one that the loss expects. clip_norm: the limit of the global norm of the gradients.
    accumulate: the calls whose mean gradient makes one update. skip_nonfinite: whether to skip updates whose gradients
    are not all finite. adversary: attacks the inputs of each batch."""

    optimizer: Optimizer
    loss: str | None
    target: TensorType | None = None
    metrics: tuple[str, ...] = ()
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    precision: str = "float32"
    skip_nonfinite: bool = False
    adversary: Adversary | None = None

    def check(self) -> None:
        for what, value in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            if value is not None:
                check_number(what, value, "a number above 0, or None", lambda v: v > 0)
        calls = "a whole number of calls, at least 1"
        check_number("accumulate", self.accumulate, calls, lambda v: v >= 1, whole=True)
        if self.precision not in PRECISIONS:
            raise InputError("precision", expected=" or ".join(PRECISIONS), got=repr(self.precision),
                             fix=word_fix(self.precision, PRECISIONS))  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A training step. graph: see the module's docstring. state: its state, in the graph's order. metrics: the names of
    the results after the loss. has_target: whether the last input of the batch is the target of a loss by name. rate:
    the name of the learning rate's input. classes: the number of classes that the target indexes; None for other
    targets, and if it is dynamic."""

    graph: Graph
    state: tuple[StateTensor, ...]
    metrics: tuple[str, ...]
    has_target: bool
    rate: str
    classes: int | None


def step_of(source: Trainable, recipe: Recipe, keep_products: bool = True) -> Step:
    """Build the step. keep_products: see `differentiable`.

    Raises InputError for a recipe, a loss or targets that do not fit, UnsupportedOpError naming every op that has no
    gradient."""
    recipe.check()
    check_patterns("groups", (g.match for g in recipe.optimizer.groups), [p.name for p in source.parameters])
    loss, measured_metrics, target = _loss(source, recipe)
    if source.extra_loss is not None:
        loss = ops.add(loss, ops.cast(source.extra_loss, loss.dtype))
    inputs = source.inputs if target is None else (*source.inputs, target)
    new_buffers = [b.next for b in source.buffers]
    new_parameters = {p.name: p.next for p in source.parameters if p.next is not None}
    forward_results = (
        loss,
        *(n for n in new_buffers if n is not None),
        *new_parameters.values(),
        *measured_metrics.values(),
    )
    sizes = source.graph.outputs[len(source.graph.results) :]
    full_graph = replace(source.graph, outputs=(*forward_results, *sizes), output_names=(), state=())
    core = differentiable(full_graph, keep_products)
    count = len(forward_results)
    values = core.outputs[:count]
    if recipe.adversary is not None:
        values = recipe.adversary.attacked(values, source.inputs)
    remaining = iter(values)
    loss, *buffer_values = itertools.islice(remaining, 1 + len(new_buffers))
    new_parameters = dict(zip(new_parameters, remaining, strict=False))
    metrics = dict(zip(measured_metrics, remaining, strict=True))
    rate = _unused_name(LR, inputs)
    lr = Input(rate, TensorType(f64 if any(p.node.dtype == f64 for p in source.parameters) else f32))()
    update = _Update(recipe, lr)
    parameters = [replace(p, next=new_parameters.get(p.name)) for p in source.parameters]
    state = [*update.parameters(loss, parameters), *_buffers(source.buffers, buffer_values, update)]
    state += update.state
    metrics |= update.metrics
    narrow_dtype = PRECISIONS[recipe.precision]
    results = [*(k.next for k in state if k.next is not None), loss, *metrics.values()]
    outputs = (*results, *core.outputs[count:])
    if narrow_dtype is not None:
        outputs = rebuild(outputs, rule=lambda n, images: _narrow_operands(n, images, narrow_dtype))
    labels = (*(f"next {k.name}" for k in state), "loss", *metrics)
    inputs_and_state = (*inputs, lr, *(k.node for k in state))
    graph = replace(
        core, inputs=inputs_and_state, outputs=outputs, output_names=labels, state=tuple(k.name for k in state)
    )
    final_state = tuple(replace(k, next=y) for k, y in zip(state, outputs, strict=False))
    classes = None
    if target is not None and recipe.loss is not None:
        classes = loss_named(recipe.loss).classes(source.results[0].type, target.type)
    return Step(graph, final_state, tuple(metrics), target is not None, rate, classes)


def _loss(source: Trainable, recipe: Recipe) -> tuple[Node, dict[str, Node], Node | None]:
    """The loss, the metrics, and the target if it is an input of the step."""
    if not source.results:
        raise InputError("a model to train", expected="a result", got="none")
    first = source.results[0]
    if source.has_loss:
        if recipe.metrics:
            fix = "compute them outside of the step, or use a loss by name"
            raise InputError("metrics", expected="none with a custom loss", got=list(recipe.metrics), fix=fix)
        if first.shape and all(d == 1 for d in first.shape):
            first = ops.reshape(first, ())
        return first, {}, None
    assert recipe.loss is not None
    loss = loss_named(recipe.loss)
    kind = recipe.target or loss.target(first.type)
    loss.check(recipe.loss, first.type, kind)
    target = Input(_unused_name(TARGET, source.inputs), kind)()
    measured: dict[str, Node] = {}
    for name in recipe.metrics:
        metric = metric_named(name)
        metric.check(name, first.type, kind)
        measured[name] = metric.value(first, target)
    return loss.value(first, target), measured, target


def _unused_name(name: str, inputs: Sequence[Node]) -> str:
    names = {x.op.label for x in inputs if isinstance(x.op, Input)}
    return next(n for n in (name, *(f"{name}_{i}" for i in range(len(names) + 1))) if n not in names)


def _buffers(buffers: Sequence[StateTensor], values: Sequence[Node], update: _Update) -> list[StateTensor]:
    return [replace(b, next=y) for b, y in zip(buffers, values, strict=True)]


def _narrow_operands(n: Node, images: Sequence[Node], dtype: DType) -> Node:
    """Cast the operands of an f32 sum of products, or of an attention, to `dtype`; sums stay f32, as do results."""
    operands = (*n.op.stored_weights, *n.op.stored_values)
    if not operands or any(t.dtype != f32 for t in n.types) or any(images[i].dtype != f32 for i in operands):
        copy = n.with_inputs(images)
        return ops.cast(copy, n.dtype) if isinstance(n.op, Project) else copy
    operands_narrow = [ops.cast(x, dtype) if i in operands else x for i, x in enumerate(images)]
    result = n.op.with_sums(f32)(*operands_narrow, loc=n.loc)
    return result if len(n.types) > 1 else ops.cast(result, f32)


class _Update:
    """Builds the update from gradients to the next parameters. state: the state of the update itself. metrics: the
    values that it measures."""

    def __init__(self, recipe: Recipe, lr: Node) -> None:
        self.recipe, self.lr = recipe, Term(lr)
        self.state: list[StateTensor] = []
        self.metrics: dict[str, Node] = {}

    def parameters(self, loss: Node, parameters: Sequence[StateTensor]) -> list[StateTensor]:
        """The parameters with their next values."""
        if not loss.dtype.is_float or loss.shape:
            raise InputError(
                "loss", expected="a float scalar", got=str(loss.type), fix="reduce it to one number: its mean"
            )
        # as in PyTorch, the others have no gradient: they stay unchanged, without weight decay
        depends = set(topological([loss], differentiable_operands))
        all_parameters, parameters = parameters, [p for p in parameters if not depends.isdisjoint(_values(p))]
        scale = self._scalar(SCALE, np.float32(_INITIAL_SCALE)) if self.recipe.precision == "float16" else None
        seed = None if scale is None else ops.cast(scale.node, loss.dtype)
        gradient_iter = iter(gradients(loss, [x for p in parameters for x in _values(p)], seed))
        sums = [reduce(ops.add, [next(gradient_iter) for _ in _values(p)]) for p in parameters]
        if all(splat_of(g) == 0 for g in sums):
            fix = "numbers, detached values and values of no_grad are constants: compute it from the model's results"
            got = "a gradient of zeros" if sums else "a loss that depends on none"
            raise InputError("loss", expected="a loss that depends on a parameter", got=got, fix=fix)
        grads = [t.widen_narrow(g) for g in sums]
        if scale is not None:
            grads = [g / scale.cast(g.dtype) for g in grads]
        grads, is_last = self._accumulate(parameters, grads)
        is_due = is_last
        if scale is not None or self.recipe.skip_nonfinite:
            is_finite = _norm(grads) < float("inf")  # false of NaN, too
            is_due = is_finite if is_last is None else _and(is_finite, is_last)
            if scale is not None:
                self._update_scale(scale, is_finite, is_last)
        grads = self._clip(grads)
        updates = self._scalar(UPDATES, np.int64(0))
        count = updates + 1
        self._set_next(UPDATES, count if is_due is None else _choose(is_due, count, updates))
        new_parameters = {p.name: self._next(p, g, count, is_due) for p, g in zip(parameters, grads, strict=True)}
        return [new_parameters.get(p.name, replace(p, next=_values(p)[-1])) for p in all_parameters]

    def _next(self, parameter: StateTensor, g: Term, count: Term, is_due: Term | None) -> StateTensor:
        p = t.widen_narrow(_values(parameter)[-1])
        optimizer = self.recipe.optimizer
        moments = {slot: self._zeros_like(f"{slot}:{parameter.name}", p) for slot in optimizer.slots}
        updated, new_moments = optimizer.apply(parameter.name, p, g, moments, self.lr, count)
        for slot, value in new_moments.items():
            self._set_next(
                f"{slot}:{parameter.name}", value if is_due is None else _choose(is_due, value, moments[slot])
            )
        chosen = updated if is_due is None else _choose(is_due, updated, p)
        return replace(parameter, next=chosen.cast(parameter.node.dtype).node)

    def _accumulate(self, parameters: Sequence[StateTensor], grads: list[Term]) -> tuple[list[Term], Term | None]:
        """The mean of the gradients since the last update, and whether this call makes an update."""
        calls = self.recipe.accumulate
        if calls == 1:
            return grads, None
        accumulated = self._scalar(ACCUMULATED, np.int64(0))
        count = accumulated + 1
        is_due = count >= calls  # not ==: a checkpoint may come from a step that accumulates more calls
        self._set_next(ACCUMULATED, _choose(is_due, 0, count))
        means: list[Term] = []
        for p, g in zip(parameters, grads, strict=True):
            name = f"gradient:{p.name}"
            total = self._zeros_like(name, g) + g
            self._set_next(name, _choose(is_due, 0.0, total))
            means.append(total / count.cast(g.dtype))
        return means, is_due

    def _clip(self, grads: list[Term]) -> list[Term]:
        """Clip by value, then by norm. The norm is a metric."""
        max_value, max_norm = self.recipe.clip_value, self.recipe.clip_norm
        if max_value is not None:
            grads = [Term(ops.clip(g.node, -max_value, max_value)) for g in grads]
        if max_norm is None:
            return grads
        norm = _norm(grads)
        self.metrics["grad_norm"] = norm.node
        factor = Term(ops.minimum((max_norm / (norm + 1e-6)).node, 1.0))
        return [g * factor.cast(g.dtype) for g in grads]

    def _update_scale(self, scale: Term, is_finite: Term, is_last: Term | None) -> None:
        """Halve the scale after an overflow, and double it after many updates without one. is_last: whether this call
        completes the gradients of an update; None if each call does."""
        clean = self._scalar(CLEAN_UPDATES, np.int64(0))
        is_growing = (clean + 1).equals(_UPDATES_PER_GROWTH)
        new_clean = _choose(_and(is_finite, is_growing.map(ops.Not())), clean + 1, 0)
        new_scale = _choose(is_finite, _choose(is_growing, scale * 2.0, scale), scale * 0.5)
        self._set_next(CLEAN_UPDATES, new_clean if is_last is None else _choose(is_last, new_clean, clean))
        self._set_next(SCALE, new_scale if is_last is None else _choose(is_last, new_scale, scale))
        self.metrics["loss_scale"] = scale.node

    # --- state

    def _scalar(self, name: str, initial: np.generic) -> Term:
        return self._add_state(name, np.asarray(initial), f32 if initial.dtype.kind == "f" else i64)

    def _zeros_like(self, name: str, x: Term) -> Term:
        return self._add_state(name, np.broadcast_to(x.dtype.numpy.type(0), static_shape(x.shape)), x.dtype)

    def _add_state(self, name: str, initial: np.ndarray, dtype: DType) -> Term:
        node = Input(name, TensorType(dtype, initial.shape))()
        self.state.append(StateTensor(name, node, initial))
        return Term(node)

    def _set_next(self, name: str, value: Term) -> None:
        self.state = [replace(k, next=value.node) if k.name == name else k for k in self.state]


def _values(p: StateTensor) -> tuple[Node, ...]:
    """The values of a parameter that the loss may read: its own, and the one that forward assigned."""
    return (p.node,) if p.next is None else (p.node, p.next)


def _norm(grads: Sequence[Term]) -> Term:
    """The norm of all gradients as one vector, in f32."""
    total: Term | None = None
    for g in grads:
        x = g.cast(f32)
        squares = (x * x).sum(range(g.rank), keepdims=False)
        total = squares if total is None else total + squares
    assert total is not None
    return total.map(ops.Sqrt())


def _and(a: Term, b: Term) -> Term:
    return Term(ops.and_(a.node, b.node))


def _choose(condition: Term, a: Term | float, b: Term | float) -> Term:
    """At least one of the two is a term."""
    x, y = (v.node if isinstance(v, Term) else v for v in (a, b))
    return Term(ops.where(condition.node, x, y))
