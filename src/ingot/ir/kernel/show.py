"""Kernel IR as pseudo code, for people and for golden tests; equal kernels print equally.

    kernel gemm(A: param f32[64], C: param f32* writable; s0) for c in chunks (s0 + 7) / 8:
      acc: register f32x8[2]
      for k in 0..64 unroll:
        acc[0] = fma(splat(A[c*8 + k]), B[k*8 :8], acc[0])
      C[c*8 :8 if m] = acc[0]

A literal is followed by its type, but for i64 and bool scalars. `X[i :8]` is 8 consecutive elements, `X[v]` with a
vector index one element per lane, `if m` a mask. Expressions that a statement uses twice are printed once, as `'0 =
...` above it.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.kernel.verify import children, kind_of
from ingot.ir.types import boolean, i64

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "ashr": ">>", "lshr": ">>>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
# Precedence of operators; 9 for expressions that never need parentheses.
_PRECEDENCE = {"*": 6, "/": 6, "%": 6, "+": 5, "-": 5, "<<": 4, ">>": 4, ">>>": 4, "&": 3, "^": 3, "|": 3}


def show_kernel(kernel: k.Kernel) -> str:
    """`kernel` as text, ending in a newline."""
    params = ", ".join(_buffer(b) for b in kernel.params)
    dims = f"; {', '.join(v.name for v in kernel.dims)}" if kernel.dims else ""
    scratch = f" scratch {kernel.scratch_bytes} bytes" if kernel.scratch_bytes else ""
    chunks = show_expr(kernel.chunks)
    if kernel.rounds != k.integer(1):
        chunks += f" for {show_expr(kernel.rounds)} rounds"
    lines = [f"kernel {kernel.name}({params}{dims}){scratch} for {kernel.chunk.name} in 0..{chunks}:"]
    _body(kernel.body, "  ", lines)
    return "\n".join(lines) + "\n"


def show_expr(e: k.Expr) -> str:
    """`e` on one line, shared parts repeated: for small expressions and messages."""
    return _Texts({}).of(e)


def _buffer(b: k.Buffer) -> str:
    size = f"[{b.size}]" if b.size is not None else "*"
    offset = f" at {b.offset}" if b.space == "scratch" else ""
    align = f" align {b.align}" if b.align != 64 else ""
    writable = " writable" if b.writable and b.space == "param" else ""
    m = b.matrix
    matrix = f" {m.rows}x{m.columns} stride {m.stride} from {m.offset}" if m is not None else ""
    return f"{b.name}: {b.space} {kind_of(b.dtype, b.lanes, b.tile)}{size}{writable}{offset}{align}{matrix}"


def _body(body: k.Body, indent: str, lines: list[str]) -> None:
    for s in body:
        _stmt(s, indent, lines)


def _stmt(s: k.Stmt, indent: str, lines: list[str]) -> None:
    match s:
        case k.For():
            t = _shared(indent, lines, s.begin, s.end)
            step = f" step {s.step}" if s.step != 1 else ""
            hints = " unroll" * s.unroll + " flatten" * s.flatten + f" stages {s.stages}" * (s.stages > 0)
            lines.append(f"{indent}for {s.var.name} in {t.of(s.begin)}..{t.of(s.end)}{step}{hints}:")
            _body(s.body, indent + "  ", lines)
        case k.If():
            lines.append(f"{indent}if {_shared(indent, lines, s.cond).of(s.cond)}:")
            _body(s.then, indent + "  ", lines)
            if s.orelse:
                lines.append(f"{indent}else:")
                _body(s.orelse, indent + "  ", lines)
        case k.Let():
            value = _shared(indent, lines, s.value).of(s.value)
            lines.append(f"{indent}{s.var.name}: {kind_of(s.var.dtype, s.var.lanes, s.var.tile)} = {value}")
        case k.Store():
            parts = (s.index, s.value) if s.mask is None else (s.index, s.value, s.mask)
            t = _shared(indent, lines, *parts)
            element = t.element(s.buffer, s.index, s.value.lanes, s.mask)
            stream = "stream " if s.stream else ""
            lines.append(f"{indent}{stream}{element} = {t.of(s.value)}")
        case k.Alloc():
            lines.append(f"{indent}{_buffer(s.buffer)}")
        case k.Prefetch():
            lines.append(f"{indent}prefetch {s.buffer.name}[{_shared(indent, lines, s.index).of(s.index)}]")
        case k.Increment():
            index = _shared(indent, lines, s.index).of(s.index)
            lines.append(f"{indent}{s.var.name} = increment {s.buffer.name}[{index}]")
        case k.AwaitStores():
            lines.append(f"{indent}await stores")
        case k.AwaitProducers():
            lines.append(f"{indent}await producers")
        case k.ReleaseConsumers():
            lines.append(f"{indent}release consumers")
        case k.Comment():
            lines += [f"{indent}# {line}" for line in s.text.splitlines()]
        case _:
            raise TypeError(f"unknown statement {type(s).__name__}")


def _shared(indent: str, lines: list[str], *roots: k.Expr) -> _Texts:
    """The texts for `roots`, after lines that name their shared parts."""
    counts: dict[int, int] = {}
    order: list[k.Expr] = []
    for e in roots:
        _count(e, counts, order)
    texts = _Texts({})
    for e in order:
        if counts[id(e)] > 1 and not isinstance(e, k.Lit | k.Var):
            text = texts.of(e)
            name = f"'{len(texts.names)}"
            texts.names[id(e)] = name
            lines.append(f"{indent}{name} = {text}")
    return texts


def _count(e: k.Expr, counts: dict[int, int], order: list[k.Expr]) -> None:
    """Count the uses of every expression; `order` gets each once, operands first."""
    counts[id(e)] = counts.get(id(e), 0) + 1
    if counts[id(e)] > 1:
        return
    for c in children(e):
        _count(c, counts, order)
    order.append(e)


class _Texts:
    """Expression -> text. names: of shared expressions, by id."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names

    def of(self, e: k.Expr, precedence: int = 0) -> str:
        """The text of `e`, in parentheses if its precedence is lower than `precedence`."""
        name = self.names.get(id(e))
        if name is not None:
            return name
        text, actual = self.write(e)
        return f"({text})" if actual < precedence else text

    def write(self, e: k.Expr) -> tuple[str, int]:
        match e:
            case k.Lit():
                return _literal(e), 9
            case k.Var():
                return e.name, 9
            case k.Unary():
                return f"{e.fn}({self.of(e.a)})", 9
            case k.Binary():
                return self.binary(e)
            case k.Fma():
                return f"fma({self.of(e.a)}, {self.of(e.b)}, {self.of(e.c)})", 9
            case k.Call():
                return f"{e.fn}({', '.join(self.of(a) for a in e.args)})", 9
            case k.Dot():
                limit = "" if e.a_max is None else f", a <= {e.a_max}"
                return f"dot({self.of(e.a)}, {self.of(e.b)}, {self.of(e.c)}{limit})", 9
            case k.Select():
                return f"select({self.of(e.cond)}, {self.of(e.a)}, {self.of(e.b)})", 9
            case k.Cast():
                return f"{e.dtype}({self.of(e.a)})", 9
            case k.Bitcast():
                kind = str(e.dtype) if e.lanes == e.a.lanes else kind_of(e.dtype, e.lanes)
                return f"bits.{kind}({self.of(e.a)})", 9
            case k.Splat():
                return f"splat{e.tile or e.lanes}({self.of(e.a)})", 9
            case k.Range():
                return f"range{e.tile or e.lanes}", 9
            case k.Spread():
                return f"spread{e.tile}({self.of(e.a)})", 9
            case k.ReduceAxis():
                return f"reduce{e.axis}.{e.fn}({self.of(e.a)})", 9
            case k.ScanAxis():
                return f"scan{e.axis}.{e.fn}({self.of(e.a)})", 9
            case k.Transposed():
                return f"transposed({self.of(e.a)})", 9
            case k.TileProduct():
                name = "product" + ".tf32" * e.tf32 + ".apart" * e.is_apart
                return f"{name}({self.of(e.a)}, {self.of(e.b)}, {self.of(e.c)})", 9
            case k.QuadProduct():
                words, terms = (", ".join(map(self.of, x)) for x in (e.words, e.terms))
                return f"quads.{e.term_dtype}([{words}][{e.row}] - {e.zero}, [{terms}])", 9
            case k.LaneSums():
                return f"lanesums({', '.join(map(self.of, e.values))})", 9
            case k.Ramp():
                return f"ramp{e.lanes}({self.of(e.base)}, {e.step})", 9
            case k.Load() | k.Gather():
                return self.element(e.buffer, e.index, e.lanes, e.mask), 9
            case k.TileLoad():
                return f"{e.buffer.name}{e.tile}[{self.of(e.row)}, {self.of(e.column)}]", 9
            case k.Reduce():
                return f"reduce.{e.fn}({self.of(e.a)})", 9
            case k.Shuffle():
                return f"shuffle({self.of(e.a)}, {self.of(e.b)}, {list(e.indices)})", 9
            case k.Either():
                return f"either({self.of(e.a)}, {self.of(e.b)})", 9
            case k.Extract():
                return f"{self.of(e.a, 9)}.{e.lane}", 9
            case k.Lookup():
                return f"{list(e.table)}[{self.of(e.index)} % {len(e.table)}]", 9
        raise TypeError(f"unknown expression {type(e).__name__}")

    def binary(self, e: k.Binary) -> tuple[str, int]:
        operator = _INFIX.get(e.fn)
        if operator is None:
            return f"{e.fn}({self.of(e.a)}, {self.of(e.b)})", 9
        precedence = _PRECEDENCE.get(operator, 2)
        gap = "" if operator == "*" else " "
        return f"{self.of(e.a, precedence)}{gap}{operator}{gap}{self.of(e.b, precedence + 1)}", precedence

    def element(self, b: k.Buffer, index: k.Expr, lanes: int, mask: k.Expr | None) -> str:
        count = f" :{lanes}" if lanes != 1 and index.lanes == 1 and b.space != "register" else ""
        condition = f" if {self.of(mask)}" if mask is not None else ""
        return f"{b.name}[{self.of(index)}{count}{condition}]"


def _literal(e: k.Lit) -> str:
    text = str(e.value).lower() if isinstance(e.value, bool) else repr(e.value)
    return text if e.lanes == 1 and e.dtype in (i64, boolean) else f"{text}:{kind_of(e.dtype, e.lanes, e.tile)}"
