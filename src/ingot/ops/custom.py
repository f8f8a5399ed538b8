"""Ops that users register: `ingot.register_op`.

An application is a node of the op `Custom`, which looks up its meaning in the registry, by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import numpy as np

from ingot.ir.dims import Dim
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op
from ingot.ir.show import show
from ingot.ir.types import TensorType, dtype_of
from ingot.ops.core.base import Category, CoreOp
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError, InputError

Attribute = int | float | bool | str | Dim | tuple[Any, ...] | None


@dataclass(frozen=True)
class Registration:
    """The meaning of an op, as functions of its operands and, by keyword, its attributes. infer: operand types to the
    result's type or types. reference: arrays to arrays. lower: nodes to nodes; None: a function of the host is called.
    """

    name: str
    infer: Callable[..., Any]
    reference: Callable[..., Any]
    lower: Callable[..., Any] | None


REGISTERED: dict[str, Registration] = {}
NAMES: dict[tuple[str, str], Registration] = {}  # (kind of frontend, its name there)


def find(frontend: str, name: str) -> Registration | None:
    """The registered op of a frontend's name: "torch", "onnx" or "stablehlo"."""
    return NAMES.get((frontend, name))


def names_of(frontend: str) -> list[str]:
    """The names of all registered ops in a frontend."""
    return [name for kind, name in NAMES if kind == frontend]


def register(op: Registration, names: Mapping[str, str]) -> None:
    """Register an op. names: its names by frontend. A registration replaces an earlier one of the same name."""
    for key in [key for key, other in NAMES.items() if other.name == op.name]:
        del NAMES[key]
    for key in names.items():
        if key in NAMES:
            raise InputError(f"{key[0]} op {key[1]}", expected="one registration", got=f"also {NAMES[key].name}")
    REGISTERED[op.name] = op
    NAMES.update(dict.fromkeys(names.items(), op))


@contextmanager
def unchanged_on_error() -> Iterator[None]:
    """Undo the registrations inside the block if it raises."""
    before = dict(REGISTERED), dict(NAMES)
    try:
        yield
    except BaseException:
        for registry, content in zip((REGISTERED, NAMES), before, strict=True):
            registry.clear()
            registry.update(content)  # type: ignore[arg-type]
        raise


@dataclass(frozen=True)
class Custom(Op):
    """A registered op. meaning: a digest of its lowering for these operands, so that programs with another meaning have
    other cache keys."""

    name: ClassVar[str] = "custom"
    op: str
    settings: tuple[tuple[str, Attribute], ...] = ()
    meaning: str = ""

    @property
    def registration(self) -> Registration:
        """The op's registration. Raises CompileError if it was not registered in this process."""
        registration = REGISTERED.get(self.op)
        if registration is None:
            raise CompileError(f"op {self.op}", expected="a registered op", got="none", fix="call ingot.register_op")
        return registration

    def infer(self, *inputs: TensorType) -> TensorType | tuple[TensorType, ...]:
        return self._call("infer", inputs, lambda t: isinstance(t, TensorType), "tensor types")

    def reference(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        results = self._call("reference", inputs, lambda _: True, "arrays")
        types = self.infer(*(TensorType(dtype_of(x.dtype), x.shape) for x in inputs))
        if isinstance(types, TensorType):
            return np.asarray(results).astype(types.dtype.numpy, copy=False)
        return tuple(np.asarray(r).astype(t.dtype.numpy, copy=False) for r, t in zip(results, types, strict=True))

    def lower(self, *inputs: Node) -> Node | tuple[Node, ...]:
        if self.registration.lower is None:
            inferred = self.infer(*(n.type for n in inputs))
            types = inferred if isinstance(inferred, tuple) else (inferred,)
            if open_sizes := [name for name, value in self.settings if isinstance(value, Dim)]:
                raise CompileError(
                    f"{self.op}: its attributes", expected="numbers and texts", got=f"sizes {open_sizes}"
                )
            node = HostCall(self.op, self.settings, types)(*inputs)
            return node if len(types) == 1 else node.results
        results = self._call("lower", inputs, lambda n: isinstance(n, Node), "nodes")
        got = tuple(n.type for n in (results if isinstance(results, tuple) else (results,)))
        inferred = self.infer(*(n.type for n in inputs))
        want = inferred if isinstance(inferred, tuple) else (inferred,)
        if got != want:
            expected = f"what its type rule says, {', '.join(map(str, want))}"
            raise CompileError(f"{self.op}: the lowering", expected=expected, got=", ".join(map(str, got)))
        return results

    def _call(self, rule: str, operands: Sequence[Any], is_valid: Callable[[Any], bool], what: str) -> Any:
        results = getattr(self.registration, rule)(*operands, **dict(self.settings))
        if isinstance(results, list):
            results = tuple(results)
        if not all(map(is_valid, results if isinstance(results, tuple) else (results,))):
            raise CompileError(f"{self.op}: {rule}", expected=what, got=type(results).__name__)
        return results


@dataclass(frozen=True)
class HostCall(CoreOp):
    """A registered op that a function of the host computes. types: of its results."""

    name: ClassVar[str] = "host_call"
    category: ClassVar[Category] = Category.HOST
    op: str
    settings: tuple[tuple[str, Attribute], ...]
    types: tuple[TensorType, ...]

    def infer(self, *inputs: TensorType) -> TensorType | tuple[TensorType, ...]:
        return self.types[0] if len(self.types) == 1 else self.types

    def reference(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        return Custom(self.op, self.settings).reference(*inputs)


def apply(registration: Registration, operands: Sequence[Node], attributes: Mapping[str, Any], loc: str = "") -> Node:
    """A node of a registered op."""
    settings = tuple((name, _attribute(registration.name, name, value)) for name, value in sorted(attributes.items()))
    plain = Custom(registration.name, settings)
    inputs = tuple(Input(f"operand {n}", x.type)() for n, x in enumerate(operands))
    lowered = plain.lower(*inputs)
    graph = Graph(inputs, lowered if isinstance(lowered, tuple) else (lowered,))
    meaning = hashlib.blake2b(show(graph).encode(), digest_size=8).hexdigest()
    return Custom(registration.name, settings, meaning)(*operands, loc=loc)


def _attribute(op: str, name: str, value: Any) -> Attribute:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        return tuple(_attribute(op, name, v) for v in value)
    if isinstance(value, bool | int | float | str | Dim) or value is None:
        return value
    raise InputError(f"attribute {name} of {op}", expected="numbers, text, or lists of them", got=type(value).__name__)


HostFunction = Callable[[Sequence[np.ndarray], Sequence[np.ndarray], Mapping[str, Any]], None]


def check_sample(
    registration: Registration, sample: Sequence[Any], attributes: Mapping[str, Any], host: HostFunction | None
) -> None:
    """Raise InputError if the interpreted lowering or the host function differs from the reference on a sample."""
    arrays = [np.asarray(x) for x in sample]
    inputs = tuple(Input(f"operand {n}", TensorType(dtype_of(x.dtype), x.shape))() for n, x in enumerate(arrays))
    node = apply(registration, inputs, attributes)
    want = node.op.reference(*arrays)
    if host is not None:
        got = tuple(np.zeros_like(a) for a in (want if isinstance(want, tuple) else (want,)))
        host([np.ascontiguousarray(x) for x in arrays], got, attributes)
    else:
        lowered = cast(Custom, node.op).lower(*inputs)
        got = interpret(Graph(inputs, lowered if isinstance(lowered, tuple) else (lowered,)), arrays)
    for a, b in zip(want if isinstance(want, tuple) else (want,), got, strict=True):
        tolerance = 1e-5 if a.dtype.kind in "fcV" else 0
        wide = (a, b) if a.dtype.kind in "biu" else (a.astype(np.float64), b.astype(np.float64))
        if not np.allclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True):
            gap = np.nanmax(np.abs(np.subtract(*wide, dtype=np.float64)))
            got_text = f"a difference of {gap:.3g}"
            what = "the lowering" if host is None else "the function"
            raise InputError(f"{registration.name}: {what}", expected="the reference's values", got=got_text)
