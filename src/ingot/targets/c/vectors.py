"""Kernel IR with vectors -> C with the vector extensions of GCC and Clang.

    Store(y, i, Binary(mul, Load(x, i), Splat(s)))   ->   ig_f32x4 t0 = {0};  __builtin_memcpy(&t0, &x[i], 16);
                                                          const ig_f32x4 t1 = {s, s, s, s};
                                                          const ig_f32x4 t2 = t0 * t1;
                                                          __builtin_memcpy(&y[i], &t2, 16);

Float arithmetic, loads and stores operate on vectors; everything else is printed as short loops over lanes, which
compilers vectorize again. Conditions are `int`s of 0 or 1. A vector's size is padded to a power of two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Kernel
from ingot.ir.kernel.math.expand import expand
from ingot.ir.types import DType, boolean, i16
from ingot.support.errors import CompileError
from ingot.targets.c.printer import NARROW_FLOATS, Function, accumulated_product, name_of, round_to, value_type

_VECTOR = re.compile(r"\big_(f32|f64|[iu](?:8|16|32|64))x(\d+)\b")
_PAIRS = re.compile(r"\bIG_PAIRS_(\d+)\b")
_PAIR_PRODUCTS = {"4": ("__SSE2__", "pmaddwd128"), "8": ("__AVX2__", "pmaddwd256")}  # by lanes of the sums
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_LANE_SUFFIX = "[l]"  # of a vector operand in a loop over lanes


def print_vectors(kernel: Kernel) -> str:
    """As `printer.print_kernel`, for kernels with vectors."""
    return VectorFunction(expand(kernel)).text()


def vector_types(code: str) -> str:
    """Return the typedefs of the vector types in `code`."""
    lines = []
    for name, lanes in sorted(set(_VECTOR.findall(code)), key=lambda t: (t[0], int(t[1]))):
        size = int(lanes) * int(name[1:]) // 8
        c_type = {"f32": "float", "f64": "double"}.get(name, f"{'u' * (name[0] == 'u')}int{name[1:]}_t")
        padded_size = 1 << (size - 1).bit_length()
        lines.append(f"typedef {c_type} ig_{name}x{lanes} __attribute__((vector_size({padded_size})));")
    return "\n".join([*lines, *map(_pair_products, sorted(set(_PAIRS.findall(code)), key=int)), ""])


def _pair_products(lanes: str) -> str:
    """A macro that adds products of pairs of 16-bit integers to a vector of sums. It is not a function, as compilers
    warn of vector parameters for which the machine has no registers."""
    name, (feature, builtin) = f"IG_PAIRS_{lanes}(r, a, b)", _PAIR_PRODUCTS.get(lanes, ("", ""))
    statement = "r[l] += a[2 * l] * b[2 * l] + a[2 * l + 1] * b[2 * l + 1]"
    plain = f"#define {name} for (int l = 0; l < {lanes}; l++) {statement}"
    if not feature:
        return plain
    return f"#if defined({feature})\n#define {name} r = r + __builtin_ia32_{builtin}(a, b)\n#else\n{plain}\n#endif"


def _is_plain(dtype: DType) -> bool:
    """Whether elements have the same representation in memory and in values."""
    return dtype.name not in NARROW_FLOATS and dtype != boolean


def _type(dtype: DType, lanes: int) -> str:
    name = "i32" if dtype == boolean else "f32" if dtype.name in NARROW_FLOATS else dtype.name
    value_type(dtype)  # raises for types that C has none for
    return f"ig_{name}x{lanes}"


class VectorFunction(Function):
    """Prints a kernel with vectors."""

    def statement(self, s: k.Stmt) -> None:
        match s:
            case k.Let() if s.value.lanes > 1:
                name = name_of(s.var.name)
                self.line(f"const {_type(s.var.dtype, s.var.lanes)} {name} = {self.value(s.value)};")
                self.line(f"(void){name};")
            case k.Store() if s.value.lanes > 1:
                self.store(s)
            case _:
                super().statement(s)

    def alloc(self, b: Buffer) -> None:
        if b.space == "register" and b.lanes > 1:
            name = self.names[b] = name_of(b.name)
            self.line(f"{_type(b.dtype, b.lanes)} {name}[{b.size or 1}];")
        else:
            super().alloc(b)

    def store(self, s: k.Store) -> None:
        b, lanes = s.buffer, s.value.lanes
        is_register = b.space == "register"
        factors = accumulated_product(s) if s.mask is None else None
        if factors is not None:
            target = f"{self.names[b]}[{self.value(s.index)}]"
            x, y = map(self.value, factors)
            self.line(f"{target} = {target} + {x} * {y};")
            return
        value, index = self.value(s.value), self.value(s.index)
        mask = "" if s.mask is None else self.value(s.mask) + _LANE_SUFFIX * (s.mask.lanes > 1)
        if is_register and not mask and b.lanes == lanes:
            self.line(f"{self.names[b]}[{index}] = {value};")
        elif not is_register and not mask and s.index.lanes == 1 and _is_plain(b.dtype):
            self.line(f"__builtin_memcpy(&{self.names[b]}[{index}], &{value}, {lanes * b.dtype.bits // 8});")
        else:
            element = f"{index}{_LANE_SUFFIX}" if s.index.lanes > 1 else f"{index} + l"
            target = (
                f"{self.names[b]}[{index}][l]" if is_register and b.lanes == lanes else f"{self.names[b]}[{element}]"
            )
            guard = f"if ({mask} != 0) " if mask else ""
            self.loop(lanes, f"{guard}{target} = {self.convert_stored(value + _LANE_SUFFIX, b)};")

    def loop(self, lanes: int, text: str) -> None:
        self.line(f"for (int l = 0; l < {lanes}; l++) {text}")

    def value(self, e: Expr) -> str:
        if e.lanes == 1 and all(o.lanes == 1 for o in _operands(e)):
            return super().value(e)
        if isinstance(e, k.Var):
            return name_of(e.name)
        named = self.names_of_values.get(id(e))
        if named is None:
            named = self.names_of_values[id(e)] = e, self.vector(e)
        return named[1]

    def vector(self, e: Expr) -> str:
        """Return the name of a vector, or of a scalar computed from one."""
        match e:
            case k.Either():
                return self.value(e.b)
            case k.Reduce():
                return self.reduce(e)
            case k.Extract():
                return self.temp(value_type(e.dtype), f"{self.value(e.a)}[{e.lane}]")
        kind = _type(e.dtype, e.lanes) if e.lanes > 1 else value_type(e.dtype)
        match e:
            case k.Lit():
                return self.temp(kind, _initializer([super().value(k.Lit(e.dtype, 1, e.value))] * e.lanes))
            case k.Splat():
                return self.temp(kind, _initializer([self.value(e.a)] * e.lanes))
            case k.Shuffle():
                operands = [(self.value(x), x.lanes) for x in (e.a, e.b)]
                lanes = [f"{name}[{i}]" if n > 1 else name for name, n in operands for i in range(n)]
                return self.temp(
                    kind, _initializer([lanes[i] for i in e.indices]) if e.lanes > 1 else lanes[e.indices[0]]
                )
            case k.Dot() if e.a.dtype == i16:
                a, b, c = map(self.value, (e.a, e.b, e.c))
                name = self.new_temp()
                self.line(f"{kind} {name} = {c};")
                self.line(f"IG_PAIRS_{e.lanes}({name}, {a}, {b});")
                return name
            case k.Binary() if e.fn in _ARITHMETIC and e.dtype.is_float and _is_plain(e.dtype):
                return self.temp(kind, f"{self.value(e.a)} {_ARITHMETIC[e.fn]} {self.value(e.b)}")
            case k.Load() if e.mask is None and e.buffer.space == "register" and e.buffer.lanes == e.lanes:
                return self.temp(kind, f"{self.names[e.buffer]}[{self.value(e.index)}]")
            case k.Load() if e.mask is None and e.buffer.space != "register" and _is_plain(e.dtype):
                return self.copy(kind, f"{self.names[e.buffer]}[{self.value(e.index)}]", e)
            case k.Bitcast() if e.lanes != e.a.lanes:
                if not (_is_plain(e.dtype) and _is_plain(e.a.dtype)):
                    raise CompileError("C: bits of several lanes as one", expected="types that C has", got=f"{e.dtype}")
                source = self.value(e.a)
                return self.copy(kind, source if e.a.lanes > 1 else self.temp(value_type(e.a.dtype), source), e)
        text = round_to(self.lane(e), e.dtype)
        name = self.new_temp()
        self.line(f"{kind} {name} = {{0}};")
        self.loop(e.lanes, f"{name}[l] = {text};")
        return name

    def new_temp(self) -> str:
        self.n_temps += 1
        return f"t{self.n_temps - 1}"

    def copy(self, kind: str, source: str, e: Expr) -> str:
        name = self.new_temp()
        self.line(f"{kind} {name}{' = {0}' * (e.lanes > 1)};")
        self.line(f"__builtin_memcpy(&{name}, &{source}, {e.lanes * e.dtype.bits // 8});")
        return name

    def lane(self, e: Expr) -> str:
        """Return the text of lane `l` of a value."""

        def operand(x: Expr) -> str:
            return self.value(x) + _LANE_SUFFIX * (x.lanes > 1)

        match e:
            case k.Load() | k.Gather():
                index = operand(e.index) if e.index.lanes > 1 else f"{self.value(e.index)} + l"
                return self.load_text(e, index, "" if e.mask is None else operand(e.mask))
            case k.Unary():
                return self.unary(e.fn, operand(e.a), e.dtype)
            case k.Binary():
                return self.binary(e.fn, operand(e.a), operand(e.b), e.a.dtype)
            case k.Fma():
                return self.multiply_add(e, operand)
            case k.Select():
                return f"{operand(e.cond)} != 0 ? {operand(e.a)} : {operand(e.b)}"
            case k.Cast():
                return self.cast(operand(e.a), e.a.dtype, e.dtype)
            case k.Bitcast():
                return self.bitcast(operand(e.a), e.a.dtype, e.dtype)
            case k.Ramp():
                step = self.binary("mul", f"(({value_type(e.dtype)})l)", f"(({value_type(e.dtype)}){e.step})", e.dtype)
                return self.binary("add", operand(e.base), f"({step})", e.dtype)
            case k.Lookup():
                return self.lookup(e, operand(e.index))
        raise CompileError(f"C: value {type(e).__name__}", expected="kernel IR of a CPU")

    def reduce(self, e: k.Reduce) -> str:
        """Combine halves until one lane is left, then the odd lanes."""
        vector, odd_lanes, dtype = self.value(e.a), [], e.dtype
        lanes = [f"{vector}[{i}]" for i in range(e.a.lanes)] if e.a.lanes > 1 else [vector]

        def combine(a: str, b: str) -> str:
            return self.temp(value_type(dtype), round_to(self.binary(e.fn, a, b, dtype), dtype))

        while len(lanes) > 1:
            half = len(lanes) // 2
            odd_lanes += lanes[2 * half :]
            lanes = [combine(a, b) for a, b in zip(lanes[:half], lanes[half : 2 * half], strict=True)]
        for odd in odd_lanes:
            lanes = [combine(lanes[0], odd)]
        return lanes[0]


def _operands(e: Expr) -> Sequence[Expr]:
    """The operands that may be vectors although the value is a scalar."""
    match e:
        case k.Reduce() | k.Extract() | k.Bitcast():
            return (e.a,)
        case k.Shuffle():
            return e.a, e.b
    return ()


def _initializer(lanes: Sequence[str]) -> str:
    return f"{{{', '.join(lanes)}}}"


__all__ = ["VectorFunction", "print_vectors", "vector_types"]
