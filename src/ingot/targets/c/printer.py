"""Scalar kernel IR -> C99.

    Store(y, i, Binary(add, Load(x, i), 1))   ->   const float t0 = x[i];  const float t1 = t0 + 1.0f;  y[i] = t1;

Every value is a C constant, once per statement: expressions share values, and only statements are ordered. 16-bit
floats are computed as `float` and rounded after each operation. Integers wrap, so they are computed unsigned; but
those that fit 32 bits by the ranges of loops are `ig_index`, which has 32 bits on machines of 32 bits. Four bytes that
a dot product takes are a word (uint32_t), the first in its lowest bits; sixteen are `ig_bytes16`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Kernel
from ingot.ir.kernel.math.expand import expand
from ingot.ir.kernel.verify import children
from ingot.ir.types import DType, boolean, f32, f64, i64, truncation_type, u64
from ingot.support.errors import CompileError
from ingot.targets.c.ranges import Ranges

NARROW_FLOATS = ("f16", "bf16")
_INFIX = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_WRAPPING = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<", "lshr": ">>"}

_EXACT = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%"}  # of indices, which do not wrap


def word_type(dtype: DType, lanes: int) -> str:
    """Return the C type of several bytes that are the operand of a dot product, "" for other values."""
    return {4: "uint32_t", 16: "ig_bytes16"}.get(lanes, "") if dtype.bits == 8 else ""


def is_word(dtype: DType, lanes: int) -> bool:
    return word_type(dtype, lanes) != ""


def _reads_memory(e: Expr) -> bool:
    return isinstance(e, k.Load | k.Gather) or any(map(_reads_memory, children(e)))


def _count(mask: Expr) -> int:
    """Return n of the mask of the first n lanes."""
    match mask:
        case k.Binary(fn="lt", a=k.Ramp(base=k.Lit(value=0), step=1), b=k.Lit(value=n) | k.Splat(a=k.Lit(value=n))):
            return int(n)
    raise CompileError("C: a mask of bytes", expected="their first ones", got=type(mask).__name__)


def memory_type(dtype: DType) -> str:
    """Return the prelude's type of an element in memory. Raises CompileError for types that C does not have."""
    if dtype.name in NARROW_FLOATS or dtype == boolean:
        return "ig_u16" if dtype.name in NARROW_FLOATS else "ig_u8"
    if dtype.bits not in (8, 16, 32, 64) or (dtype.is_float and dtype.bits < 32):
        raise CompileError(f"C has no type for {dtype}", expected="f16 to f64, bf16, bool or i8 to u64")
    return f"ig_{dtype.name}"


def value_type(dtype: DType) -> str:
    """Return the C type of a value during computation."""
    if dtype.is_float:
        return "double" if dtype == f64 else "float"
    memory_type(dtype)
    return "int" if dtype == boolean else f"{'u' * (dtype.kind == 'u')}int{dtype.bits}_t"


def literal(value: float | int | bool, dtype: DType) -> str:
    if not dtype.is_float:
        n = int(value)
        if dtype == boolean:
            return str(int(bool(n)))
        if dtype.kind == "u":
            return f"{n}ULL" if dtype.bits == 64 else f"{n}U"
        if n == -(1 << 63):
            return "INT64_MIN"
        if dtype.bits == 64 and abs(n) >= 1 << 31:
            return f"INT64_C({n})"
        return "INT32_MIN" if n == -(1 << 31) else f"{n}"
    x = float(np.asarray(value, dtype.numpy))
    if not math.isfinite(x):
        bits = {"inf": 0x7F800000, "-inf": 0xFF800000}.get(str(x), 0x7FC00000)
        wide = {"inf": 0x7FF << 52, "-inf": 0xFFF << 52}.get(str(x), 0x7FF8 << 48)
        return f"ig_float64(0x{wide:x}ULL)" if dtype == f64 else f"ig_float32(0x{bits:x}U)"
    return repr(x) if dtype == f64 else f"{np.float32(x)}f"


def print_kernel(kernel: Kernel) -> str:
    """Print a C function `static void NAME(params as void *..., dims..., chunk, scratch)`."""
    return Function(expand(kernel)).text()


def name_of(text: str) -> str:
    """Return a name that is neither a C keyword nor a function of the prelude."""
    return "v_" + "".join(c if c.isalnum() and c.isascii() else "_" for c in text)


def round_to(text: str, dtype: DType) -> str:
    """Round a value that was computed as `float` to its type."""
    return f"ig_{dtype.name}_to(ig_{dtype.name}_from({text}))" if dtype.name in NARROW_FLOATS else text


def accumulated_product(s: k.Store) -> tuple[Expr, Expr] | None:
    """Return the factors of a store of accumulator + product to the same accumulator, None for other stores.

    Such a product needs no exact multiply-add, which costs twenty operations without the instruction: long sums make no
    promise about the rounding of each term.
    """
    match s.value:
        case k.Fma(dtype=dtype, a=a, b=b, c=k.Load(buffer=s.buffer, index=s.index, mask=None)) if (
            dtype in (f32, f64) and s.buffer.space == "register"
        ):
            return a, b
    return None


class Function:
    """Prints a scalar kernel. `vectors.VectorFunction` prints kernels with vectors."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.depth = 1
        self.n_temps = 0
        self.tables: list[str] = []
        self.table_names: dict[tuple[str, str], str] = {}  # by (type, text)
        self.names: dict[Buffer, str] = {}
        self.names_of_values: dict[int, tuple[Expr, str]] = {}
        self.ranges = Ranges()
        self.definitions: dict[str, Expr] = {}

    def text(self) -> str:
        kernel = self.kernel
        params: list[str] = []
        for b in kernel.params:
            const = "" if b.writable else "const "
            kind, name = memory_type(b.dtype), name_of(b.name)
            params.append(f"{const}void *p{name}")
            self.names[b] = name
            self.line(f"{const}{kind} *{name} = ({const}{kind} *)p{name};")
        params += [f"int64_t {name_of(v.name)}" for v in kernel.dims]
        chunk, count = name_of(kernel.chunk.name), self.ranges.of(kernel.chunks)
        if count is not None and kernel.rounds == k.Lit(i64, 1, 1):
            self.ranges.bind(kernel.chunk, (0, max(0, count[1] - 1)))
        params += [f"{self.scalar_type(kernel.chunk)} {chunk}", "void *scratch"]
        parameters = [*self.names.values(), *(name_of(v.name) for v in kernel.dims), chunk, "scratch"]
        self.line(" ".join(f"(void){name};" for name in parameters))
        self.body(kernel.body)
        head = f"static void {kernel.name}({', '.join(params)}) {{"
        return "\n".join([*self.tables, head, *self.lines, "}", ""])

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def temp(self, kind: str, text: str) -> str:
        name = f"t{self.n_temps}"
        self.n_temps += 1
        self.line(f"const {kind} {name} = {text};")
        return name

    # Statements

    def body(self, body: k.Body) -> None:
        for s in body:
            self.names_of_values = {}
            self.statement(s)
        self.names_of_values = {}

    def block(self, body: k.Body) -> None:
        self.depth += 1
        self.body(body)
        self.depth -= 1

    def statement(self, s: k.Stmt) -> None:
        match s:
            case k.For():
                self.loop_statement(s)
            case k.If() if (condition := self.ranges.constant(s.cond)) is not None:
                for inner in s.then if condition else s.orelse:
                    self.names_of_values = {}
                    self.statement(inner)
            case k.If():
                self.line(f"if ({self.value(s.cond)} != 0) {{")
                self.block(s.then)
                if s.orelse:
                    self.line("} else {")
                    self.block(s.orelse)
                self.line("}")
            case k.Let():
                value, name = self.value(s.value), name_of(s.var.name)
                self.definitions[s.var.name] = s.value
                self.ranges.bind(s.var, self.ranges.of(s.value))
                if self.ranges.constant(s.var) is None:
                    self.line(f"const {self.scalar_type(s.var)} {name} = {value};")
                    self.line(f"(void){name};")
            case k.Store() if is_word(s.value.dtype, s.value.lanes) and s.value.lanes == 4 and s.mask is None:
                self.line(f"ig_store4(&{self.names[s.buffer]}[{self.value(s.index)}], {self.value(s.value)});")
            case k.Store():
                element = f"{self.names[s.buffer]}[{self.value(s.index)}]"
                factors = accumulated_product(s)
                if factors is None:
                    value = self.value(s.value)
                else:
                    a, b = map(self.value, factors)
                    value = f"IG_ADD{s.value.dtype.bits}({a}, {b}, {element})"
                guard = "" if s.mask is None else f"if ({self.value(s.mask)} != 0) "
                self.line(f"{guard}{element} = {self.convert_stored(value, s.buffer)};")
            case k.Alloc():
                self.alloc(s.buffer)
            case k.Increment():
                counter = f"{self.names[s.buffer]}[{self.value(s.index)}]"
                self.line(f"const int64_t {name_of(s.var.name)} = {counter}; {counter} = {counter} + 1;")
            case k.Comment():
                self.line(f"/* {s.text.replace('*/', '* /')} */")
            case k.Prefetch():
                pass
            case _:
                raise CompileError(f"C: statement {type(s).__name__}", expected="kernel IR of one lane")

    def loop_statement(self, s: k.For) -> None:
        name = name_of(s.var.name)
        begin, end = self.ranges.constant(s.begin), self.ranges.constant(s.end)
        if s.unroll and begin is not None and end is not None:
            for i in range(begin, end, s.step):
                self.ranges.bind(s.var, (i, i))
                self.line("{")
                self.block(s.body)
                self.line("}")
            return
        first, last = self.value(s.begin), self.value(s.end)
        self.ranges.bind(s.var, self.ranges.loop(s))
        if self.ranges.is_index(s.var):
            self.line(f"for (ig_index {name} = {first}; {name} < {last}; {name} += {s.step}) {{")
        else:
            self.line(f"for (int64_t {name} = {first}; {name} < {last}; {name} += {s.step}) {{")
        self.block(s.body)
        self.line("}")

    def alloc(self, b: Buffer) -> None:
        name = self.names[b] = name_of(b.name)
        match b.space:
            case "register":
                kind = word_type(b.dtype, b.lanes) or value_type(b.dtype)
                self.line(f"{kind} {name}[{b.size or 1}];")
            case "stack":
                self.line(f"{memory_type(b.dtype)} {name}[{b.size or 1}];")
            case _:
                kind = memory_type(b.dtype)
                self.line(f"{kind} *{name} = ({kind} *)(void *)((unsigned char *)scratch + {b.offset});")

    def convert_stored(self, value: str, b: Buffer) -> str:
        if b.space != "register" and b.dtype.name in NARROW_FLOATS:
            return f"ig_{b.dtype.name}_from({value})"
        return f"({memory_type(b.dtype)})({value})" if b.dtype == boolean and b.space != "register" else value

    # Values

    def value(self, e: Expr) -> str:
        """Return the name of a value, printing it first if this statement has not used it yet."""
        if e.lanes != 1 and not is_word(e.dtype, e.lanes):
            raise CompileError("C: a value of several lanes", expected="kernel IR of one lane", got=type(e).__name__)
        constant = self.ranges.constant(e)
        if isinstance(e, k.Lit) or constant is not None:
            text = literal(e.value if isinstance(e, k.Lit) else int(constant or 0), e.dtype)
            return f"({text})" if text.startswith("-") else text
        if isinstance(e, k.Var):
            return name_of(e.name)
        named = self.names_of_values.get(id(e))
        if named is None:
            text = self.compute(e)
            kind, text = self.scalar_type(e), round_to(text, e.dtype)
            if kind == "ig_index" and not all(map(self.ranges.is_index, children(e))):
                text = f"(ig_index)({text})"
            named = self.names_of_values[id(e)] = e, self.temp(kind, text)
        return named[1]

    def scalar_type(self, e: Expr) -> str:
        if word := word_type(e.dtype, e.lanes):
            return word
        return "ig_index" if self.ranges.is_index(e) else value_type(e.dtype)

    def compute(self, e: Expr) -> str:
        match e:
            case k.Load() if is_word(e.dtype, e.lanes) and e.buffer.space != "register":
                address = f"&{self.names[e.buffer]}[{self.value(e.index)}]"
                return (
                    f"ig_load{e.lanes}({address})" if e.mask is None else f"ig_load_part({address}, {_count(e.mask)})"
                )
            case k.Load() | k.Gather():
                return self.load(e)
            case k.Cast() if (factors := self.rounded_product(e)) is not None:
                return f"ig_mul_high({', '.join(map(self.value, factors))})"
            case k.Binary(fn="min") if (clamped := self.clamped_byte(e)) is not None:
                return f"ig_clamp_i8({self.value(clamped)})"
            case k.Dot() if is_word(e.a.dtype, e.a.lanes):
                name = f"ig_dot{e.a.lanes}_{e.a.dtype}_{e.b.dtype}"
                return f"{name}({self.value(e.a)}, {self.value(e.b)}, {self.value(e.c)})"
            case k.Bitcast() if e.dtype.bits == 32 and is_word(e.a.dtype, e.a.lanes):
                return f"{'ig_float32' if e.dtype == f32 else f'({value_type(e.dtype)})'}({self.value(e.a)})"
            case k.Bitcast() if is_word(e.dtype, e.lanes):
                return f"{'ig_bits32' if e.a.dtype == f32 else '(uint32_t)'}({self.value(e.a)})"
            case k.Binary() if e.fn in _EXACT and all(map(self.ranges.is_index, (e, e.a, e.b))):
                return f"{self.value(e.a)} {_EXACT[e.fn]} {self.value(e.b)}"
            case k.Unary():
                return self.unary(e.fn, self.value(e.a), e.dtype)
            case k.Binary():
                return self.binary(e.fn, self.value(e.a), self.value(e.b), e.a.dtype)
            case k.Fma():
                return self.multiply_add(e, self.value)
            case k.Select():
                cond, a, b = self.value(e.cond), self.value(e.a), self.value(e.b)
                return f"{cond} != 0 ? {a} : {b}"
            case k.Cast():
                return self.cast(self.value(e.a), e.a.dtype, e.dtype)
            case k.Bitcast():
                return self.bitcast(self.value(e.a), e.a.dtype, e.dtype)
            case k.Splat() | k.Reduce():
                return self.value(e.a)
            case k.Extract() if e.a.lanes == 1:
                return self.value(e.a)
            case k.Ramp():
                return self.value(e.base)
            case k.Either():
                return self.value(e.b)
            case k.Lookup():
                return self.lookup(e, self.value(e.index))
        raise CompileError(f"C: value {type(e).__name__}", expected="kernel IR of one lane")

    def defined(self, e: Expr) -> Expr:
        """Return the expression that a variable is bound to if it reads no memory, which may have changed since; other
        expressions as they are."""
        while isinstance(e, k.Var) and e.name in self.definitions and not _reads_memory(self.definitions[e.name]):
            e = self.definitions[e.name]
        return e

    def rounded_product(self, e: k.Cast) -> tuple[Expr, Expr] | None:
        """Return x and y of the i32 (x * y + 2^31) >> 32 of two i32 in 64 bits, None for other values."""
        match e.dtype, self.defined(e.a):
            case DType(name="i32"), k.Binary(fn="ashr", a=a, b=bits) if self.ranges.constant(bits) == 32:
                total = self.defined(a)
            case _:
                return None
        match total:
            case k.Binary(fn="add", a=a, b=half) if self.ranges.constant(half) == 1 << 31:
                product = self.defined(a)
            case _:
                return None
        match product:
            case k.Binary(fn="mul", a=a, b=b):
                match self.defined(a), self.defined(b):
                    case k.Cast(a=x), k.Cast(a=y) if x.dtype == y.dtype == e.dtype:
                        return x, y
        return None

    def clamped_byte(self, e: k.Binary) -> Expr | None:
        """Return x of the i32 min(max(x, -128), 127), None for other values."""
        inner = self.defined(e.a)
        match e.b, inner:
            case k.Lit(value=127), k.Binary(fn="max", a=x, b=low) if e.dtype.name == "i32":
                low = self.defined(low)
                return x if isinstance(low, k.Lit) and low.value == -128 else None
        return None

    def multiply_add(self, e: k.Fma, operand: Callable[[Expr], str]) -> str:
        a, b, c = operand(e.a), operand(e.b), operand(e.c)
        if e.dtype.is_float:
            return f"ig_fma{64 if e.dtype == f64 else 32}({a}, {b}, {c})"
        a, b, c = (self.as_unsigned(x, e.dtype) for x in (a, b, c))
        return self.wrap(f"{a} * {b} + {c}", e.dtype)

    def lookup(self, e: k.Lookup, index: str) -> str:
        entries = [literal(v, e.dtype) for v in e.table]
        if any("(" in x for x in entries):
            raise CompileError("C: a table", expected="finite numbers", got="others")
        kind, body = "double" if e.dtype == f64 else "float", ", ".join(entries)
        table = self.table_names.get((kind, body))
        if table is None:
            table = self.table_names[kind, body] = f"{self.kernel.name}_table{len(self.tables)}"
            self.tables.append(f"static const {kind} {table}[{len(entries)}] = {{{body}}};")
        return f"{table}[(uint64_t){index} & {len(entries) - 1}U]"

    def load(self, e: k.Load | k.Gather) -> str:
        return self.load_text(e, self.value(e.index), "" if e.mask is None else self.value(e.mask))

    def load_text(self, e: k.Load | k.Gather, index: str, mask: str) -> str:
        b = e.buffer
        text = f"{self.names[b]}[{index}]"
        if b.space != "register":
            if b.dtype.name in NARROW_FLOATS:
                text = f"ig_{b.dtype.name}_to({text})"
            elif b.dtype == boolean:
                text = f"{text} != 0"
        return f"{mask} != 0 ? {text} : 0" if mask else text

    @staticmethod
    def as_unsigned(text: str, dtype: DType) -> str:
        """Cast to an unsigned integer that C does not promote to a signed one."""
        return f"({'uint64_t' if dtype.bits == 64 else 'uint32_t'}){text}"

    @staticmethod
    def wrap(text: str, dtype: DType) -> str:
        return f"({value_type(dtype)})({text})" if dtype != boolean else f"(({text}) & 1U) != 0"

    def unary(self, fn: str, a: str, dtype: DType) -> str:
        width = 64 if dtype == f64 else 32
        if dtype.is_float:
            return f"-{a}" if fn == "neg" else f"ig_{fn}{width}({a})"
        match fn:
            case "neg":
                return self.wrap(f"0U - {self.as_unsigned(a, dtype)}", dtype)
            case "abs":
                return self.wrap(f"{a} < 0 ? 0U - {self.as_unsigned(a, dtype)} : {self.as_unsigned(a, dtype)}", dtype)
            case "not":
                return f"{a} == 0" if dtype == boolean else self.wrap(f"~{self.as_unsigned(a, dtype)}", dtype)
        pattern = f"(uint64_t)(uint{dtype.bits}_t){a}"
        if fn == "popcnt" and dtype.bits <= 32:
            return f"({value_type(dtype)})ig_popcnt32((uint{dtype.bits}_t){a})"
        width_argument = f", {dtype.bits}" if fn == "clz" else ""
        return f"({value_type(dtype)})ig_{fn}({pattern}{width_argument})"

    def binary(self, fn: str, a: str, b: str, dtype: DType) -> str:
        if fn in _INFIX:
            return f"{a} {_INFIX[fn]} {b}"
        if dtype.is_float:
            width = 64 if dtype == f64 else 32
            match fn:
                case "add" | "sub" | "mul" | "div":
                    return f"{a} {dict(_WRAPPING, div='/')[fn]} {b}"
                case "minnum" | "maxnum":
                    return f"{a} {'<' if fn == 'minnum' else '>'} {b} ? {a} : {b}"
            return f"ig_{fn}{width}({a}, {b})"
        match fn:
            case "min" | "max":
                return f"{a} {'<' if fn == 'min' else '>'} {b} ? {a} : {b}"
            case "div" | "rem":
                if dtype.kind == "u":
                    return self.wrap(f"{a} {'/' if fn == 'div' else '%'} {b}", dtype)
                return f"({value_type(dtype)})ig_{'div' if fn == 'div' else 'mod'}({a}, {b})"
            case "ashr":
                return self.wrap(f"{a} >> {b}", dtype)
            case "lshr":
                return self.wrap(f"(uint{dtype.bits}_t){a} >> {b}", dtype)
            case "shl":
                return self.wrap(f"{self.as_unsigned(a, dtype)} << {b}", dtype)
        return self.wrap(f"{self.as_unsigned(a, dtype)} {_WRAPPING[fn]} {self.as_unsigned(b, dtype)}", dtype)

    def cast(self, a: str, source: DType, dtype: DType) -> str:
        if dtype == boolean:
            return f"{a} != 0"
        if source.is_float and not dtype.is_float:
            if dtype == u64:
                return f"ig_to_u64((double){a})"
            return f"({value_type(dtype)})ig_to_{truncation_type(dtype).name}((double){a})"
        return f"({value_type(dtype)}){a}"

    def bitcast(self, a: str, source: DType, dtype: DType) -> str:
        if source.is_float:
            pattern = f"ig_{source.name}_from({a})" if source.name in NARROW_FLOATS else f"ig_bits{source.bits}({a})"
        else:
            pattern = f"(uint{source.bits}_t){a}"
        if not dtype.is_float:
            return f"({value_type(dtype)})({pattern})"
        return f"ig_{dtype.name}_to({pattern})" if dtype.name in NARROW_FLOATS else f"ig_float{dtype.bits}({pattern})"


__all__ = [
    "NARROW_FLOATS",
    "Function",
    "accumulated_product",
    "literal",
    "memory_type",
    "name_of",
    "print_kernel",
    "round_to",
    "value_type",
]
