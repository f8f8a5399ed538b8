"""One graph for a step of training: forward, loss, gradients, clipping, the optimizer's update.

    inputs..., lr, kept...   ->   next kept..., loss, metrics...

What is kept are parameters, the model's buffers, the optimizer's moments, the number of updates, and, where they are
asked for, gradients that are being accumulated and the scale of a loss in float16.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from ingot import ops
from ingot.autodiff import differentiable, gradients, ways
from ingot.ir.node import Graph, Input, Node, rebuilt, splat_of, topological
from ingot.ir.types import DType, TensorType, bf16, f16, f32, f64, i64, static_shape
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.optim import Optimizer
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, check_number, check_patterns
from ingot.transform.train.losses import loss_named, metric_named
from ingot.transform.train.sources import Kept, Trainable

PRECISIONS: dict[str, DType | None] = {"float32": None, "bfloat16": bf16, "float16": f16}
LR, TARGET = "lr", "target"
UPDATES, TURNS, SCALE, CLEAN = "updates", "accumulated turns", "loss scale", "updates since an overflow"
_FIRST_SCALE, _CLEAN_TURNS = 65536.0, 2000  # as PyTorch's GradScaler


@dataclass(frozen=True)
class Recipe:
    """How to train. loss: by name; None where the model's first result is it. target: the type of the target, if it
    is not the one that the loss expects. clip_norm: of all gradients together. accumulate: calls whose mean
    gradient is one update. skip_nonfinite: no update by gradients that are not all finite."""

    optimizer: Optimizer
    loss: str | None
    target: TensorType | None = None
    metrics: tuple[str, ...] = ()
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    precision: str = "float32"
    skip_nonfinite: bool = False

    def check(self) -> None:
        for what, value in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            if value is not None:
                check_number(what, value, "a number above 0, or None", lambda v: v > 0)
        calls = "a whole number of calls, at least 1"
        check_number("accumulate", self.accumulate, calls, lambda v: v >= 1, whole=True)
        if self.precision not in PRECISIONS:
            raise InputError("precision", expected=" or ".join(PRECISIONS), got=repr(self.precision))


@dataclass(frozen=True)
class Step:
    """graph: see the module. kept: what lasts from step to step, in the graph's order. metrics: names of the results
    behind the loss. has_target: whether the last of the batch is the target of a loss by name. rate: the name of the
    learning rate. classes: of which the target has the numbers; None for other targets, and where calls tell."""

    graph: Graph
    kept: tuple[Kept, ...]
    metrics: tuple[str, ...]
    has_target: bool
    rate: str
    classes: int | None


def step_of(source: Trainable, recipe: Recipe, keep_products: bool = True) -> Step:
    """keep_products: see `differentiable`.

    Raises InputError for a recipe, a loss or targets that do not fit, UnsupportedOpError naming all ops that have no
    reverse rule."""
    recipe.check()
    check_patterns("groups", (g.match for g in recipe.optimizer.groups), [p.name for p in source.parameters])
    loss, measured, target = _loss(source, recipe)
    if source.added is not None:
        loss = ops.add(loss, ops.cast(source.added, loss.dtype))
    inputs = source.inputs if target is None else (*source.inputs, target)
    after = [b.after for b in source.buffers]
    renewed = {p.name: p.after for p in source.parameters if p.after is not None}
    given = (loss, *(n for n in after if n is not None), *renewed.values(), *measured.values())
    sizes = source.graph.outputs[len(source.graph.results) :]
    whole = replace(source.graph, outputs=(*given, *sizes), output_names=(), state=())
    core = differentiable(whole, keep_products)
    count = len(given)
    others = iter(core.outputs[:count])
    loss, *moved = itertools.islice(others, 1 + len(after))
    renewed = dict(zip(renewed, others, strict=False))
    metrics = dict(zip(measured, others, strict=True))
    rate = _free(LR, inputs)
    lr = Input(rate, TensorType(f64 if any(p.node.dtype == f64 for p in source.parameters) else f32))()
    update = _Update(recipe, lr)
    parameters = [replace(p, after=renewed.get(p.name)) for p in source.parameters]
    kept = [*update.parameters(loss, parameters), *_buffers(source.buffers, moved, update)]
    kept += update.own
    metrics |= update.metrics
    narrow = PRECISIONS[recipe.precision]
    results = [*(k.after for k in kept if k.after is not None), loss, *metrics.values()]
    outputs = (*results, *core.outputs[count:])
    if narrow is not None:
        outputs = rebuilt(outputs, rule=lambda n, images: _narrowed(n, images, narrow))
    labels = (*(f"next {k.name}" for k in kept), "loss", *metrics)
    every = (*inputs, lr, *(k.node for k in kept))
    graph = replace(core, inputs=every, outputs=outputs, output_names=labels, state=tuple(k.name for k in kept))
    named = tuple(replace(k, after=y) for k, y in zip(kept, outputs, strict=False))
    classes = None
    if target is not None and recipe.loss is not None:
        classes = loss_named(recipe.loss).classes(source.results[0].type, target.type)
    return Step(graph, named, tuple(metrics), target is not None, rate, classes)


def _loss(source: Trainable, recipe: Recipe) -> tuple[Node, dict[str, Node], Node | None]:
    """The loss, the metrics, and the target where it is one of the step's own inputs."""
    if not source.results:
        raise InputError("a model to train", expected="a result", got="none")
    first = source.results[0]
    if source.has_loss:
        if recipe.metrics:
            fix = "measure them beside the step, or give the loss by name"
            raise InputError("metrics", expected="none with a loss of your own", got=list(recipe.metrics), fix=fix)
        if first.shape and all(d == 1 for d in first.shape):
            first = ops.reshape(first, ())
        return first, {}, None
    assert recipe.loss is not None
    loss = loss_named(recipe.loss)
    kind = recipe.target or loss.target(first.type)
    loss.check(recipe.loss, first.type, kind)
    target = Input(_free(TARGET, source.inputs), kind)()
    measured: dict[str, Node] = {}
    for name in recipe.metrics:
        metric = metric_named(name)
        metric.check(name, first.type, kind)
        measured[name] = metric.value(first, target)
    return loss.value(first, target), measured, target


def _free(name: str, inputs: Sequence[Node]) -> str:
    taken = {x.op.label for x in inputs if isinstance(x.op, Input)}
    return next(n for n in (name, *(f"{name}_{i}" for i in range(len(taken) + 1))) if n not in taken)


def _buffers(buffers: Sequence[Kept], moved: Sequence[Node], update: _Update) -> list[Kept]:
    return [replace(b, after=y) for b, y in zip(buffers, moved, strict=True)]


def _narrowed(n: Node, images: Sequence[Node], dtype: DType) -> Node:
    """Sums of products of f32 take their operands in `dtype`; the sums stay f32."""
    places = (*n.op.stored_weights, *n.op.stored_values)
    if not n.op.stored_weights or n.types[0].dtype != f32 or any(images[i].dtype != f32 for i in places):
        return n.with_inputs(images)
    narrow = [ops.cast(x, dtype) if i in places else x for i, x in enumerate(images)]
    return n.op.with_sums(f32)(*narrow, loc=n.loc)


class _Update:
    """The way from gradients to the next parameters. own: what it keeps itself; metrics: what it measures."""

    def __init__(self, recipe: Recipe, lr: Node) -> None:
        self.recipe, self.lr = recipe, Term(lr)
        self.own: list[Kept] = []
        self.metrics: dict[str, Node] = {}

    def parameters(self, loss: Node, parameters: Sequence[Kept]) -> list[Kept]:
        """The parameters with their next values."""
        if not loss.dtype.is_float or loss.shape:
            raise InputError(
                "loss", expected="a float scalar", got=str(loss.type), fix="reduce it to one number: its mean"
            )
        # as in PyTorch, the others have no gradient: they stay as they are, and do not shrink
        depends = set(topological([loss], ways))
        given, parameters = parameters, [p for p in parameters if not depends.isdisjoint(_values(p))]
        scale = self._scalar(SCALE, np.float32(_FIRST_SCALE)) if self.recipe.precision == "float16" else None
        seed = None if scale is None else ops.cast(scale.node, loss.dtype)
        every = iter(gradients(loss, [x for p in parameters for x in _values(p)], seed))
        slopes = [reduce(ops.add, [next(every) for _ in _values(p)]) for p in parameters]
        if all(splat_of(g) == 0 for g in slopes):
            fix = "numbers, detached values and values of no_grad are constants: compute it from the model's results"
            got = "a gradient of zeros" if slopes else "one that depends on none"
            raise InputError("loss", expected="one that depends on a parameter", got=got, fix=fix)
        found = [t.floating(g) for g in slopes]
        if scale is not None:
            found = [g / scale.cast(g.dtype) for g in found]
        found, turn = self._accumulated(parameters, found)
        due = turn
        if scale is not None or self.recipe.skip_nonfinite:
            finite = _norm(found) < float("inf")  # false of NaN, too
            due = finite if turn is None else _both(finite, turn)
            if scale is not None:
                self._rescaled(scale, finite, turn)
        found = self._clipped(found)
        updates = self._scalar(UPDATES, np.int64(0))
        count = updates + 1
        self._after(UPDATES, count if due is None else _choose(due, count, updates))
        moved = {p.name: self._next(p, g, count, due) for p, g in zip(parameters, found, strict=True)}
        return [moved.get(p.name, replace(p, after=_values(p)[-1])) for p in given]

    def _next(self, kept: Kept, g: Term, count: Term, due: Term | None) -> Kept:
        p = t.floating(_values(kept)[-1])
        optimizer = self.recipe.optimizer
        moments = {slot: self._like(f"{slot}:{kept.name}", p) for slot in optimizer.slots}
        moved, new = optimizer.apply(kept.name, p, g, moments, self.lr, count)
        for slot, value in new.items():
            self._after(f"{slot}:{kept.name}", value if due is None else _choose(due, value, moments[slot]))
        chosen = moved if due is None else _choose(due, moved, p)
        return replace(kept, after=chosen.cast(kept.node.dtype).node)

    def _accumulated(self, parameters: Sequence[Kept], found: list[Term]) -> tuple[list[Term], Term | None]:
        """The mean of the last calls' gradients, and whether this call makes an update."""
        times = self.recipe.accumulate
        if times == 1:
            return found, None
        turns = self._scalar(TURNS, np.int64(0))
        count = turns + 1
        due = count >= times  # also behind a checkpoint of a step that takes more calls
        self._after(TURNS, _choose(due, 0, count))
        means: list[Term] = []
        for p, g in zip(parameters, found, strict=True):
            name = f"gradient:{p.name}"
            total = self._like(name, g) + g
            self._after(name, _choose(due, 0.0, total))
            means.append(total / count.cast(g.dtype))
        return means, due

    def _clipped(self, found: list[Term]) -> list[Term]:
        """By value, then by norm, which is measured."""
        limit, most = self.recipe.clip_value, self.recipe.clip_norm
        if limit is not None:
            found = [Term(ops.clip(g.node, -limit, limit)) for g in found]
        if most is None:
            return found
        norm = _norm(found)
        self.metrics["grad_norm"] = norm.node
        factor = Term(ops.minimum((most / (norm + 1e-6)).node, 1.0))
        return [g * factor.cast(g.dtype) for g in found]

    def _rescaled(self, scale: Term, finite: Term, turn: Term | None) -> None:
        """Half of the scale behind an overflow, twice of it behind many updates without one. turn: whether this call's
        gradients, with those before, are an update's; None where each call's are."""
        clean = self._scalar(CLEAN, np.int64(0))
        grown = (clean + 1).equals(_CLEAN_TURNS)
        counted = _choose(_both(finite, grown.map(ops.Not())), clean + 1, 0)
        fitted = _choose(finite, _choose(grown, scale * 2.0, scale), scale * 0.5)
        self._after(CLEAN, counted if turn is None else _choose(turn, counted, clean))
        self._after(SCALE, fitted if turn is None else _choose(turn, fitted, scale))
        self.metrics["loss_scale"] = scale.node

    # --- what is kept

    def _scalar(self, name: str, first: np.generic) -> Term:
        return self._kept(name, np.asarray(first), f32 if first.dtype.kind == "f" else i64)

    def _like(self, name: str, x: Term) -> Term:
        return self._kept(name, np.broadcast_to(x.dtype.numpy.type(0), static_shape(x.shape)), x.dtype)

    def _kept(self, name: str, first: np.ndarray, dtype: DType) -> Term:
        node = Input(name, TensorType(dtype, first.shape))()
        self.own.append(Kept(name, node, first))
        return Term(node)

    def _after(self, name: str, value: Term) -> None:
        self.own = [replace(k, after=value.node) if k.name == name else k for k in self.own]


def _values(p: Kept) -> tuple[Node, ...]:
    """What the loss may read of a parameter: its value, and the one that forward gave it."""
    return (p.node,) if p.after is None else (p.node, p.after)


def _norm(found: Sequence[Term]) -> Term:
    """Of all gradients as one vector, in f32."""
    total: Term | None = None
    for g in found:
        x = g.cast(f32)
        part = (x * x).sum(range(g.rank), keepdims=False)
        total = part if total is None else total + part
    assert total is not None
    return total.map(ops.Sqrt())


def _both(a: Term, b: Term) -> Term:
    return Term(ops.and_(a.node, b.node))


def _choose(condition: Term, a: Term | float, b: Term | float) -> Term:
    """At least one of the two is a term."""
    x, y = (v.node if isinstance(v, Term) else v for v in (a, b))
    return Term(ops.where(condition.node, x, y))
