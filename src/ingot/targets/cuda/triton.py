"""Print kernel IR of tiles as a Triton kernel. Equal kernels have equal texts.

    kernel pointwise(in0: param f32*, out0: param f32* writable) for chunk in 0..98:        def pointwise(in0, out0):
      i = chunk*1024 + range(1, 1024)                                                          chunk = ...program_id(0)
      out0[i if i < 100000] = in0[i if i < 100000]                                     ->      i = chunk * 1024 + ...

A chunk is a program. Values are scalars or blocks of rank 2; registers are variables, which loops carry. An expression
that a statement uses twice is assigned to a variable. Longer operations are functions of `prelude.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from math import isfinite

from ingot.ir import kernel as k
from ingot.ir.kernel.math.expand import expand
from ingot.ir.kernel.verify import children
from ingot.ir.types import DType, bf16, boolean, f8e4m3fn, f8e5m2, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError
from ingot.targets.cuda.lanes import lanes_text
from ingot.targets.cuda.narrow import NARROW_FORMATS, lower_narrow_floats
from ingot.targets.cuda.rounds import PROGRAM, ROUND, split_rounds

TYPES: dict[DType, str] = {
    f16: "float16", bf16: "bfloat16", f32: "float32", f64: "float64", i8: "int8", i16: "int16", i32: "int32",
    i64: "int64", u8: "uint8", u16: "uint16", u32: "uint32", u64: "uint64", boolean: "int1",
    f8e4m3fn: "float8e4nv", f8e5m2: "float8e5",
}  # fmt: skip
_POINTER_TYPES = {
    f16: "fp16", bf16: "bf16", f32: "fp32", f64: "fp64", boolean: "i8", f8e4m3fn: "fp8e4nv", f8e5m2: "fp8e5",
    **{d: d.name for d in (i8, i16, i32, i64, u8, u16, u32, u64)},
}  # fmt: skip
_UNSUPPORTED_FIX = "compile for a CPU, or convert such values outside of the model"
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
Functions = frozenset[tuple[str, DType]]
# Functions of libdevice that meet the bounds of docs/reference/ops.md, as measured on an H100 with denormal numbers.
EXACT_FUNCTIONS: Functions = frozenset({
    *((fn, f32) for fn in ("expm1", "log", "log1p", "tanh", "erf", "sin", "cos", "asin", "atan")),
    *((fn, f64) for fn in (
        "exp", "expm1", "log", "tanh", "erf", "tan", "asin", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "cbrt",
        "pow", "atan2",
    )),
})  # fmt: skip
# Functions of `prelude.py`: hardware approximations for narrow results, or with a correction.
_PRELUDE_FUNCTIONS = frozenset({("exp2_narrow", f32), ("quotient", f32)})
_F32_FUNCTIONS = ("div", "rem")  # of narrower floats, computed in f32


@dataclass(frozen=True)
class Source:
    """The text of a Triton kernel. parameters: (name, Triton's type, alignment in bytes, is written); alignment 0 if
    unknown or not an address. hints: of the kernel. matrices: (rows, columns, row stride, offset) in elements, of the
    parameters that are matrices, in order."""

    name: str
    text: str
    parameters: tuple[tuple[str, str, int, bool], ...]
    hints: tuple[tuple[str, int], ...] = ()
    matrices: tuple[tuple[int, int, int, int], ...] = ()


def print_kernel(kernel: k.Kernel, functions: Functions = EXACT_FUNCTIONS) -> Source:
    """Print `kernel`. functions: those of a library that it may call, by name and type. Raises CompileError for vectors
    without a tile and for scratch memory, which Triton does not have."""
    has_rounds = kernel.rounds != k.integer(1)
    if kernel.scratch_bytes or (has_rounds and kernel.barrier is None):
        raise CompileError(f"kernel {kernel.name}", expected="no scratch memory, and rounds that meet", got="others")
    kernel = expand(lower_narrow_floats(kernel), partial(_has_function, functions))
    name = _name(kernel.name)
    parameters = (
        *((_name(b.name), _memory_type(b), 0 if b.matrix else b.align, b.writable) for b in kernel.params),
        *((_name(v.name), "i64", 0, False) for v in kernel.dims),
    )
    lines = ["@triton.jit", f"def {name}({', '.join(p for p, *_ in parameters)}):"]
    is_narrow = ("narrow", 1) in kernel.hints
    writer = _Writer(lines, "" if is_narrow else ".to(tl.int64)")
    writer.line(f"{_name((PROGRAM if has_rounds else kernel.chunk).name)} = tl.program_id(0){writer.index_cast}")
    if kernel.barrier is not None and has_rounds:
        writer.rounds(kernel, kernel.barrier)
    else:
        writer.body(kernel.body)
    boxes = [b.matrix for b in kernel.params if b.matrix is not None]
    matrices = tuple((m.rows, m.columns, m.stride, m.offset) for m in boxes)
    return Source(name, "\n".join(lines) + "\n", parameters, kernel.hints, matrices)


def _memory_type(b: k.Buffer) -> str:
    element = type_name(b.dtype, _POINTER_TYPES)
    return f"*{element}" if b.matrix is None else f"tensordesc<{element}{list(b.matrix.tile)}>"


def type_name(dtype: DType, names: Mapping[DType, str] = TYPES) -> str:
    """Return Triton's name of a type. Raises CompileError for a type that kernels do not support."""
    if dtype not in names:
        supported = ", ".join(dict.fromkeys(d.name for d in (*TYPES, *NARROW_FORMATS)))
        raise CompileError(
            "a kernel for NVIDIA GPUs", expected=f"values of {supported}", got=dtype.name, fix=_UNSUPPORTED_FIX
        )
    return names[dtype]


def _has_function(functions: Functions, call: k.Call) -> bool:
    """Whether to call a function instead of expanding it. With a literal operand, as in x^2, the expansion of a
    library's is shorter."""
    if (call.fn, call.dtype) in _PRELUDE_FUNCTIONS:
        return True
    return (call.fn, call.dtype) in functions and not any(isinstance(a, k.Lit) for a in call.args)


def _name(name: str) -> str:
    """Return a Python identifier: local variables of kernel IR begin with a mark that Python does not allow."""
    identifier = re.sub(r"\W", "_", name)
    return f"v{identifier}" if identifier[:1].isdigit() or identifier.startswith("_") else identifier


@dataclass
class _Writer:
    """Prints statements. index_cast: the suffix that converts Triton's 32-bit positions to the type of indices.
    counters: the current values of unrolled loops' variables. n_shared: variables made for shared expressions."""

    lines: list[str]
    index_cast: str
    indent: str = "    "
    counters: dict[str, int] = field(default_factory=dict)
    n_shared: int = 0

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def nested(self, body: k.Body) -> None:
        indent, self.indent = self.indent, self.indent + "    "
        if not body:
            self.line("pass")
        self.body(body)
        self.indent = indent

    def body(self, body: k.Body) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: k.Stmt) -> None:
        match s:
            case k.For():
                self.loop(s)
            case k.If():
                (cond,) = self.values(s.cond)
                self.line(f"if {cond}:")
                self.nested(s.then)
                if s.orelse:
                    self.line("else:")
                    self.nested(s.orelse)
            case k.Let():
                (value,) = self.values(s.value)
                self.line(f"{_name(s.var.name)} = {value}")
            case k.Store():
                self.store(s)
            case k.Increment():
                (at,) = self.values(s.index)
                self.line("tl.debug_barrier()")  # one thread increments: the others' writes must be visible before
                self.line(f"{_name(s.var.name)} = tl.atomic_add({_name(s.buffer.name)} + {at}, 1, sem='acq_rel')")
            case k.AwaitStores():
                self.line("tl.debug_barrier()")
            case k.AwaitProducers():
                self.line("await_producers()")
            case k.ReleaseConsumers():
                self.line("release_consumers()")
            case k.Comment():
                for text in s.text.splitlines():
                    self.line(f"# {text}")
            case k.Alloc() if s.buffer.space == "register":
                pass  # a variable is defined by its first store
            case k.Prefetch():
                pass
            case _:
                raise CompileError(f"{type(s).__name__} in a kernel of blocks", expected="registers and params alone")

    def loop(self, s: k.For) -> None:
        if s.unroll:
            begin, end = (self.literal_index(e) for e in (s.begin, s.end))
            for i in range(begin, end, s.step):
                self.counters[s.var.name] = i
                self.body(s.body)
            del self.counters[s.var.name]
            return
        begin, end = self.values(s.begin, s.end)
        hints = ", flatten=True" * s.flatten + f", num_stages={s.stages}" * (s.stages > 0)
        self.line(f"for {_name(s.var.name)} in tl.range({begin}, {end}, {s.step}{hints}):")
        self.nested(s.body)

    def rounds(self, kernel: k.Kernel, meeting: k.Buffer) -> None:
        prologue, round_body = split_rounds(kernel)
        self.body(prologue)
        count, programs = self.values(kernel.rounds, kernel.chunks)
        self.line(f"for {ROUND.name} in tl.range(0, {count}):")
        self.nested(round_body)
        self.line(f"    meet({_name(meeting.name)}, {ROUND.name}, {count}, {programs})")

    def store(self, s: k.Store) -> None:
        if s.buffer.space == "register":
            value = _typed_literal(s.value) if isinstance(s.value, k.Lit) else self.values(s.value)[0]
            self.line(f"{self.register(s.buffer, s.index)} = {value}")
            return
        operands = self.values(*((s.index, s.value) if s.mask is None else (s.index, s.value, s.mask)))
        if isinstance(s.index, k.Lit) and s.index.tile is not None:
            operands[0] = _typed_literal(s.index)
        value = f"({operands[1]}).to(tl.int8)" if s.value.dtype == boolean else operands[1]
        mask = f", mask={operands[2]}" if s.mask is not None else ""
        self.line(f"tl.store({_name(s.buffer.name)} + {operands[0]}, {value}{mask})")

    def register(self, b: k.Buffer, index: k.Expr) -> str:
        slot = self.literal_index(index)
        return _name(b.name) if b.size == 1 else f"{_name(b.name)}_{slot}"

    def literal_index(self, e: k.Expr) -> int:
        """Evaluate an index of registers, which is constant inside unrolled loops."""
        match e:
            case k.Lit():
                return int(e.value)
            case k.Var() if e.name in self.counters:
                return self.counters[e.name]
            case k.Binary() if e.fn in ("add", "sub", "mul"):
                a, b = self.literal_index(e.a), self.literal_index(e.b)
                return a + b if e.fn == "add" else a - b if e.fn == "sub" else a * b
        raise CompileError("the index of a register", expected="a literal", got=type(e).__name__)

    def assign(self, text: str) -> str:
        """Assign a value to a new variable; return its name."""
        name = f"shared{self.n_shared}"
        self.n_shared += 1
        self.line(f"{name} = {text}")
        return name

    def values(self, *roots: k.Expr) -> list[str]:
        """Return the texts of `roots`; expressions that they share are assigned to variables first."""
        counts: dict[int, int] = {}
        order: list[k.Expr] = []
        for e in roots:
            _count(e, counts, order)
        names: dict[int, str] = {}
        for e in order:
            if counts[id(e)] > 1 and not isinstance(e, k.Lit | k.Var):
                names[id(e)] = self.assign(_Text(self, names).of(e))
        text = _Text(self, names)
        return [text.of(e) for e in roots]


def _count(e: k.Expr, counts: dict[int, int], order: list[k.Expr]) -> None:
    counts[id(e)] = counts.get(id(e), 0) + 1
    if counts[id(e)] > 1:
        return
    for c in _printed_operands(e):
        _count(c, counts, order)
    order.append(e)


def _printed_operands(e: k.Expr) -> Sequence[k.Expr]:
    """The operands of `e` that are printed."""
    return (e.b,) if isinstance(e, k.Either) else children(e)


@dataclass
class _Text:
    writer: _Writer
    names: dict[int, str]

    def of(self, e: k.Expr) -> str:
        return self.names.get(id(e)) or self.write(e)

    def write(self, e: k.Expr) -> str:
        if e.lanes > 1 and e.tile is None:
            raise CompileError(f"a vector of {e.lanes} lanes", expected="a scalar or a tile")
        match e:
            case k.Lit():
                return _literal(e)
            case k.Var():
                counter = self.writer.counters.get(e.name)
                return _name(e.name) if counter is None else str(counter)
            case k.Unary():
                return _unary(e, self.tensor(e.a))
            case k.Binary() if e.fn in ("ashr", "lshr"):
                return _shift(e, self.tensor(e.a), self.tensor(e.b))
            case k.Binary(fn="or", a=k.Binary(fn="and", a=x, b=k.Lit() as mask), b=k.Lit() as bits) if e.dtype == u32:
                return f"masked_or({', '.join(map(self.tensor, (x, mask, bits)))})"
            case k.Binary():
                return _binary(e, *self.operands(e, e.a, e.b))
            case k.Fma():
                a, b, c = self.operands(e, e.a, e.b, e.c)
                return f"tl.fma({a}, {b}, {c})" if e.dtype in (f32, f64) else f"({a} * {b} + {c})"
            case k.Call():
                function = e.fn if (e.fn, e.dtype) in _PRELUDE_FUNCTIONS else f"libdevice.{e.fn}"
                return f"{function}({', '.join(self.tensor(a) for a in e.args)})"
            case k.Select():
                return f"tl.where({', '.join(self.operands(e, e.cond, e.a, e.b))})"
            case k.Cast():
                return _cast(e, self.tensor(e.a))
            case k.Bitcast():
                return f"({self.tensor(e.a)}).to(tl.{type_name(e.dtype)}, bitcast=True)"
            case k.Splat():
                return f"tl.broadcast_to({self.tensor(e.a)}, {e.tile})"
            case k.Range():
                return self.range(e)
            case k.Spread():
                return f"tl.broadcast_to({self.of(e.a)}, {e.tile})"
            case k.Load() | k.Gather():
                return self.load(e)
            case k.TileLoad():
                coordinates = ", ".join(f"tl.cast({self.of(coordinate)}, tl.int32)" for coordinate in (e.row, e.column))
                return f"{_name(e.buffer.name)}.load([{coordinates}])"
            case k.Reduce():
                return f"tl.reduce({self.of(e.a)}, None, fold_{e.fn})"
            case k.ReduceAxis():
                return f"tl.reduce({self.of(e.a)}, {e.axis}, fold_{e.fn}, keep_dims=True)"
            case k.ScanAxis():
                return f"tl.associative_scan({self.of(e.a)}, {e.axis}, fold_{e.fn})"
            case k.Transposed():
                return f"tl.trans({self.of(e.a)})"
            case k.TileProduct():
                return self.product(e)
            case k.QuadProduct() | k.LaneSums():
                return lanes_text(e, self.of, self.writer.assign)
            case k.Either():
                return self.of(e.b)
            case k.Lookup():
                return self.lookup(e)
        raise CompileError(f"{type(e).__name__} in a kernel of blocks", expected="an operation that Triton has")

    def tensor(self, e: k.Expr) -> str:
        """As `of`, but with an explicit type for literals."""
        return _typed_literal(e) if isinstance(e, k.Lit) else self.of(e)

    def operands(self, e: k.Expr, *operands: k.Expr) -> list[str]:
        """Return the texts of operands of one tile. Broadcasts are omitted, as Triton broadcasts operands itself."""
        bare = [x.a if isinstance(x, k.Spread | k.Splat) and id(x) not in self.names else x for x in operands]
        tiles = [x.tile for x in bare if x.tile is not None and not isinstance(x, k.Lit)]  # a literal has no shape
        if e.tile is None or not tiles or (max(t[0] for t in tiles), max(t[1] for t in tiles)) != e.tile:
            bare = list(operands)
        return [self.of(x) for x in bare]

    def load(self, e: k.Load | k.Gather) -> str:
        if e.buffer.space == "register":
            return self.writer.register(e.buffer, e.index)
        other = (
            "0" if e.dtype not in NARROW_FORMATS else _typed_literal(k.Lit(e.dtype, 1, 0))
        )  # Triton would convert a plain number
        mask = f", mask={self.operands(e, e.mask, e.index)[0]}, other={other}" if e.mask is not None else ""
        text = f"tl.load({_name(e.buffer.name)} + {self.offset(e.index)}{mask})"
        return f"({text} != 0)" if e.dtype == boolean else text

    def offset(self, index: k.Expr) -> str:
        """An index behind an address. Its literal is added to the address, where the hardware adds it for nothing."""
        match index:
            case k.Binary(fn="add", a=a, b=k.Lit() as literal) if id(index) not in self.names:
                return f"{self.tensor(a)} + {self.of(literal)}"
        return self.of(index) if index.tile is None else self.tensor(index)

    def lookup(self, e: k.Lookup) -> str:
        """A tree of selects by the bits of the index, as Triton has no tables."""
        index = self.writer.assign(self.of(e.index))

        def tree(low: int, count: int) -> str:
            if count == 1:
                return _typed_literal(k.Lit(e.dtype, e.lanes, e.table[low], tile=e.tile))
            half = count // 2
            return f"tl.where(({index} & {half}) != 0, {tree(low + half, half)}, {tree(low, half)})"

        return tree(0, len(e.table))

    def range(self, e: k.Range) -> str:
        if e.tile is None:
            raise CompileError("positions in a line", expected="a column or a row")
        subscript = "[None, :]" if e.tile[0] == 1 else "[:, None]"
        return f"tl.arange(0, {e.lanes}){subscript}{self.writer.index_cast}"

    def product(self, e: k.TileProduct) -> str:
        precision = f', input_precision="{"tf32" if e.tf32 else "ieee"}"' if e.a.dtype == f32 else ""
        a, b, c = self.tensor(e.a), self.tensor(e.b), self.tensor(e.c)
        if e.a.dtype in NARROW_FORMATS or e.is_apart:  # Triton would join the sum with a product without that argument
            assert e.a.tile is not None
            return f"({c} + tl.dot({a}, {b}, max_num_imprecise_acc={e.a.tile[1]}))"
        return f"tl.dot({a}, {b}, {c}{precision}, out_dtype=tl.{type_name(e.dtype)})"


def _literal(e: k.Lit) -> str:
    """A plain number for types that Triton infers from the other operand, else a typed literal."""
    return _number(e) if e.dtype in (f32, i32, i64) else _typed_literal(e)


def _number(e: k.Lit) -> str:
    if isinstance(e.value, float) and not isfinite(e.value):
        return f'float("{e.value}")'
    return repr(e.value) if e.value >= 0 else f"({e.value!r})"


def _typed_literal(e: k.Lit) -> str:
    return f"tl.full({e.tile or ()}, {_number(e)}, tl.{type_name(e.dtype)})"


def _unary(e: k.Unary, a: str) -> str:
    wide = f"({a}).to(tl.float32)" if e.dtype in (f16, bf16) else a

    def call(fn: str) -> str:
        text = f"{fn}({wide})"
        return f"{text}.to(tl.{type_name(e.dtype)})" if e.dtype in (f16, bf16) else text

    match e.fn:
        case "neg":  # Triton computes 0 - x, which loses negative zero
            return f"({a} * -1.0).to(tl.{type_name(e.dtype)})" if e.dtype.is_float else f"(-({a}))"
        case "not":
            return f"(~({a}))" if e.dtype != boolean else f"(({a}) == 0)"
        case "abs":
            return f"tl.abs({a})"
        case "sqrt":
            return call("tl.sqrt_rn" if e.dtype != f64 else "libdevice.sqrt")
        case "floor" | "ceil":
            return call(f"tl.{e.fn}")
        case "round_even" | "trunc":
            return call("libdevice.rint" if e.fn == "round_even" else "libdevice.trunc")
        case "popcnt" | "clz":
            return _bits(e, a)
    raise CompileError(f"{e.fn} in a kernel of blocks", expected=", ".join(k.UNARY))


def _bits(e: k.Unary, a: str) -> str:
    width = 64 if e.dtype.bits == 64 else 32
    function = "popc" if e.fn == "popcnt" else "clz"
    text = f"libdevice.{function}(({a}).to(tl.uint{e.dtype.bits}, bitcast=True).to(tl.int{width}))"
    excess = f" - {width - e.dtype.bits}" if e.fn == "clz" and e.dtype.bits < width else ""
    return f"({text}{excess}).to(tl.{type_name(e.dtype)})"


def _binary(e: k.Binary, a: str, b: str) -> str:
    sign = _INFIX.get(e.fn)
    if sign is not None:
        return f"({a} {sign} {b})"
    if e.fn in ("min", "max"):
        nan = ", propagate_nan=tl.PropagateNan.ALL" if e.dtype.is_float else ""
        return f"tl.{e.fn}imum({a}, {b}{nan})"
    if e.fn in ("minnum", "maxnum"):  # b if a is NaN
        return f"tl.where({a} {'<' if e.fn == 'minnum' else '>'} {b}, {a}, {b})"
    if e.fn == "ldexp":
        return f"scaled_{e.dtype}({a}, {b})"
    if not e.dtype.is_float:
        return f"({a} {'//' if e.fn == 'div' else '%'} {b})"  # on blocks, both truncate towards zero
    if e.dtype in (f16, bf16) and e.fn in _F32_FUNCTIONS:
        wide = k.Binary(f32, e.lanes, e.fn, e.a, e.b, tile=e.tile)
        return f"{_binary(wide, f'({a}).to(tl.float32)', f'({b}).to(tl.float32)')}.to(tl.{type_name(e.dtype)})"
    if e.fn == "div":
        return f"tl.div_rn({a}, {b})" if e.dtype == f32 else f"({a} / {b})"
    return f"libdevice.{'fmod' if e.fn == 'rem' else e.fn}({a}, {b})"


def _shift(e: k.Binary, a: str, b: str) -> str:
    """Cast for the kind of shift: Triton's >> is arithmetic on signed types, logical on unsigned ones."""
    source_type, shift_type = type_name(e.dtype), f"{'int' if e.fn == 'ashr' else 'uint'}{e.dtype.bits}"
    if source_type == shift_type:
        return f"({a} >> {b})"
    a, b = (f"({x}).to(tl.{shift_type}, bitcast=True)" for x in (a, b))
    return f"({a} >> {b}).to(tl.{source_type}, bitcast=True)"


def _cast(e: k.Cast, a: str) -> str:
    to, source = type_name(e.dtype), e.a.dtype
    if e.dtype == boolean:
        return f"({a} != 0)"
    if source.is_float and e.dtype.is_integer:
        return _truncated(e, a)
    return f"({a}).to(tl.{to})"


def _truncated(e: k.Cast, a: str) -> str:
    """Convert floats to integers as `Cast` specifies: values out of range become the lowest integer of 32 or 64
    bits."""
    bits = 64 if e.dtype in (i64, u32, u64) else 32
    limit = float(1 << (bits - 1))
    wide = a if e.a.dtype in (f32, f64) else f"({a}).to(tl.float32)"
    is_in_range = f"({wide} >= {-limit!r}) & ({wide} < {limit!r})"
    signed = f"tl.where({is_in_range}, {wide}, {-limit!r}).to(tl.int{bits})"
    if e.dtype != u64:
        return f"{signed}.to(tl.{type_name(e.dtype)})"
    high = f"tl.where({wide} < {2 * limit!r}, {wide}, 0.0).to(tl.uint64)"
    return f"tl.where({wide} >= {limit!r}, {high}, {signed}.to(tl.uint64))"
