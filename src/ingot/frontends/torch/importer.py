"""An aten fx graph to an Ingot graph: walks the nodes, evaluates sizes, calls the handlers, checks every result."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import count

import sympy
import torch
from torch import fx

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten import ATEN
from ingot.frontends.torch.aten.complex import complex_handler, is_complex, on_complex
from ingot.frontends.torch.convert import Sizes, convolutions_take_tf32, location, products_take_tf32, to_numpy
from ingot.frontends.torch.custom import registered_handler
from ingot.frontends.torch.higher_order import HIGHER_ORDER
from ingot.frontends.torch.numbers import number_of
from ingot.frontends.torch.slopes import has_slope, with_slope
from ingot.frontends.torch.tracing.inplace import functional_name, needs_functionalization, written_argument
from ingot.frontends.torch.tracing.layouts import dense_order, source_of
from ingot.frontends.torch.values import Complex, Context, Memory, Number, cast, f64, i64, with_shape
from ingot.ir.node import Input, Node, const
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, ShapeError, UnsupportedOp, UnsupportedOpError, VerifyError

# x.item(): a Python number
_SCALAR_READS = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
# ops that only assert, annotate or compute sizes, whose values come from torch's own inference
_IGNORED = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_scalar.default",
        "aten._assert_async.msg",
        "aten._assert_async.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
        "aten._functional_assert_async.msg",
        "aten._functional_assert_scalar.default",
        "aten.record_stream.default",
        "aten._dep_token.default",
        "aten._make_dep_token.default",
        "aten._linalg_check_errors.default",
        "prims._make_token.default",
        "prims._sink_tokens.default",
    }
)


class NeedsDecomposition(Exception):
    """The graph as exported cannot be imported directly; `run_decompositions` simplifies it."""

    def __init__(self, unsupported: Sequence[UnsupportedOp] = ()):
        super().__init__()
        self.unsupported = tuple(unsupported)


class _Missing:
    """The value of a node that could not be imported; its readers are skipped without another error."""


_MISSING = _Missing()
_Env = dict[fx.Node, object]


@dataclass
class Importer:
    """Imports fx graphs as nodes. `is_final`: no further decomposition is possible, so unsupported ops are errors.
    `is_differentiated`: the graph will be differentiated."""

    sizes: Sizes
    is_final: bool
    is_differentiated: bool = False
    unsupported: list[UnsupportedOp] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # the names of their nodes
    numbers: dict[sympy.Basic, Node] = field(default_factory=dict)
    _newest: int = -1
    _draws: Iterator[int] = field(default_factory=count)

    def run(self, module: fx.GraphModule, arguments: Sequence[object]) -> list[object]:
        """The outputs of `module`'s graph (a flat list) for the values of its placeholders.

        Raises NeedsDecomposition unless `is_final`.
        """
        if not self.is_final and needs_functionalization(module.graph):
            raise NeedsDecomposition
        env: _Env = {}
        values = iter(arguments)
        outputs: Sequence[object] = ()
        for node in module.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(values)
            elif node.op == "get_attr":
                env[node] = self._attribute(module, node)
            elif node.op == "output":
                outputs = node.args[0] if isinstance(node.args[0], tuple | list) else (node.args[0],)
                return [self._output(o, env) for o in outputs]
            else:
                env[node] = self._call(node, env)
        return list(outputs)

    def finish(self, model: str | None = None) -> None:
        """Raise where something is unsupported: NeedsDecomposition, or UnsupportedOpError if `is_final`."""
        if self.unsupported and not self.is_final:
            raise NeedsDecomposition(self.unsupported)
        if self.unsupported:
            raise UnsupportedOpError(self.unsupported, model=model)

    def _attribute(self, module: fx.GraphModule, node: fx.Node) -> object:
        value: object = module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return constant(value, loc=str(node.target)) if isinstance(value, torch.Tensor) else value

    def _read(self, value: object, env: _Env) -> object:
        """An argument of a node in the form that handlers take."""
        if isinstance(value, fx.Node):
            return self._size(value, env)
        if isinstance(value, list | tuple):
            return tuple(self._read(v, env) for v in value)
        if isinstance(value, slice):
            raise Unsupported("a Python slice as an argument")
        return value

    def _output(self, value: object, env: _Env) -> object:
        result = self._read(value, env)
        if result is None and isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.SymBool):
            return self._refuse(value, str(value.target), "a comparison of sizes as a result")
        return result

    def _size(self, node: fx.Node, env: _Env) -> object:
        """The value of a node; sizes come from torch's own symbolic evaluation."""
        meta = node.meta.get("val")
        if isinstance(meta, torch.SymInt):
            return self.sizes.dim(meta)
        if isinstance(meta, torch.SymFloat):
            value = env.get(node)
            return value if isinstance(value, Number) else number_of(meta.node.expr, self.sizes, self.numbers)
        return env[node]

    def _call(self, node: fx.Node, env: _Env) -> object:
        target = node.target
        meta = node.meta.get("val")
        if target in _SCALAR_READS and isinstance(meta, torch.SymFloat | torch.SymBool | torch.SymInt):
            return self._scalar_read(env[node.all_input_nodes[0]], meta)
        if isinstance(meta, torch.SymInt | torch.SymFloat | torch.SymBool | bool | int | float):
            return meta if isinstance(meta, bool | int | float) else None
        if target is operator.getitem:
            return self._item(node, env)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._higher_order(node, target, env)
        if not isinstance(target, torch._ops.OpOverload):
            name = getattr(target, "__name__", str(target))
            return None if meta is None and name.startswith("sym_") else self._refuse(node, name)
        if str(target) in _IGNORED:
            return None
        return self._aten(node, target, env)

    def _scalar_read(self, x: object, meta: torch.SymFloat | torch.SymBool | torch.SymInt) -> object:
        """The element of a tensor as a Python number."""
        if not isinstance(x, Node):
            return None if isinstance(meta, torch.SymInt) else _MISSING
        element = ops.reshape(x, ())
        if isinstance(meta, torch.SymInt):
            self.sizes.computed_size(cast(element, i64), None, self.sizes.dim(meta))
            return None
        if isinstance(meta, torch.SymBool):
            return Number(element)
        return self.numbers.setdefault(meta.node.expr, cast(element, f64))

    def _item(self, node: fx.Node, env: _Env) -> object:
        source, index = node.args
        assert isinstance(source, fx.Node) and isinstance(index, int)
        values = env[source]
        if isinstance(values, _Missing):
            return _MISSING
        assert isinstance(values, Sequence)
        item = values[index]
        if item is None and isinstance(node.meta.get("val"), torch.Tensor) and node.users:
            return self._refuse(node, str(source.target), f"its result {index} is read")
        return item

    def _refuse(self, node: fx.Node, name: str, reason: str = "") -> _Missing:
        self.unsupported.append(UnsupportedOp(name, location(node), reason))
        self.refused.append(node.name)
        return _MISSING

    def _aten(self, node: fx.Node, target: torch._ops.OpOverload, env: _Env) -> object:
        name = functional_name(target)
        handler = ATEN.get(name) or registered_handler(name)
        loc = location(node)
        try:
            arguments = [self._read(a, env) for a in node.args]
            named = {k: self._read(v, env) for k, v in node.kwargs.items()}
            if _holds_missing((*arguments, *named.values())):
                has_handler = handler is not None or name in on_complex.rows
                return _MISSING if has_handler else self._refuse(node, str(target))
            types = _tensor_types(node.meta.get("val"), self.sizes)
            if self.is_differentiated and has_slope(name, arguments):
                result = with_slope(replace(self, is_differentiated=False).run, target, node, env, types)
            else:
                if is_complex((*arguments, *named.values())):
                    handler = complex_handler(name, ATEN)
                if handler is None:
                    return self._refuse(node, str(target))
                memory = partial(_memory, node, env, self.sizes)
                key, tf32 = lambda: ops.RandomKey(next(self._draws))(), _tf32(node.meta.get("val"))
                context = Context(types, loc, self.sizes, memory, key, tf32)
                result = handler(context, *arguments, **named)
        except Unsupported as e:
            return self._refuse(node, str(target), str(e))
        except (ShapeError, ImportModelError) as e:
            raise _located(e, str(target), loc) from e
        destination = written_argument(node)
        if destination is not None:
            result = self._rebound(result, destination, env)
        result = self._settled(result, node, loc)
        if destination is not None:
            env[destination] = result
        return result

    def _rebound(self, result: object, destination: fx.Node, env: _Env) -> object:
        """The result of an in-place op, in the dtype of the value that it overwrites."""
        overwritten = env[destination]
        return cast(result, overwritten.dtype) if isinstance(result, Node) and isinstance(overwritten, Node) else result

    def _settled(self, result: object, node: fx.Node, loc: str) -> object:
        """`result` with its location set, checked against torch's inference, with sizes written as torch does."""
        meta = node.meta.get("val")
        if isinstance(result, Node | Complex):
            return self._checked(result, meta[0] if isinstance(meta, list | tuple) and meta else meta, node, loc)
        if isinstance(result, tuple) and isinstance(meta, list | tuple):
            # unread results are not checked: PyTorch 2.11 infers a wrong rank for an LSTM's last states
            read = [user.args[1] for user in node.users if user.target is operator.getitem and user.users]
            return tuple(
                self._checked(r, m, node, loc) if i in read else r
                for i, (r, m) in enumerate(zip(result, meta, strict=False))
            )
        return result

    def _checked(self, result: object, meta: object, node: fx.Node, loc: str) -> object:
        """One result of `node`: complex where torch says so, even if the handler returned only a real part."""
        if not isinstance(result, Node | Complex):
            return result
        parts = result if isinstance(result, Complex) else Complex(result)
        real, imag = (None if p is None else self._part(p, meta, node, loc) for p in (parts.real, parts.imag))
        assert real is not None
        return Complex(real, imag) if isinstance(meta, torch.Tensor) and meta.is_complex() else real

    def _part(self, result: Node, meta: object, node: fx.Node, loc: str) -> Node:
        self._stamp(result, loc)
        return self._agreeing(result, meta, node) if isinstance(meta, torch.Tensor) else result

    def _stamp(self, node: Node, loc: str) -> None:
        """Set `loc` on the nodes that the last handler built. A location is not part of a node's identity."""
        newest_before, self._newest = self._newest, max(self._newest, node.id)
        if not loc:
            return
        stack = [node]
        while stack:
            n = stack.pop()
            if n.id > newest_before and not n.loc and not isinstance(n.op, Input):
                n.loc = loc
                stack.extend(n.inputs)

    def _agreeing(self, result: Node, meta: torch.Tensor, node: fx.Node) -> Node:
        want = self.sizes.type(meta)
        if result.type == want:
            return result
        is_compatible = result.dtype == want.dtype and result.type.rank == want.rank
        fits = all(
            a == b or not (isinstance(a, int) and isinstance(b, int))
            for a, b in zip(result.shape, want.shape, strict=False)
        )
        if not is_compatible or not fits:
            raise VerifyError(f"import of {node.target}", expected=want, got=result.type, where=location(node) or None)
        for a, b in zip(result.shape, want.shape, strict=True):
            self.sizes.require_equal(a, b)
        return with_shape(result, want.shape)

    def _higher_order(self, node: fx.Node, target: torch._ops.HigherOrderOperator, env: _Env) -> object:
        name = target.name() if callable(getattr(target, "name", None)) else str(target)
        if name == "wrap_with_autocast" and (self.is_final or node.args[2]):
            if not self.is_final:
                # casts are implicit in such a region until it is decomposed
                raise NeedsDecomposition
            return self._refuse(node, name, "autocast left in a decomposed graph")
        if name == "with_effects" and str(node.args[1]) in _IGNORED:
            # no results but a token that orders such ops
            return (ops.full((0,), 0.0),)
        handler = HIGHER_ORDER.get(name)
        if handler is None:
            op = next((a for a in node.args[:2] if isinstance(a, torch._ops.OpOverload)), None)
            return self._refuse(node, str(op or name), f"in {name}" if op else "a higher-order op")
        try:
            arguments = [self._read(a, env) for a in node.args]
            return _MISSING if _holds_missing(arguments) else handler(self.run, node, *arguments)
        except Unsupported as e:
            return self._refuse(node, name, str(e))


def _located(error: ShapeError | ImportModelError, target: str, loc: str) -> Exception:
    text = str(error)
    return type(error)(f"{target}: {text}", where=loc if loc and loc not in text else None)


def _holds_missing(values: Sequence[object]) -> bool:
    return any(isinstance(v, _Missing) or (isinstance(v, tuple) and _holds_missing(v)) for v in values)


def _memory(node: fx.Node, env: _Env, sizes: Sizes) -> Memory | None:
    tensors = (n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor))
    first = next(tensors, None)
    if first is None or first.meta["val"].layout is not torch.strided:
        return None
    x, base = first.meta["val"], first
    while (source := source_of(base)) is not None and source.meta["val"].dtype == x.dtype:
        base = source
    value, base_value = env.get(base), base.meta["val"]
    if not isinstance(value, Node):
        return None
    strides, offset = tuple(sizes.dim(s) for s in x.stride()), sizes.dim(x.storage_offset())
    return Memory(strides, offset, value, sizes.dim(base_value.storage_offset()), dense_order(base_value))


def _tf32(meta: object) -> bool | None:
    """PyTorch's setting for convolutions where the results are on a GPU, which their attribute `tf32` gets: False only
    if that for products, which the option `precision` becomes, is another."""
    results = meta if isinstance(meta, list | tuple) else (meta,)
    is_on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in results)
    if not is_on_gpu:
        return None
    return convolutions_take_tf32() or (False if products_take_tf32() else None)


def _tensor_types(meta: object, sizes: Sizes) -> tuple[TensorType, ...]:
    if isinstance(meta, torch.Tensor):
        return (sizes.type(meta),)
    if isinstance(meta, list | tuple):
        return tuple(sizes.type(m) for m in meta if isinstance(m, torch.Tensor))
    return ()


def constant(tensor: torch.Tensor, loc: str = "") -> Node | Complex:
    """A constant that shares the tensor's memory; two copies of a complex one's parts."""
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.detach().resolve_conj()).unbind(-1)
        real, imag = (const(to_numpy(p.contiguous()), loc=loc) for p in parts)
        return Complex(real, imag)
    return const(to_numpy(tensor), loc=loc)
