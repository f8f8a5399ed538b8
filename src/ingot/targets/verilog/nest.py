"""A kernel of one loop nest as plain data: counters, a list of values, the accumulation and the store.

for i: for j: acc = 0; for r: acc = acc + x[..]*w[..]; out[i*4+j] = f(acc)   ->   outer (4, 4), inner (8), values ...

A value is [function, dtype, operand, ...], where operands are numbers of earlier values. It survives JSON, as the
weights, which decide how wide memories and operators are, are known when the program is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ingot.ir import kernel as k
from ingot.ir.kernel import Body, Buffer, Expr, Kernel
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

Value = tuple[Any, ...]


@dataclass(frozen=True)
class Nest:
    """params: (name, dtype). outer, inner: the extents of the loops. values: in order of evaluation;
    ("counter", dtype, number) counts the outer loops first, ("load", dtype, param, address) reads a param, ("literal",
    dtype, value), ("acc", dtype) is the register. initial, update: the numbers of the register's first and next
    value, None without inner loops. store: param, address, value.
    """

    name: str
    params: tuple[tuple[str, str], ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    values: tuple[Value, ...]
    initial: int | None
    update: int | None
    store: tuple[int, int, int]

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Nest.__annotations__}

    @staticmethod
    def of_json(data: Mapping[str, Any]) -> Nest:
        fields = {name: data[name] for name in Nest.__annotations__}
        for name in ("outer", "inner", "store"):
            fields[name] = tuple(fields[name])
        for name in ("params", "values"):
            fields[name] = tuple(map(tuple, fields[name]))
        return Nest(**fields)


def merged(nest: Nest, places: Mapping[int, tuple[int, int]]) -> Nest:
    """Replace params in the same memory by the first of them, as a memory has one read port. places: (memory, offset in
    elements) of params in memories."""
    first: dict[int, int] = {}
    for param, (memory, _) in places.items():
        first.setdefault(memory, param)
    values: list[Value] = []
    number_of: dict[Value, int] = {}
    numbers: list[int] = []

    def add(value: Value) -> int:
        if value not in number_of:
            number_of[value] = len(values)
            values.append(value)
        return number_of[value]

    for fn, dtype, *rest in nest.values:
        if fn == "load":
            param, address = rest[0], numbers[rest[1]]
            if param in places:
                memory, offset = places[param]
                param = first[memory]
                if distance := offset - places[param][1]:
                    address = add(("add", "i64", address, add(("literal", "i64", distance))))
            numbers.append(add((fn, dtype, param, address)))
        elif fn in ("literal", "acc", "counter"):
            numbers.append(add((fn, dtype, *(tuple(x) if isinstance(x, list) else x for x in rest))))
        else:
            numbers.append(add((fn, dtype, *(numbers[i] for i in rest))))
    initial, update = (None if i is None else numbers[i] for i in (nest.initial, nest.update))
    param, address, value = nest.store
    store = param, numbers[address], numbers[value]
    return replace(nest, values=tuple(values), initial=initial, update=update, store=store)


def nest_of(kernel: Kernel) -> Nest:
    """Convert a kernel. Raises CompileError if it is not a single nest."""
    return _Reader(kernel).nest()


class _Reader:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.params = {b.name: i for i, b in enumerate(kernel.params)}
        self.extents: list[list[int]] = [[], []]
        self.values: list[Value] = []
        self.numbers: dict[Value, int] = {}
        self.names: dict[str, int] = {}
        self.acc: Buffer | None = None
        self.initial: int | None = None
        self.update: int | None = None
        self.store: tuple[int, int, int] | None = None

    def nest(self) -> Nest:
        self._body(self.kernel.body, inside=False)
        if self.store is None:
            raise self._error("a store")
        params = tuple((b.name, b.dtype.name) for b in self.kernel.params)
        outer, inner = map(tuple, self.extents)
        return Nest(self.kernel.name, params, outer, inner, tuple(self.values), self.initial, self.update, self.store)

    def _error(self, expected: str) -> CompileError:
        return CompileError(f"a circuit: kernel {self.kernel.name}", expected=expected, fix="this is a bug")

    def _body(self, body: Body, inside: bool) -> None:
        """inside: the loops that accumulate."""
        for s in body:
            match s:
                case k.Let():
                    self.names[s.var.name] = self._value(s.value)
                case k.Alloc():
                    self.acc = s.buffer
                case k.For():
                    if s.step != 1 or not isinstance(s.begin, k.Lit) or not isinstance(s.end, k.Lit) or s.begin.value:
                        raise self._error("loops from 0 by 1")
                    inner = self.acc is not None
                    self.extents[inner].append(int(s.end.value))
                    self.names[s.var.name] = self._add(("counter", "i64", (inner, len(self.extents[inner]) - 1)))
                    self._body(s.body, inner)
                case k.Store() if s.buffer is self.acc:
                    if inside or self.initial is not None:
                        self.update = self._value(s.value)
                    else:
                        self.initial = self._value(s.value)
                case k.Store():
                    if self.store is not None:
                        raise self._error("one store")
                    self.store = self.params[s.buffer.name], self._value(s.index), self._value(s.value)
                case _:
                    raise self._error("a nest of loops")

    def _add(self, value: Value) -> int:
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = len(self.values)
            self.values.append(value)
        return number

    def _value(self, e: Expr) -> int:
        dtype = e.dtype.name
        match e:
            case k.Var():
                return self.names[e.name]
            case k.Lit():
                return self._add(("literal", dtype, int(e.value)))
            case k.Load() if e.buffer is self.acc:
                return self._add(("acc", dtype))
            case k.Load():
                return self._add(("load", dtype, self.params[e.buffer.name], self._value(e.index)))
            case k.Binary():
                return self._add((e.fn, dtype, self._value(e.a), self._value(e.b)))
            case k.Unary():
                return self._add((e.fn, dtype, self._value(e.a)))
            case k.Fma():
                product = self._add(("mul", dtype, self._value(e.a), self._value(e.b)))
                return self._add(("add", dtype, product, self._value(e.c)))
            case k.Select():
                return self._add(("select", dtype, self._value(e.cond), self._value(e.a), self._value(e.b)))
            case k.Cast():
                return self._add(("cast", dtype, self._value(e.a)))
        raise CompileError("a circuit", expected="integer arithmetic", got=type(cast(object, e)).__name__)
