"""`ingot.attribute`: choose the inputs and the score, build the graph of a method, compile it, and call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from numbers import Integral
from typing import Any, Literal

import numpy as np

from ingot import ops
from ingot.driver.compile import Options, compiled_program, unloaded_program
from ingot.driver.open import Opened, Request, open_model, recognize, with_fitting_example
from ingot.ir.dims import DimLike
from ingot.ir.node import Graph, Input, Node, rebuild
from ingot.ir.types import TensorType, i64
from ingot.runtime.executor import CompiledModel, tree_convention
from ingot.runtime.tensors import host_array
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, InputError, ShapeError, check_number
from ingot.support.log import Log
from ingot.transform.attribute import methods
from ingot.transform.attribute.scores import Scores, Variable, find_variables, of_examples, scores_of, targets
from ingot.transform.differentiate import detached

MethodName = Literal["integrated_gradients", "smoothgrad", "gradient_x_input", "occlusion"]
METHODS: tuple[MethodName, ...] = ("integrated_gradients", "smoothgrad", "gradient_x_input", "occlusion")
MAX_POINTS_PER_ITERATION = 16
_MAX_WINDOWS = 1024  # of one input, unless `window` is given
_log = Log("ingot.attribute")


@dataclass(frozen=True)
class Settings:
    """The options of `ingot.attribution`."""

    method: MethodName = "integrated_gradients"
    output: int | str = 0
    baseline: bool = False
    steps: int = 50
    stdev: float | None = None
    window: int | Sequence[int] | None = None
    stride: int | Sequence[int] | None = None
    wrt: Sequence[str] | None = None
    seed: int = 0

    def check(self) -> None:
        """Raise InputError for invalid values, and for options of another method."""
        if self.method not in METHODS:
            raise InputError("method", expected=f"one of {', '.join(METHODS)}", got=repr(self.method))
        check_number("steps", self.steps, "a number of points from 1 on", lambda n: 1 <= n <= 1 << 20, whole=True)
        check_number("seed", self.seed, "a whole number from 0", lambda n: 0 <= n < 1 << 63, whole=True)
        if self.stdev is not None:
            check_number("stdev", self.stdev, "a number of at least 0", lambda s: 0 <= s < float("inf"))
        owners = (
            ("stdev", "smoothgrad", self.stdev),
            *(("window", "occlusion", x) for x in (self.window, self.stride)),
        )
        for option, owner, value in owners:
            if value is not None and self.method != owner:
                raise InputError(option, expected=f"none: only {owner} has it", got=repr(value))
        if self.baseline and self.method == "smoothgrad":
            raise InputError("baseline", expected="none: smoothgrad has none", got="a value")


class AttributionModel(CompiledModel):
    """A program that attributes a score to inputs. It takes the model's arguments, `target`, and `baseline` if it was
    compiled with one. It returns an array of the shape of each attributed input: one array, or a tuple of several in
    the order of `wrt`.

    It can be saved and loaded like any other program. A loaded program takes its inputs by name: those of the model,
    `baseline of NAME`, and `target`, where -1 selects the class of the largest score. The attributions of an example
    whose target is out of range are NaN.

    wrt: the names of the attributed inputs. batch_axis: of the explained result; None if it has none.
    """

    def __init__(self, graph: Graph, opened: Opened, scores: Scores, variables: Sequence[Variable], options: Options):
        self.wrt = tuple(v.name for v in variables)
        self._model_inputs = [x.op.label for x in opened.graph.inputs]  # type: ignore[attr-defined]
        self._flatten_model = opened.flatten
        self.batch_axis = scores.batch_axis
        self._batched = next((v.name for v in variables if v.input.shape), self.wrt[0])
        self._class_sizes = [scores.result.shape[d] for d in scores.class_axes]
        self._target_rank = None if (shape := scores.target_shape()) is None else len(shape)
        program = compiled_program(graph, options)
        unloaded = unloaded_program(program, options.threads)
        convention = tree_convention(self._flatten, lambda results: results[0] if len(results) == 1 else tuple(results))
        super().__init__(unloaded or program, threads=options.threads, convention=convention)

    def _flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        model_kwargs = {name: value for name, value in kwargs.items() if name not in ("target", "baseline")}
        if self._flatten_model is not None:
            values = dict(zip(self._model_inputs, map(detached, self._flatten_model(args, model_kwargs)), strict=True))
        else:
            n = len(self._model_inputs)
            if len(args) > n:
                raise InputError("inputs", expected=f"{n} ({', '.join(self._model_inputs)})", got=f"{len(args)} values")
            values = {**dict(zip(self._model_inputs, args, strict=False)), **model_kwargs}
        if missing := [name for name in self._model_inputs if name not in values]:
            raise InputError("inputs", expected=", ".join(self._model_inputs), got=f"none for {', '.join(missing)}")
        extras = self._baselines(values, kwargs.get("baseline"))
        target = kwargs.get("target")
        if self._target_rank is not None:
            extras["target"] = self._target(values, target)
        elif target is not None:
            raise InputError("target", expected="none: the model has one score for each example", got=repr(target))
        return self._inputs_in_order((), {**values, **extras})

    def _baselines(self, values: Mapping[str, Any], baseline: Any) -> dict[str, np.ndarray]:
        """The baselines by input name, in the shapes and types of their inputs."""
        specs = {spec.name: spec for spec in self.inputs}
        if baseline_name(self.wrt[0]) not in specs:
            if baseline is not None:
                raise InputError("baseline", expected="none", got="a value", fix="make the program with baseline=True")
            return {}
        if baseline is None:
            baseline = dict.fromkeys(self.wrt, 0)
        elif not isinstance(baseline, Mapping):
            parts = baseline if isinstance(baseline, tuple | list) and len(self.wrt) > 1 else [baseline]
            if len(parts) != len(self.wrt):
                raise InputError("baseline", expected=f"one for each of {', '.join(self.wrt)}", got=len(parts))
            baseline = dict(zip(self.wrt, parts, strict=True))
        if unknown := [name for name in baseline if name not in self.wrt]:
            raise InputError("baseline", expected=f"names of {', '.join(self.wrt)}", got=unknown)
        return {
            baseline_name(name): _baseline(name, baseline.get(name, 0), host_array(values[name], name))
            for name in self.wrt
        }

    def _target(self, values: Mapping[str, Any], target: Any) -> np.ndarray:
        """The indices of the explained scores, in the shape of the program's input `target`."""
        axes = len(self._class_sizes)
        sizes = f"an index below {self._class_sizes[0]}" if axes == 1 else f"indices below {tuple(self._class_sizes)}"
        has_batch = self._target_rank == 1 + (axes > 1)
        examples = np.shape(values[self._batched])[:1] if has_batch else ()
        per_example = () if axes == 1 else (axes,)
        if target is None:
            if axes > 1:
                raise InputError("target", expected=sizes, got="none", fix=f"a tuple of {axes} indices")
            return np.full(examples, -1, np.int64)
        array = np.asarray(host_array(target, "target"))
        if array.dtype.kind not in "iu" or array.shape not in (per_example, (*examples, *per_example)):
            got = f"{array.dtype}{list(array.shape)}"
            raise InputError("target", expected=f"{sizes}, for all examples or for each of {list(examples)}", got=got)
        limits = [n if isinstance(n, int) else np.iinfo(np.int64).max for n in self._class_sizes]
        if ((array < 0) | (array >= np.asarray(limits if axes > 1 else limits[0]))).any():
            raise InputError("target", expected=sizes, got=np.unique(array).tolist()[:8], fix="None: the largest score")
        return np.array(np.broadcast_to(array, (*examples, *per_example)), np.int64, order="C")


def baseline_name(name: str) -> str:
    return f"baseline of {name}"


def _baseline(name: str, value: Any, x: np.ndarray) -> np.ndarray:
    array = np.asarray(host_array(value, f"the baseline of {name}"))
    if array.dtype.kind not in "biuf" and array.dtype != x.dtype:
        raise InputError(f"the baseline of {name}", expected=f"numbers of {x.dtype}", got=str(array.dtype))
    if x.dtype.kind in "iu" and array.dtype.kind not in "biu":
        raise InputError(f"the baseline of {name}", expected="integers, as the input has", got=str(array.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(x.dtype)
    if not np.isfinite(converted.astype(np.float64)).all():
        raise InputError(f"the baseline of {name}", expected=f"finite numbers of {x.dtype}", got="NaN or infinity")
    if x.dtype.kind in "iu" and (converted != array).any():
        raise InputError(f"the baseline of {name}", expected=f"numbers of {x.dtype}", got="others")
    try:
        return np.array(np.broadcast_to(converted, x.shape), order="C")
    except ValueError:
        raise InputError(
            f"the baseline of {name}", expected=f"a shape that fits {list(x.shape)}", got=list(array.shape)
        ) from None


def attribution_model(model: Any, request: Request, settings: Settings, options: Options) -> AttributionModel:
    """See `ingot.attribution`."""
    settings.check()
    request = replace(request, gradients=settings.method != "occlusion")
    opened = _open(model, request, options.target).stateless()
    variables = find_variables(opened.graph, settings.wrt)
    if settings.method == "occlusion":
        variables = tuple(Variable(v.input, (v.input,)) for v in variables)
    scores = scores_of(opened.graph, variables, settings.output)
    graph = attribution_graph(opened.graph, variables, scores, settings)
    return AttributionModel(graph, opened, scores, variables, options)


def _open(model: Any, request: Request, target: str) -> Opened:
    """Open the model. A module for which no dynamic sizes were requested gets an open batch size, if it supports
    one."""
    kind = "" if isinstance(getattr(model, "opened", None), Opened) else recognize(model)[0]
    request = with_fitting_example(model, request)
    is_module = kind == "torch" and not hasattr(model, "graph_signature") and request.example_inputs is not None
    if is_module and request.dynamic is None and target.partition(":")[0] in ("native", "cpu", "cuda"):
        try:
            return open_model(model, replace(request, dynamic=_open_batch(request.example_inputs)))
        except (InputError, ImportModelError, ShapeError) as error:
            _log.info("the batch stays as in the example: %s", error)
    return open_model(model, request)


def _open_batch(example_inputs: Any) -> Any:
    def axes(x: Any) -> Any:
        return {0: "batch"} if getattr(x, "ndim", 0) else None

    if isinstance(example_inputs, Mapping):
        return {name: axes(x) for name, x in example_inputs.items()}
    return tuple(map(axes, example_inputs if isinstance(example_inputs, tuple | list) else [example_inputs]))


def attribution_graph(model: Graph, variables: Sequence[Variable], scores: Scores, settings: Settings) -> Graph:
    """The graph of the attributions of all variables. Its inputs are those of the model, the baselines, the target."""
    baselines = [Input(baseline_name(v.name), v.input.type)() for v in variables] if settings.baseline else []
    shape = scores.target_shape()
    target = None if shape is None else Input("target", TensorType(i64, shape))()
    inputs = {x: x for x in model.inputs}
    actual = [n for v in variables for n in v.values]  # the values of the call
    images = {**inputs, **dict(zip(scores.values, actual, strict=True))}
    build = _occlusion if settings.method == "occlusion" else _gradients
    attributions, chosen_there = build(variables, scores, images, actual, baselines, target, settings)
    outputs: list[Node] = []
    for v in variables:
        variable_scores, attributions = attributions[: len(v.values)], attributions[len(v.values) :]
        total = _reduced(variable_scores[0], v)
        for other in variable_scores[1:]:
            total = ops.add(total, _reduced(other, v))
        if chosen_there is not None:
            is_valid = of_examples("and", chosen_there, scores.example_axis(v.input), total.shape)
            total = ops.where(is_valid, total, float("nan"))
        outputs.append(total)
    names = tuple(f"attribution of {v.name}" for v in variables)
    extra = (*baselines, *(() if target is None else (target,)))
    return replace(model, inputs=(*model.inputs, *extra), outputs=tuple(outputs), output_names=names)


def _reduced(x: Node, v: Variable) -> Node:
    """The attribution of each index: the sum over the row that it selects."""
    axes = list(range(v.input.type.rank, x.type.rank))
    return ops.reduce_sum(x, axes) if axes else x


_AttributionValues = tuple[list[Node], Node | None]


def _gradients(
    variables: Sequence[Variable], scores: Scores, images: Mapping[Node, Node], actual: Sequence[Node],
    baselines: Sequence[Node], target: Node | None, settings: Settings,
) -> _AttributionValues:  # fmt: skip
    graph, seed_input = scores.gradients()
    core_inputs = dict(zip(graph.inputs, [images[x] for x in scores.graph.inputs], strict=False))
    (result,) = rebuild(graph.outputs[:1], core_inputs)
    chosen, is_in_range = targets(scores, result, target)
    seed = ops.cast(chosen, result.dtype)
    fixed_values = [images[x] for x in scores.fixed_inputs]
    bases = _base_values(variables, baselines) if baselines or settings.method == "integrated_gradients" else None
    if settings.method == "gradient_x_input":
        spans = actual if bases is None else [ops.sub(x, b) for x, b in zip(actual, bases, strict=True)]
        gradients = rebuild(graph.outputs[1:], {**core_inputs, seed_input: seed})
        return [ops.mul(g, s) for g, s in zip(gradients, spans, strict=True)], is_in_range
    max_points = MAX_POINTS_PER_ITERATION if scores.batch is not None else 1
    if settings.method == "smoothgrad":
        points = methods.noisy(actual, scores, settings.steps, max_points, settings.stdev, settings.seed)
        return methods.summed_gradients(scores, points, fixed_values, seed), is_in_range
    assert bases is not None
    points = methods.path(bases, actual, settings.steps, max_points)
    sums = methods.summed_gradients(scores, points, fixed_values, seed)
    return [ops.mul(g, s) for g, s in zip(sums, points.spans, strict=True)], is_in_range


def _base_values(variables: Sequence[Variable], baselines: Sequence[Node]) -> list[Node]:
    """The values of the variables at their baselines; by default zeros, or the rows of index 0."""
    out: list[Node] = []
    for n, v in enumerate(variables):
        base = baselines[n] if baselines else ops.full(v.input.shape, 0, v.input.dtype)
        out += rebuild(v.values, {v.input: base})
    return out


def _occlusion(
    variables: Sequence[Variable], scores: Scores, images: Mapping[Node, Node], actual: Sequence[Node],
    baselines: Sequence[Node], target: Node | None, settings: Settings,
) -> _AttributionValues:  # fmt: skip
    result = scores.call(images)
    chosen, is_in_range = targets(scores, result, target)
    out: list[Node] = []
    for n, (v, base) in enumerate(zip(variables, _base_values(variables, baselines), strict=True)):
        axis = scores.example_axis(v.input)
        shape = tuple(size for d, size in enumerate(v.input.shape) if d != axis)
        window = _window("window", settings.window, shape, v.name) or _default_window(shape)
        stride = _window("stride", settings.stride, shape, v.name) or window
        if any(s > w for s, w in zip(stride, window, strict=True)):
            raise InputError("stride", expected=f"at most the window {list(window)}", got=list(stride))
        max_points = MAX_POINTS_PER_ITERATION if scores.batch is not None else 1
        out.append(methods.occluded(scores, n, images, base, result, chosen, window, stride, max_points))
    return out, is_in_range


def _window(option: str, value: int | Sequence[int] | None, shape: Sequence[DimLike], name: str) -> list[int] | None:
    """The sizes along the axes of an example, at most those of the axes; one number applies to all axes."""
    if value is None:
        return None
    sizes = list(value) if isinstance(value, Sequence) else [value] * len(shape)
    if len(sizes) != len(shape) or not all(isinstance(n, Integral) and n >= 1 and n is not True for n in sizes):
        expected = f"{len(shape)} positive sizes for {name}{list(shape)}, or one"
        raise InputError(option, expected=expected, got=repr(value))
    return [min(int(n), d) if isinstance(d, int) else int(n) for n, d in zip(sizes, shape, strict=True)]


def _default_window(shape: Sequence[DimLike]) -> list[int]:
    """The smallest cube, clipped to the shape of the example, of which at most `_MAX_WINDOWS` cover it. An open size
    counts as 1."""

    def cut(side: int) -> list[int]:
        return [max(1, min(side, d)) if isinstance(d, int) else 1 for d in shape]

    side = 1
    while prod(-(-d // w) for d, w in zip(shape, cut(side), strict=True) if isinstance(d, int)) > _MAX_WINDOWS:
        side += 1
    return cut(side)


def in_order(x: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Example inputs as the arguments of a call."""
    if isinstance(x, Mapping):
        return (), x
    return (tuple(x) if isinstance(x, tuple | list) else (x,)), {}
