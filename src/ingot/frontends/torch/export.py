"""nn.Module to ExportedProgram: `torch.export.export` with dynamic sizes requested by name."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import sympy
import torch
from torch import nn
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from ingot.frontends.torch.convert import to_torch
from ingot.frontends.torch.decompositions.boxes import suppression_in_one
from ingot.frontends.torch.tracing.gradients import traced_for
from ingot.frontends.torch.tracing.guards import noted_answers
from ingot.frontends.torch.tracing.hints import masks_unread
from ingot.frontends.torch.tracing.known_numbers import KnownNumbers
from ingot.frontends.torch.tracing.memory import shared_views, written_memories
from ingot.frontends.torch.tracing.open_sizes import OpenSizes, open_lengths
from ingot.frontends.torch.tracing.whole_ops import whole_recurrences
from ingot.support.errors import ImportModelError, IngotError, InputError

_log = logging.getLogger(__name__)

Inputs = tuple[Any, ...] | Mapping[str, Any] | torch.Tensor | np.ndarray
# keys of the graph module's meta under which export_module stores the names of torch's symbols, the answers about sizes
# that the model relied on, forward's signature and whether it will be differentiated
NAMES, ANSWERS, SIGNATURE, DIFFERENTIATED = (
    "ingot_size_names", "ingot_answers_on_sizes", "ingot_signature", "ingot_differentiated",
)  # fmt: skip
Dynamic = bool | str | None | Mapping[str, Any] | Sequence[Any]


def export_module(
    net: nn.Module, example_inputs: Inputs | None, dynamic: Dynamic = None, *, gradients: bool = False,
    of_inputs: bool = False, keep_small: bool = False,
) -> ExportedProgram:  # fmt: skip
    """`net` traced on example inputs: a tuple of positional arguments, or a dict of keyword arguments.

    dynamic:
        None or False: every size is fixed at the example's.
        True or "auto": every size that the model allows is dynamic (torch's Dim.AUTO).
        {"ids": {0: "batch", 1: "length"}} (by argument, or a tuple in the arguments' order): named axes are dynamic and
        equal names are equal sizes; a value may also be a torch.export.Dim, Dim.AUTO, or (name, min, max).
        A named axis may have size 1 in the example; an automatic one of size 1 stays 1.
    gradients: whether the program will be differentiated, so that it must record what has no gradient. of_inputs: with
        respect to its inputs, too; some losses refuse targets that require gradients.
    keep_small: whether named axes of size 0 or 1 in the example stay fixed, as automatic ones do, and axes that the
        model fixes keep the example's size.

    Raises InputError for arguments that do not fit the model's forward, ImportModelError where torch cannot export it.
    """
    if not isinstance(net, nn.Module):
        model_kinds = "a path, a ModelProto, an nn.Module or an ExportedProgram"
        raise InputError("model", expected=model_kinds, got=type(net).__name__)
    if isinstance(net, torch.jit.ScriptModule):
        raise InputError("model", expected="an nn.Module", got="TorchScript", fix="compile the module it was made of")
    if example_inputs is None:
        raise InputError("example_inputs", expected="example inputs", got="none", fix="ingot.compile(net, (x,))")
    # a submodule in eval mode means that the caller has called `eval`: the outer module was created after that
    if not gradients and all(m.training for m in net.modules()) and any(map(_may_differ_in_training, net.modules())):
        _log.warning("the model is in training mode: dropout draws random numbers, and batch norms follow their inputs")
    args, kwargs = _distinct(_arguments(example_inputs))
    if gradients:
        args, kwargs = pytree.tree_map(partial(_variable, learned=of_inputs), (args, kwargs))
    names: dict[str, Any] = {}
    shapes = dynamic_shapes(net, args, kwargs, dynamic, names)
    if keep_small:
        shapes = _without_small(shapes, _bound(net, args, kwargs))
    args, kwargs = _without_ones(_bound(net, args, kwargs), shapes, (args, kwargs))
    with traced_for(gradients):
        program = _exported(net, args, kwargs, shapes, names, keep_small)
        memories = written_memories(net, program)
        if not memories:
            return program
        with shared_views(net, memories):
            return _exported(net, args, kwargs, shapes, names, keep_small)


def _exported(
    net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any, names: dict[str, Any], keep_small: bool
) -> ExportedProgram:
    """The program for these sizes; where the model narrows a named size, for the sizes that torch allows."""
    try:
        return _traced(net, args, kwargs, shapes, deferred=bool(names))
    except ImportModelError as e:
        # torch's solver fails an assertion where a guard on a named size has fractions (5 <= 2 * n), or its advice
        # would be about one such as -n % 4
        if not names or not isinstance(e.__cause__, UserError | ValueError | AssertionError):
            raise
        error = e
    # the model narrows a named range, or ties it to another: let torch find the ranges, and keep the names
    program = _traced(net, args, kwargs, _relaxed(shapes, names), deferred=False)
    chosen_names = _chosen_names(program, _bound(net, args, kwargs), shapes, names, len(args))
    if chosen_names is None and not keep_small:
        raise error
    program.graph_module.meta[NAMES] = chosen_names or {}
    return program


def _traced(
    net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any, *, deferred: bool
) -> ExportedProgram:
    """torch.export, with all errors raised as one kind.

    deferred: torch's guards on sizes become run-time asserts. Named ranges then stay whole where the model has a guard
    such as n // 2 != 1, but torch does not fix an automatic dim that a layer's width determines.
    """
    with (
        warnings.catch_warnings(),
        _Quiet(),
        whole_recurrences(),
        suppression_in_one(),
        masks_unread(),
        OpenSizes() as sizes,
    ):
        warnings.simplefilter("ignore")
        try:
            export = partial(
                torch.export.export,
                net,
                args,
                kwargs,
                dynamic_shapes=shapes,
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=deferred,
            )
            with noted_answers() as answers:
                program = _attempted(net, export, sizes, answers)
        except IngotError:
            raise
        except Exception as e:  # the model's own code and torch may raise anything while tracing
            raise ImportModelError(_explain(net, e), fix=_advice(e)) from e
    program.graph_module.meta[ANSWERS] = answers
    program.graph_module.meta[SIGNATURE] = inspect.signature(net.forward)
    program.graph_module.meta[DIFFERENTIATED] = torch.is_grad_enabled()
    return program


def _attempted(
    net: nn.Module, export: Callable[[], ExportedProgram], sizes: OpenSizes, answers: list[sympy.Basic]
) -> ExportedProgram:
    """Trace, and once more where the first attempt shows that torch needs help."""
    try:
        program = export()
        if not sizes.lengths:
            return program
    except Exception as e:
        if not sizes.lengths:
            if not isinstance(e, GuardOnDataDependentSymNode):
                raise
            answers.clear()
            return _of_known_numbers(net, export, e)
    answers.clear()
    with open_lengths():
        return export()


def _of_known_numbers(net: nn.Module, export: Callable[[], ExportedProgram], error: Exception) -> ExportedProgram:
    """Trace again with the known values of buffers that are numbers; raises `error` where forward writes them."""
    known_numbers = KnownNumbers(net)
    if not known_numbers.names:
        raise error
    with known_numbers.of(net):
        program = export()
    if known_numbers.is_written:
        raise error
    return program


def _without_ones(
    bound: dict[str, Any], shapes: Mapping[str, Any] | None, call: tuple[tuple[Any, ...], dict[str, Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`call` with every axis of size 1 that has a Dim doubled: torch specializes an example's size of 1."""
    doubled: dict[int, set[int]] = {}
    for k, spec in (shapes or {}).items():
        leaves = pytree.tree_flatten(bound[k])[0]
        for tensor, axes in zip(leaves, _leaf_axes(bound[k], spec), strict=True):
            ones_axes = {a for a, d in (axes or {}).items() if type(d) is Dim and d.max > 1 and tensor.shape[a] == 1}
            doubled.setdefault(id(tensor), set()).update(ones_axes)

    def grown(leaf: Any) -> Any:
        for axis in doubled.get(id(leaf), ()):
            leaf = torch.cat((leaf, leaf), axis)
        return leaf

    return pytree.tree_map(grown, call)


def _without_small(shapes: Any, value: Any) -> Any:
    """`shapes` of arguments without the axes that have size 0 or 1 in `value`."""
    if isinstance(value, torch.Tensor) and isinstance(shapes, Mapping):
        return {axis: d for axis, d in shapes.items() if value.shape[axis] > 1}
    if isinstance(value, int) and value < 2:
        return None
    if isinstance(value, Mapping) and isinstance(shapes, Mapping):
        return {k: _without_small(spec, value[k]) for k, spec in shapes.items()}
    if isinstance(value, tuple | list) and isinstance(shapes, tuple | list):
        return type(shapes)(_without_small(spec, v) for spec, v in zip(shapes, value, strict=True))
    return shapes


def _relaxed(shapes: Any, names: dict[str, Any]) -> Any:
    """`shapes` with named dims replaced by automatic ones."""
    ours = {id(d) for d in names.values()}
    if isinstance(shapes, Mapping):
        return {k: _relaxed(v, names) for k, v in shapes.items()}
    if isinstance(shapes, tuple | list):
        return type(shapes)(_relaxed(v, names) for v in shapes)
    return Dim.AUTO if id(shapes) in ours else shapes


def _chosen_names(
    program: ExportedProgram, bound: dict[str, Any], shapes: dict[str, Any], names: dict[str, Any], positional: int
) -> dict[str, str] | None:
    """torch's symbol -> the user's name, from the named axes; None where the model fixes a named axis."""
    spec = program.call_spec.in_spec
    arguments = list(bound)
    # keyword arguments are in the order of the exported call
    keywords = [k for k in (spec.child(1).context if spec is not None else None) or [] if k in bound]
    order = [k for k in arguments if k not in keywords] + keywords if positional < len(arguments) else arguments
    name_of_dim = {id(d): n for n, d in names.items()}
    axes = [leaf for k in order for leaf in _leaf_axes(bound[k], shapes.get(k))]
    signature = program.graph_signature
    users = [s.arg.name for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    names_of_symbols: dict[str, str] = {}
    for name, named in zip(users, axes, strict=True):
        value = values.get(name)
        for axis, dim in (named or {}).items():
            if id(dim) not in name_of_dim or not isinstance(value, torch.Tensor):
                continue
            size = value.shape[axis]
            if isinstance(size, int) or size.node.expr.is_number:
                return None
            if size.node.expr.is_symbol:
                names_of_symbols.setdefault(str(size.node.expr), name_of_dim[id(dim)])
    return names_of_symbols


def _leaf_axes(value: Any, spec: Any) -> list[dict[int, Any] | None]:
    """{axis: dim} for each leaf of an argument."""
    if isinstance(value, torch.Tensor):
        return [spec if isinstance(spec, dict) else None]
    if isinstance(value, Mapping):
        return [a for k, v in value.items() for a in _leaf_axes(v, (spec or {}).get(k))]
    if isinstance(value, tuple | list):
        return [a for i, v in enumerate(value) for a in _leaf_axes(v, spec[i] if spec else None)]
    return [None] * pytree.tree_flatten(value)[1].num_leaves


def _explain(net: nn.Module, error: Exception) -> str:
    text = str(error).strip()
    return f"torch.export cannot trace {type(net).__name__}: {type(error).__name__}: {text[:2000]}"


def _advice(error: Exception) -> str:
    text = str(error)
    if "dynamic_shapes" in text or "Constraints violated" in text or "specialized" in text:
        return "pass dynamic=True, or take the axes named above out of `dynamic`"
    if "is not a known type" in text:
        return "return tensors in tuples, lists and dicts; of transformers' language models pass use_cache=False"
    if "data-dependent" in text or "GuardOnDataDependent" in type(error).__name__:
        return "the model's control flow depends on tensor values: use torch.where or torch.cond"
    return "see the error above; torch.export.export(net, args) alone shows the same"


class _Quiet:
    """Silences torch.export's loggers: the raised error has all that matters."""

    _names = ("torch.export", "torch.fx.experimental.symbolic_shapes", "torch._export")

    def __enter__(self) -> None:
        self._levels = [logging.getLogger(n).level for n in self._names]
        for n in self._names:
            logging.getLogger(n).setLevel(logging.CRITICAL)

    def __exit__(self, *exc: object) -> None:
        for n, level in zip(self._names, self._levels, strict=True):
            logging.getLogger(n).setLevel(level)


def _may_differ_in_training(module: nn.Module) -> bool:
    """Whether it is a dropout, a batch norm, or code that is not PyTorch's own."""
    if not type(module).__module__.startswith("torch.nn."):
        return True
    kinds = nn.modules.dropout._DropoutNd | nn.modules.batchnorm._NormBase | nn.RReLU
    return isinstance(module, kinds) or bool(getattr(module, "dropout", 0))


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, torch.Tensor | np.ndarray):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    raise InputError("example_inputs", expected="a tensor, a tuple, or a dict of arguments", got=type(inputs).__name__)


def _distinct(call: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`call` with repeated tensors cloned: torch.export takes a tensor that is passed twice for one input."""
    ids = set[int]()

    def distinct(leaf: Any) -> Any:
        leaf = to_torch(leaf) if isinstance(leaf, np.ndarray) else leaf
        is_repeated = isinstance(leaf, torch.Tensor) and id(leaf) in ids
        ids.add(id(leaf))
        return leaf.clone() if is_repeated else leaf

    return pytree.tree_map(distinct, call)


def _variable(leaf: Any, learned: bool) -> Any:
    """A float tensor as an autograd leaf. learned: whether it requires a gradient."""
    floats = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.detach().requires_grad_(learned) if floats else leaf


def dynamic_shapes(
    net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Dynamic, names: dict[str, Any]
) -> Any:
    """torch.export's `dynamic_shapes` for `dynamic`; `names` receives one torch Dim per name."""
    if dynamic is None or dynamic is False:
        return None
    bound = _bound(net, args, kwargs)
    if dynamic is True or dynamic == "auto":
        return {k: _everywhere(v) for k, v in bound.items()}
    if isinstance(dynamic, str):
        raise InputError("dynamic", expected="True, 'auto' or axes by argument", got=repr(dynamic))
    if not isinstance(dynamic, Mapping):
        if len(dynamic) != len(bound):
            raise InputError("dynamic", expected=f"{len(bound)} entries ({', '.join(bound)})", got=len(dynamic))
        dynamic = dict(zip(bound, dynamic, strict=True))
    flat = set(dynamic) if all(isinstance(k, str) for k in dynamic) else set()
    unknown = flat - set(bound)
    if unknown or not flat:
        raise InputError("dynamic", expected=f"argument names among {list(bound)}", got=sorted(map(str, dynamic)))
    return {k: _axes(dynamic.get(k), v, names, k) for k, v in bound.items()}


def _bound(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the parameter names of the model's forward; a *args parameter keeps its tuple."""
    try:
        arguments = inspect.signature(net.forward).bind(*args, **kwargs).arguments
    except TypeError as e:
        raise InputError(f"example_inputs do not fit {type(net).__name__}.forward: {e}") from e
    bound: dict[str, Any] = {}
    kinds = inspect.signature(net.forward).parameters
    for k, v in arguments.items():
        if kinds[k].kind is inspect.Parameter.VAR_KEYWORD:
            bound.update(v)
        else:
            bound[k] = v
    return bound


def _everywhere(value: Any) -> Any:
    """Dim.AUTO on every axis of every tensor in a structure; None for other leaves."""
    if isinstance(value, torch.Tensor):
        return dict.fromkeys(range(value.dim()), Dim.AUTO)
    leaves, spec = pytree.tree_flatten(value)
    if spec.is_leaf():
        return None
    return _rebuilt(value, [_everywhere(leaf) for leaf in leaves])


def _rebuilt(value: Any, leaves: list[Any]) -> Any:
    """`value`'s structure with the leaves `leaves`."""
    _, spec = pytree.tree_flatten(value)
    return pytree.tree_unflatten(leaves, spec)


def _axes(spec: Any, value: Any, names: dict[str, Any], path: str) -> Any:
    """One argument's entry: {axis: dim} of a tensor, or a structure of these."""
    if spec is None:
        return None
    if spec is True or spec == "auto":
        return _everywhere(value)
    if isinstance(value, torch.Tensor):
        if isinstance(spec, str):
            raise InputError(f"dynamic[{path!r}]", expected="names by axis, {0: 'batch'}", got=repr(spec))
        if not isinstance(spec, Mapping):
            spec = dict(enumerate(spec))
        rank = value.dim()
        for axis in spec:
            if not isinstance(axis, int) or not -rank <= axis < rank:
                raise InputError(f"dynamic[{path!r}]", expected=f"axes of a tensor of rank {rank}", got=axis)
        return {axis % rank: _dim(d, names, path) for axis, d in spec.items() if d is not None}
    if isinstance(value, Mapping):
        return {k: _axes(spec.get(k), v, names, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, tuple | list):
        entries = spec if isinstance(spec, tuple | list) else [spec.get(i) for i in range(len(value))]
        if len(entries) != len(value):
            raise InputError(f"dynamic[{path!r}]", expected=f"{len(value)} entries", got=len(entries))
        return type(value)(
            _axes(g, v, names, f"{path}[{i}]") for i, (g, v) in enumerate(zip(entries, value, strict=True))
        )
    return spec


def _dim(spec: Any, names: dict[str, Any], path: str) -> Any:
    if isinstance(spec, str):
        if spec == "auto":
            return Dim.AUTO
        return names.setdefault(spec, Dim(spec, min=1))
    if isinstance(spec, tuple):
        name, low, high = spec
        return names.setdefault(name, Dim(name, min=low, max=high))
    if spec is True:
        return Dim.AUTO
    if isinstance(spec, int):
        raise InputError(f"dynamic[{path!r}]", expected="a name, a torch.export.Dim or Dim.AUTO", got=spec)
    return spec
