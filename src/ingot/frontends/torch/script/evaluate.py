"""A partial evaluator of TorchScript: known values are computed, ops on tensors are called, and so traced.

    torch.export of Evaluator(program)  =  the program with ints, strings, lists, attributes and branches gone

The evaluator is a module whose forward walks the nodes of a program. Known numbers, strings and lists are Python
values: of a branch on them only the taken side is evaluated, a loop over them is unrolled. Dynamic sizes are torch's
symbolic ones. A branch on a tensor's value is evaluated both ways, and its results are selected.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_false
from torch.utils import _pytree as pytree

from ingot.frontends.torch.script.graph import Block, Node, Program
from ingot.frontends.torch.script.repeat import Number, Truth, of_numbers, repeat, tensor_of
from ingot.frontends.torch.script.scalars import QUESTIONS, SCALARS, dtype_of_code, format_of_code
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, UnsupportedOp, UnsupportedOpError
from ingot.support.limits import check_time, spend_node

STATE = "attributes"
_MAX_ITERATIONS = 1 << 20
_MAX_TRIP_COUNT = (1 << 63) - 1
Env = dict[str, Any]


@dataclass
class Outcome:
    """The attributes that an evaluation writes: known values, and the paths of those that are tensors of the result.

    It is a separate object, as torch.export restores attributes of the module that forward sets.
    """

    known_values: dict[str, Any] = field(default_factory=dict[str, Any])
    changed_paths: tuple[str, ...] = ()


class Evaluator(nn.Module):
    """forward takes the values of `state`, attributes that are tensors and that it sets, then the program's arguments.

    It returns the program's result and the new values of attributes that are tensors; `outcome` has the others.
    """

    def __init__(
        self, program: Program, known: Mapping[str, Any], state: Sequence[str] = (), *, buffers: bool = False
    ) -> None:
        """buffers: whether the attributes that the program writes are buffers of the module, of constant types."""
        super().__init__()
        self.program = program
        self.keeps_buffers = buffers
        self.initial_values = dict(known)
        self.outcome = Outcome()
        self.state = tuple(state)
        self._buffers_of: dict[str, str] = {}
        for path, value in self.initial_values.items():
            if isinstance(value, torch.Tensor):
                name = path.replace(".", "_")
                while hasattr(self, name):
                    name += "_"
                self._buffers_of[path] = name
                # an attribute that is set no longer shares memory with others
                is_state = buffers and path in program.written_paths
                self.register_buffer(name, value.detach().clone() if is_state else value.detach())
        self.forward = self._signed()
        self.eval()

    def _signed(self) -> Callable[..., Any]:
        """`evaluate` with a signature of the program's argument names."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [inspect.Parameter(STATE, kind)] if self.state else []
        for a in self.program.arguments:
            default = a.default if a.has_default else inspect.Parameter.empty
            names.append(inspect.Parameter(a.name, kind, default=default))
        signature = inspect.Signature(names)

        def forward(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = list(bound.arguments.values())
            return self.evaluate(arguments[0] if self.state else (), arguments[1:] if self.state else arguments)

        forward.__signature__ = signature  # type: ignore[attr-defined]
        return forward

    def evaluate(self, state: Sequence[torch.Tensor], arguments: Sequence[Any]) -> Any:
        attributes: Env = {
            **pytree.tree_map(lambda v: v, self.initial_values),
            **{p: getattr(self, b) for p, b in self._buffers_of.items()},
        }
        if self.keeps_buffers:  # values that were read must not change
            attributes |= {p: attributes[p].clone() for p in self.program.written_paths}
        attributes |= zip(self.state, state, strict=True)
        run, lists = _Run(attributes), {p: _contents([v]) for p, v in attributes.items() if isinstance(v, list | dict)}
        (result,) = run.block(self.program.body, arguments, {})
        self._check_lists(attributes, lists)
        result = _as_tensors(result)
        new_values = {p: attributes[p] for p in self.program.written_paths}
        changed = self.outcome.changed_paths = tuple(p for p, v in new_values.items() if isinstance(v, torch.Tensor))
        self.outcome.known_values = {p: v for p, v in new_values.items() if p not in changed}
        if self.keeps_buffers:
            for path, value in new_values.items():
                getattr(self, self._buffers_of[path]).copy_(value)
        return (result, tuple(new_values[p] for p in changed)) if new_values and not self.keeps_buffers else result

    def _check_lists(self, attributes: Env, state_before: Mapping[str, Any]) -> None:
        """Raise UnsupportedOpError for lists and dicts that are changed in place, or set with tensors in them: only
        tensors and known values can be kept between calls."""
        for path, value in attributes.items():
            if path in self.program.written_paths:
                refused = isinstance(value, list | tuple | dict) and any(map(_holds_tensor, pytree.tree_leaves(value)))
            else:
                refused = path in state_before and state_before[path] != _contents([value])
            if refused:
                reason = f"{path}, a list or a dict that forward changes: keep its tensors in attributes of their own"
                raise UnsupportedOpError([UnsupportedOp("prim::SetAttr", "", reason)])

    def _check_memory(self, changed: Iterable[str]) -> None:
        """Raise UnsupportedOpError for a tensor that is changed in place and shares memory with another, where either
        is set: attributes that are set have separate memory here."""
        memory = {
            p: v.untyped_storage().data_ptr() for p, v in self.initial_values.items() if isinstance(v, torch.Tensor)
        }
        for path in changed:
            shared = [p for p, at in memory.items() if at and at == memory[path]]
            if len(shared) > 1 and not set(shared).isdisjoint(self.program.written_paths):
                reason = f"{', '.join(shared)} share memory that is changed in place: save the model with copies"
                raise UnsupportedOpError([UnsupportedOp("prim::SetAttr", "", reason)])

    def path_of(self, buffer: str) -> str:
        """The path of the attribute that a buffer holds."""
        return next(path for path, name in self._buffers_of.items() if name == buffer)

    def is_steady(self, arguments: Sequence[Any]) -> bool:
        """Whether it writes only tensors, whose types do not change. Runs it on copies, as it may write in place."""
        state, states = pytree.tree_map_only(torch.Tensor, torch.clone, (self.initial_values, tuple(arguments)))
        with torch.no_grad():
            _, new_values = Evaluator(self.program, state, self.state).forward(*states)
        self._check_memory([p for p, v in state.items() if isinstance(v, torch.Tensor) and v._version])
        old_values = [self.initial_values[p] for p in self.program.written_paths]
        return len(new_values) == len(old_values) and all(
            isinstance(a, torch.Tensor) and a.shape == b.shape and a.dtype == b.dtype
            for a, b in zip(old_values, new_values, strict=True)
        )


def _as_tensors(value: Any) -> Any:
    """A result with its run-time conditions and numbers as tensors."""
    if isinstance(value, Truth | Number):
        return value.tensor
    if isinstance(value, list | tuple):
        return type(value)(_as_tensors(v) for v in value)
    return {k: _as_tensors(v) for k, v in value.items()} if isinstance(value, dict) else value


class _Raised(InputError):
    """The program raises an error for these arguments."""


@dataclass
class _Run:
    """One evaluation. attributes: their current values."""

    attributes: Env

    def block(self, block: Block, arguments: Sequence[Any], outer: Env) -> tuple[Any, ...]:
        env = {**outer, **dict(zip(block.inputs, arguments, strict=True))}
        for node in block.nodes:
            check_time(node.loc)
            spend_node(node.loc)
            results = self.node(node, [env[i] for i in node.inputs], env)
            env.update(zip(node.outputs, results, strict=True))
        return tuple(env[o] for o in block.outputs)

    def node(self, n: Node, args: list[Any], env: Env) -> Sequence[Any]:
        handler = _PRIM.get(n.kind)
        if handler is not None:
            return handler(self, n, args, env)
        if n.kind in QUESTIONS:
            return (QUESTIONS[n.kind](*args),)
        return self.call(n, args)

    def call(self, n: Node, args: list[Any]) -> Sequence[Any]:
        """Evaluate an op: on tensors by torch, on known values here."""
        namespace, _, name = n.kind.partition("::")
        base, _, overload = name.partition(".")
        tensors = any(map(_holds_tensor, args))
        if base.startswith("_nested_tensor"):
            reason = "nested tensors: make the TransformerEncoder with enable_nested_tensor=False"
            raise UnsupportedOpError([UnsupportedOp(n.kind, n.loc, reason)])
        if base in ("Bool", "is_nonzero") and tensors:
            return (Truth(args[0].reshape(()) != 0),)
        if any(isinstance(a, Number) for a in args):
            return (of_numbers(n, base, args),)
        if any(isinstance(a, Truth) for a in args):
            return (_of_truths(n, base, args),)
        if base in ("Int", "Float", "IntImplicit", "FloatImplicit", "ScalarImplicit") and tensors:
            return (args[0].item(),)
        if base in SCALARS and (not tensors or _of_containers(base, args)):
            return _results(n, SCALARS[base](*args))
        if overload in ("prim_Device", "prim_dtype", "prim_other"):
            return (_cast(args),)
        if base in ("tensor", "as_tensor"):
            return (torch.tensor(args[0], dtype=dtype_of_code(args[1])),)
        packet = getattr(getattr(torch.ops, namespace), base, None)
        op = None if packet is None else getattr(packet, overload or "default", None)
        if op is None:
            raise UnsupportedOpError([UnsupportedOp(n.kind, n.loc)])
        bound = [(s, _argument(a, s)) for a, s in zip(args, op._schema.arguments, strict=False)]
        named = {s.name: a for s, a in bound if s.kwarg_only}
        return _results(n, op(*(a for s, a in bound if not s.kwarg_only), **named))

    # control

    def branch(self, n: Node, args: list[Any], env: Env) -> Sequence[Any]:
        (test,) = args
        if isinstance(test, torch.SymBool) and free_unbacked_symbols(test):
            test = Truth(tensor_of(torch.sym_ite(test, 1, 0)) != 0)
        if not isinstance(test, Truth):
            return self.block(n.blocks[0 if test else 1], (), env)
        attributes_before, ends = dict(self.attributes), list[tuple[Sequence[Any], Env]]()
        visible = [*env.values(), *attributes_before.values()]
        mark = _contents(visible)
        for block in n.blocks:
            self.attributes.clear()
            self.attributes.update(attributes_before)
            try:
                ends.append((self.block(block, (), env), dict(self.attributes)))
            except _Raised:  # a check of values: assumed to pass
                continue
        if _contents(visible) != mark:
            reason = "a branch on a tensor's value that changes a tensor or a list in place"
            raise UnsupportedOpError([UnsupportedOp(n.kind, n.loc, reason)])
        if not ends:
            raise _Raised("every branch raises an error", where=n.loc)
        self.attributes.clear()
        if len(ends) == 1:
            self.attributes.update(ends[0][1])
            return ends[0][0]
        (yes, then_attributes), (no, else_attributes) = ends
        for path in attributes_before:
            self.attributes[path] = _chosen(n, test, then_attributes[path], else_attributes[path])
        return [_chosen(n, test, a, b) for a, b in zip(yes, no, strict=True)]

    def loop(self, n: Node, args: list[Any], env: Env) -> Sequence[Any]:
        max_iterations, is_going, *carried = args
        if isinstance(max_iterations, torch.SymInt) and free_unbacked_symbols(max_iterations):
            max_iterations = Number(tensor_of(max_iterations))
        (body,) = n.blocks
        iteration = 0
        while True:
            if isinstance(is_going, Truth) or isinstance(max_iterations, Number):
                return self.repeated(
                    n, iteration, None if max_iterations == _MAX_TRIP_COUNT else max_iterations, is_going, carried, env
                )
            if not is_going or (max_iterations != _MAX_TRIP_COUNT and iteration >= int(max_iterations)):
                return carried
            if iteration >= _MAX_ITERATIONS:
                raise UnsupportedOpError(
                    [UnsupportedOp(n.kind, n.loc, f"a loop of more than {_MAX_ITERATIONS} iterations")]
                )
            is_going, *carried = self.block(body, (iteration, *carried), env)
            iteration += 1

    def repeated(
        self, n: Node, iteration: int, max_iterations: Any, is_going: Any, carried: list[Any], env: Env
    ) -> Sequence[Any]:
        """A loop at run time. It also carries tensors among the attributes that it sets, after the program's values."""
        paths = [p for p in n.blocks[0].set_attributes() if isinstance(self.attributes[p], torch.Tensor)]

        def evaluate(
            arguments: Sequence[Any], visible: Mapping[str, Any], constants: Mapping[str, Any]
        ) -> Sequence[Any]:
            count = len(arguments) - len(paths)
            inner = _Run({**constants, **dict(zip(paths, arguments[count:], strict=True))})
            mark = _contents([*visible.values(), *constants.values()])
            results = inner.block(n.blocks[0], arguments[:count], dict(visible))
            if set_ := [p for p in constants if inner.attributes[p] is not constants[p]]:
                raise ValueError(f"{', '.join(set_)} is set, which is no tensor")
            if _contents([*visible.values(), *constants.values()]) != mark:
                raise ValueError("a tensor or a list is changed in place")
            return [*results, *(inner.attributes[p] for p in paths)]

        other_attributes = {p: v for p, v in self.attributes.items() if p not in paths}
        starts = [*carried, *(self.attributes[p] for p in paths)]
        ends = repeat(n, iteration, max_iterations, is_going, starts, env, other_attributes, evaluate)
        self.attributes.update(zip(paths, ends[len(carried) :], strict=True))
        return ends[: len(carried)]


def _contents(values: Iterable[Any]) -> list[object]:
    """A key that changes when tensors, or lists and dicts of them, are changed."""
    elements: list[object] = []
    for v in values:
        if isinstance(v, torch.Tensor):
            elements.append((id(v), v._version))
        elif isinstance(v, list | tuple | dict):
            elements.append((id(v), len(v), *_contents(v.values() if isinstance(v, dict) else v)))
        else:
            elements.append(id(v))
    return elements


def _results(n: Node, result: Any) -> Sequence[Any]:
    return (result,) if len(n.outputs) == 1 else () if not n.outputs else result


def _holds_tensor(v: Any) -> bool:
    return isinstance(v, torch.Tensor) or (isinstance(v, list | tuple) and any(map(_holds_tensor, v)))


# ops on lists as such, whatever their elements
_LISTS = frozenset((
    "len", "__getitem__", "append", "extend", "insert", "pop", "clear", "reverse", "copy", "list", "_set_item", "keys",
    "values", "items", "get", "update", "__contains__", "slice", "add", "mul", "Delete",
))  # fmt: skip


def _of_containers(base: str, args: Sequence[Any]) -> bool:
    return base in ("__is__", "__isnot__") or (base in _LISTS and isinstance(args[0], list | tuple | dict))


def _cast(args: list[Any]) -> Any:
    x, *options = args
    code = next((a for a in options if isinstance(a, int) and not isinstance(a, bool)), None)
    return x if code is None else x.to(dtype_of_code(code))


def _argument(value: Any, schema: Any) -> Any:
    """A value as the op takes it: TorchScript passes numbers for types, and numbers for tensors."""
    kind = schema.real_type.str() if hasattr(schema, "real_type") else str(schema.type)
    if value is None:
        return None
    if "ScalarType" in kind:
        return dtype_of_code(value)
    if "MemoryFormat" in kind:
        return format_of_code(value)
    if "Layout" in kind:
        return torch.strided
    if "Device" in kind:
        return torch.device("cpu")
    if kind in ("Tensor", "Optional[Tensor]", "Tensor?") and not isinstance(value, torch.Tensor):
        return torch.scalar_tensor(value, dtype=_number_type(value))
    return value


def _number_type(value: Any) -> torch.dtype:
    if isinstance(value, bool | torch.SymBool):
        return torch.bool
    return torch.int64 if isinstance(value, int | torch.SymInt) else torch.float32


def _of_truths(n: Node, base: str, args: list[Any]) -> Any:
    """Logic ops on conditions."""
    tensors = [a.tensor if isinstance(a, Truth) else torch.scalar_tensor(a, dtype=torch.bool) for a in args]
    ops: dict[str, Callable[..., torch.Tensor]] = {
        "__not__": torch.logical_not, "__and__": torch.logical_and, "__or__": torch.logical_or,
        "__xor__": torch.logical_xor, "eq": torch.eq, "ne": torch.ne,
    }  # fmt: skip
    if base in ("Int", "Float"):
        return tensors[0].to(torch.int64 if base == "Int" else torch.float32).item()
    if base not in ops:
        raise UnsupportedOpError([UnsupportedOp(n.kind, n.loc, "of a condition that only the run knows")])
    return Truth(ops[base](*tensors))


def _chosen(n: Node, test: Truth, a: Any, b: Any) -> Any:
    """`test ? a : b`."""
    if a is b or (type(a) is type(b) and not isinstance(a, torch.Tensor | list | tuple | dict | Truth) and a == b):
        return a
    if isinstance(a, list | tuple) and type(a) is type(b) and len(a) == len(b):
        return type(a)(_chosen(n, test, x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, int | float | Number) and isinstance(b, int | float | Number) and not isinstance(a, bool):
        return Number(torch.where(test.tensor, tensor_of(a), tensor_of(b)))
    if isinstance(a, bool | Truth) and isinstance(b, bool | Truth):
        pair = (v.tensor if isinstance(v, Truth) else torch.scalar_tensor(v, dtype=torch.bool) for v in (a, b))
        return Truth(torch.where(test.tensor, *pair))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.dim() == b.dim():
        return _chosen_tensor(test.tensor, a, b)
    reason = f"branches on a tensor's value whose results are {_described(a)} and {_described(b)}"
    fix = "give both branches results of one type and rank, or an argument that decides as a number (weights=)"
    raise UnsupportedOpError([UnsupportedOp(n.kind, n.loc, reason)], fix=fix)


def _chosen_tensor(test: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`test ? a : b`. Where sizes differ, both are padded to the larger one and the result is cut at run time."""
    pairs = list(zip(a.shape, b.shape, strict=True))
    # run-time sizes count as different from others
    differing = [axis for axis, (x, y) in enumerate(pairs) if not guard_or_false(x == y)]
    sizes = [torch.sym_max(x, y) if axis in differing else x for axis, (x, y) in enumerate(pairs)]
    if differing:
        a, b = (_padded(x, sizes) for x in (a, b))
    selected = torch.where(test, a, b)
    for axis in differing:
        size = torch.where(test, *map(torch.scalar_tensor, pairs[axis]))
        selected = selected.index_select(axis, torch.nonzero(torch.arange(sizes[axis]) < size).squeeze(1))
    return selected


def _padded(x: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor:
    ends = [
        n for size, size_of_x in zip(reversed(sizes), reversed(x.shape), strict=True) for n in (0, size - size_of_x)
    ]
    return torch.constant_pad_nd(x, ends)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, list | tuple | dict) else repr(value)[:40]


# --- ops that are the language's own


def _error(run: _Run, n: Node, args: list[Any], env: Env) -> Sequence[Any]:
    raise _Raised(f"the model raises: {args[0] if args else 'an error'}", where=n.loc)


def _set_attribute(run: _Run, n: Node, args: list[Any], env: Env) -> Sequence[Any]:
    run.attributes[n.attribute] = args[0]
    return ()


def _set_of_object(run: _Run, n: Node, args: list[Any], env: Env) -> Sequence[Any]:
    args[0][n.attribute] = args[1]
    return ()


_Handler = Callable[[_Run, Node, list[Any], Env], Sequence[Any]]
_PRIM: dict[str, _Handler] = {
    "prim::Constant": lambda run, n, args, env: (_copied(n.value),),
    "prim::GetAttr": lambda run, n, args, env: (run.attributes[n.attribute],),
    "prim::SetAttr": _set_attribute,
    "prim::CreateObject": lambda run, n, args, env: ({},),  # attributes by name
    "object::get": lambda run, n, args, env: (args[0][n.attribute],),
    "object::set": _set_of_object,
    "prim::If": lambda run, n, args, env: run.branch(n, args, env),
    "prim::Loop": lambda run, n, args, env: run.loop(n, args, env),
    "prim::ListConstruct": lambda run, n, args, env: (list(args),),
    "prim::TupleConstruct": lambda run, n, args, env: (tuple(args),),
    "prim::DictConstruct": lambda run, n, args, env: (dict(zip(args[::2], args[1::2], strict=True)),),
    "prim::ListUnpack": lambda run, n, args, env: args[0],
    "prim::TupleUnpack": lambda run, n, args, env: args[0],
    "prim::TupleIndex": lambda run, n, args, env: (args[0][args[1]],),
    "prim::NumToTensor.Scalar": lambda run, n, args, env: args,
    "prim::NumToTensor.bool": lambda run, n, args, env: args,
    "prim::NumToTensor": lambda run, n, args, env: args,
    "prim::ImplicitTensorToNum": lambda run, n, args, env: args,
    "prim::Uninitialized": lambda run, n, args, env: (None,),
    "prim::unchecked_cast": lambda run, n, args, env: args,
    "prim::unchecked_unwrap_optional": lambda run, n, args, env: args,
    "aten::_unwrap_optional": lambda run, n, args, env: args,
    "prim::RaiseException": _error,
    "prim::fork": lambda run, n, args, env: run.block(n.blocks[0], args, {}),
    "aten::wait": lambda run, n, args, env: args,
    "prim::Print": lambda run, n, args, env: (),
    "aten::warn": lambda run, n, args, env: (),
    "prim::min.int": lambda run, n, args, env: (SCALARS["min"](*args),),
    "prim::max.int": lambda run, n, args, env: (SCALARS["max"](*args),),
    "prim::min.float": lambda run, n, args, env: (SCALARS["min"](*args),),
    "prim::max.float": lambda run, n, args, env: (SCALARS["max"](*args),),
    "prim::min.self_int": lambda run, n, args, env: (min(args[0]),),
    "prim::max.self_int": lambda run, n, args, env: (max(args[0]),),
    "prim::rangelist": lambda run, n, args, env: (list(range(*args)),),
    "prim::abs.Scalar": lambda run, n, args, env: (abs(args[0]),),
}


def _copied(value: Any) -> Any:
    """A constant that the program may change."""
    return list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value
