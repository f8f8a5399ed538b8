"""`ingot.bounds`: open a model, build and compile the graph of its bounds, run it once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ingot import ops
from ingot.driver.compile import Options, compiled_program
from ingot.driver.open import Opened, Request, open_model, with_fitting_example
from ingot.ir.dims import Dim, product
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, f32, f64
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.runtime.tensors import host_array
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, check_number
from ingot.transform.bounds.graph import Question, bound_graph
from ingot.transform.bounds.narrow import at_activations, at_precision, in_parts
from ingot.transform.bounds.rounding import Rounding
from ingot.transform.bounds.slopes import slopes_of


class Bounds:
    """Bounds of a model's results: `lower, upper = ingot.bounds(...)`.

    lower, upper: an array of each result's type and shape, or a tuple of them. monitor: the compiled program, which
    takes the lower and the upper end of each perturbed input, and returns the lower and the upper bound of each result;
    it can be saved, loaded and called like any model. numerics: whether the program's rounding is included.
    """

    def __init__(self, monitor: CompiledModel, results: Sequence[np.ndarray], method: str, numerics: bool) -> None:
        lowers, uppers = results[::2], results[1::2]
        self.lower: Any = lowers[0] if len(lowers) == 1 else tuple(lowers)
        self.upper: Any = uppers[0] if len(uppers) == 1 else tuple(uppers)
        self.monitor = monitor
        self.method, self.numerics = method, numerics

    def __iter__(self) -> Iterator[Any]:
        return iter((self.lower, self.upper))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the monitor; `ingot.load` opens it without the compiler."""
        self.monitor.save(path)

    def explain(self) -> str:
        """A text: for what the bounds hold, and how wide they are."""
        subject = (
            "the program, with its rounding in any order of sums" if self.numerics else "the network over real numbers"
        )
        lines = [f"bounds of {subject}, by {self.method}"]
        for spec, lower, upper in zip(
            self.monitor.outputs[::2], _as_tuple(self.lower), _as_tuple(self.upper), strict=True
        ):
            width = np.asarray(upper, np.float64) - np.asarray(lower, np.float64)
            name = spec.name.removeprefix("lower ")
            lines.append(
                f"  {name} {list(lower.shape)}: mean width {width.mean():.4g}, largest {width.max():.4g}"
                if width.size else f"  {name}: no elements"
            )  # fmt: skip
        return "\n".join(lines)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True, eq=False)
class Box:
    """A box of inputs. intervals: for each input the lower and the upper end, of its type; equal if not float."""

    intervals: tuple[tuple[np.ndarray, np.ndarray], ...]
    perturbed: tuple[bool, ...]

    @property
    def arguments(self) -> list[np.ndarray]:
        """The arguments of a monitor."""
        flat: list[np.ndarray] = []
        for (low, high), is_perturbed in zip(self.intervals, self.perturbed, strict=True):
            flat += [low, high] if is_perturbed else [low]
        return flat


def bound_model(
    model: Any,
    x: Any,
    *,
    eps: Any,
    lower: Any,
    upper: Any,
    method: str,
    spec: Any,
    numerics: bool,
    slope_steps: int,
    dynamic: Any,
    options: Options,
) -> Bounds:
    """See `ingot.bounds`."""
    if not isinstance(numerics, bool):
        raise InputError("numerics", expected="True or False", got=repr(numerics))
    check_number("slope_steps", slope_steps, "a whole number from 0", lambda v: 0 <= v <= 100_000, whole=True)
    if slope_steps and method not in ("crown", "auto"):
        raise InputError("slope_steps", expected=f"0 for method {method!r}", got=slope_steps)
    opened = opened_for(model, x, dynamic)
    box = box_of(opened, x, eps, lower, upper)
    graph = static_graph(opened.graph, [low for low, _ in box.intervals])
    rows = None if spec is None else rows_of_spec(graph, spec)
    rounding, of_program = rounding_of(graph, numerics, options), as_compiled(graph, options)
    graph = in_parts(of_program) if numerics else graph
    options = replace(options, precision="float32", activations="float32")
    question = Question(box.perturbed, method, rows, rounding)
    program = compiled_program(bound_graph(graph, question), options)
    monitor = CompiledModel(program, threads=options.threads)
    results = [np.asarray(y) for y in monitor.run(box.arguments)]
    if slope_steps:
        results = _with_slopes(graph, question, box, results, slope_steps, options)
    return Bounds(monitor, results, method, numerics)


def _with_slopes(
    graph: Graph, question: Question, box: Box, results: list[np.ndarray], steps: int, options: Options
) -> list[np.ndarray]:
    """The bounds of the single result, tightened by optimized slopes."""
    if len(graph.results) != 1:
        raise InputError("slope_steps", expected="a model of one result", got=f"{len(graph.results)} results")
    (y,) = graph.results
    rows = np.eye(int(product(y.shape))) if question.spec is None else question.spec
    signed_rows = np.concatenate([rows, -rows])
    slopes = slopes_of(replace(question, spec=signed_rows).of(graph), options)
    lower_bounds, _ = slopes.run(box.arguments, np.full(len(signed_rows), np.inf), steps, float("inf"))
    lower, upper = results
    narrowed_lower, narrowed_upper = (
        v.reshape(lower.shape) for v in (lower_bounds[: len(rows)], -lower_bounds[len(rows) :])
    )
    return [np.fmax(lower, rounded(narrowed_lower, y.dtype, -1)), np.fmin(upper, rounded(narrowed_upper, y.dtype, 1))]


def has_winograd(program: Program) -> bool:
    """Whether a program has convolutions by Winograd's algorithm."""
    return any(getattr(step, "kernel", "").startswith("winograd") for step in program.steps)


def rounding_of(graph: Graph, numerics: bool, options: Options) -> Rounding:
    """The rounding of a program of this graph: that of the narrowest floats that it computes with."""
    if not numerics:
        return Rounding()
    import ml_dtypes

    floats = {n.types[0].dtype for n in graph.nodes() if n.types[0].dtype.is_float and not _is_exact(n)}
    infos = [ml_dtypes.finfo(d.numpy) for d in floats or {f32}]
    unit, tiny = max(float(i.eps) / 2 for i in infos), max(float(i.smallest_normal) for i in infos)
    return Rounding(unit, tiny, has_winograd(compiled_program(graph, options)))


def _is_exact(node: Node) -> bool:
    """Whether a node does not round, or is a conversion, whose rounding is bounded at the node."""
    return node.is_leaf or node.op.rearranges or isinstance(node.op, (ops.Convert, ops.Concat, ops.Pad))


def as_compiled(graph: Graph, options: Options) -> Graph:
    """The graph with what a program of these options rounds to other types. Raises as `at_precision` and
    `at_activations`."""
    return at_precision(at_activations(graph, options.activations), options.precision)


def static_graph(graph: Graph, values: Sequence[np.ndarray]) -> Graph:
    """The graph for inputs of these shapes. Raises InputError for shapes that do not match."""
    sizes: dict[str, int | Dim] = {}
    for node, value in zip(graph.inputs, values, strict=True):
        if len(node.shape) != value.ndim:
            raise InputError(_label(node), expected=str(node.type), got=f"shape {list(value.shape)}")
        for d, size in zip(node.shape, value.shape, strict=True):
            if isinstance(d, Dim) and str(d) in graph.symbols():
                sizes.setdefault(str(d), size)
    static = graph.substitute(sizes) if sizes else graph
    for node, value in zip(static.inputs, values, strict=True):
        if tuple(node.shape) != value.shape:
            raise InputError(_label(node), expected=str(node.type), got=f"shape {list(value.shape)}")
    return static


def _label(node: Node) -> str:
    return f"input {getattr(node.op, 'label', '')}"


def box_of(opened: Opened, x: Any, eps: Any, lower: Any, upper: Any) -> Box:
    """The box that the options describe. Raises InputError for one that is empty, not finite, or not of the inputs."""
    if (eps is None) == (lower is None and upper is None):
        raise InputError("bounds", expected="either eps, or lower and upper", got="both" if eps is not None else "none")
    if eps is None and (lower is None or upper is None):
        raise InputError("bounds", expected="lower and upper", got="lower" if upper is None else "upper")
    centers = flat_inputs(opened, x)
    types = [node.type for node in opened.graph.inputs]
    perturbed = tuple(type_.dtype.is_float for type_ in types)
    if not any(perturbed):
        raise InputError("bounds", expected="an input of floats", got=", ".join(map(str, types)))
    if eps is not None:
        ends = _ends_around(centers, perturbed, eps, [type_.dtype for type_ in types])
    else:
        lows, highs = (
            [np.full(c.shape, finite(name, end)) if is_box else c for c, is_box in zip(centers, perturbed, strict=True)]
            if np.isscalar(end)
            else flat_inputs(opened, end, direction)
            for name, end, direction in (("lower", lower, -1), ("upper", upper, 1))
        )
        ends = [
            (_ends(node, low, c, -1), _ends(node, high, c, 1))
            for node, c, low, high in zip(opened.graph.inputs, centers, lows, highs, strict=True)
        ]
    checked: list[tuple[np.ndarray, np.ndarray]] = []
    for node, (low, high), is_perturbed in zip(opened.graph.inputs, ends, perturbed, strict=True):
        if is_perturbed:
            finite(f"{_label(node)}, lower", low)
            finite(f"{_label(node)}, upper", high)
            if (low > high).any():
                raise InputError(_label(node), expected="lower <= upper everywhere", got="a lower end above the upper")
        checked.append((np.asarray(low, order="C"), np.asarray(high, order="C")))  # scalars keep their rank
    return Box(tuple(checked), perturbed)


def _ends(node: Node, value: np.ndarray, center: np.ndarray, direction: int) -> np.ndarray:
    if value.shape not in ((), center.shape):
        raise InputError(_label(node), expected=f"ends of shape {list(center.shape)}", got=list(value.shape))
    if not node.dtype.is_float:
        if (value != center).any():
            raise InputError(_label(node), expected="ends equal to x, as only floats have a box", got="others")
        return center
    return rounded(np.broadcast_to(value, center.shape), node.dtype, direction)


def _ends_around(
    centers: Sequence[np.ndarray], perturbed: Sequence[bool], eps: Any, dtypes: Sequence[DType]
) -> list[tuple[np.ndarray, np.ndarray]]:
    count = sum(perturbed)
    radii = list(eps) if isinstance(eps, (list, tuple)) else [eps] * count
    if len(radii) != count:
        raise InputError("eps", expected=f"one number, or one for each of {count} inputs of floats", got=len(radii))
    ends: list[tuple[np.ndarray, np.ndarray]] = []
    for center, is_perturbed, dtype in zip(centers, perturbed, dtypes, strict=True):
        if not is_perturbed:
            ends.append((center, center))
            continue
        radius = finite("eps", radii.pop(0))
        if (radius < 0).any():
            raise InputError("eps", expected="numbers of at least 0", got=str(radius.min()))
        finite("x", center)
        wide = center.astype(np.float64)
        try:
            low, high = (np.broadcast_to(v, center.shape) for v in (wide - radius, wide + radius))
        except ValueError:
            raise InputError(
                "eps", expected=f"shapes that broadcast to {list(center.shape)}", got=list(radius.shape)
            ) from None
        ends.append((rounded(low, dtype, -1), rounded(high, dtype, 1)))
    return ends


def rounded(value: np.ndarray, dtype: DType, direction: int) -> np.ndarray:
    """Numbers in `dtype`, rounded down for a direction of -1, up for 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = value.astype(dtype.numpy)
        if dtype == f64:
            return narrow
        value = value.astype(np.float64)
        is_inward = (narrow.astype(np.float64) - value) * direction < 0
    return np.where(is_inward, np.nextafter(narrow, np.asarray(direction * np.inf, dtype.numpy)), narrow)


def rows_of_spec(graph: Graph, spec: Any) -> np.ndarray:
    """The rows of factors in f64. Raises InputError unless they belong to the only result."""
    rows = np.atleast_2d(finite("spec", spec))
    if len(graph.results) != 1:
        raise InputError("spec", expected="a model of one result", got=f"{len(graph.results)} results")
    y = graph.results[0].type
    if rows.ndim != 2 or rows.shape[1] != product(y.shape) or not len(rows):
        expected = f"rows of {product(y.shape)} factors, one for each element of {y}"
        raise InputError("spec", expected=expected, got=f"shape {list(rows.shape)}")
    return rows


def finite(what: str, value: Any) -> np.ndarray:
    """Numbers in f64. Raises InputError for anything else."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise InputError(what, expected="numbers", got=type(value).__name__) from None
    if not np.isfinite(array).all():
        raise InputError(what, expected="finite numbers", got="NaN or infinity")
    return array


def _arguments(x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(x, Mapping):
        return (), dict(x)
    return (tuple(x) if isinstance(x, (tuple, list)) else (x,)), {}


def opened_for(model: Any, x: Any, dynamic: Any) -> Opened:
    """The opened model. Positional arguments serve as its example inputs where it needs them."""
    request = Request(_arguments(x)[0] or None, dynamic)
    return open_model(model, with_fitting_example(model, request)).stateless()


def flat_inputs(opened: Opened, x: Any, direction: int = 0) -> list[np.ndarray]:
    """The arrays of a graph's inputs from the model's arguments: one, a tuple, or a dict by name. direction: see
    `rounded`; 0 to leave floats as they are. Raises InputError for integers that the input's type does not hold."""
    args, kwargs = _arguments(x)
    inputs = opened.graph.inputs
    if opened.flatten is not None:
        flat = list(opened.flatten(args, kwargs))
    elif kwargs:
        labels = [getattr(n.op, "label", "") for n in inputs]
        if sorted(labels) != sorted(kwargs):
            raise InputError("x", expected=f"inputs {', '.join(labels)}", got=", ".join(kwargs))
        flat = [kwargs[label] for label in labels]
    else:
        flat = list(args)
    if len(flat) != len(inputs):
        raise InputError("x", expected=f"{len(inputs)} inputs", got=len(flat))
    arrays: list[np.ndarray] = []
    for node, value in zip(inputs, flat, strict=True):
        array = host_array(value, _label(node))
        if node.dtype.is_float != (array.dtype.kind == "f" or array.dtype.kind == "V"):
            raise InputError(_label(node), expected=str(node.type), got=str(array.dtype))
        if not node.dtype.is_float:
            converted = array.astype(node.dtype.numpy)
            if (converted != array).any():
                raise InputError(_label(node), expected=f"values of {node.dtype}", got=str(array.dtype))
            array = converted
        elif direction:
            array = rounded(array, node.dtype, direction)
        arrays.append(array)
    return arrays
