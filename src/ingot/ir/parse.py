"""Read the text form of a graph (see `ingot.ir.show`) back into the same graph.

    graph  ::= "graph" "(" [input {"," input}] ")" ["[" bound {"," bound} "]"] ["state" "[" "name" {"," "name"} "]"]
               "{" {line} "return" [result {"," result}] ["where" size {"," size}] "}"
    input  ::= %n "label" ":" type            bound ::= symbol ":" int ".." [int]
    line   ::= %n "=" ( "const" data ":" type | "const" "<" "#"int type ">"
                      | op "(" refs ")" ["{" attrs "}"] ":" types )
    ref    ::= %n | %n "." int                result ::= ref ["name"]        size ::= symbol "=" ref "max" <dim>

Nothing is evaluated: ops come from the registry, attributes are plain values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np

from ingot.ir.array import Array
from ingot.ir.dims import Dim, DimLike, parse_dim
from ingot.ir.node import Const, Graph, Input, Node, Op
from ingot.ir.types import DTYPES, DType, TensorType, static_shape
from ingot.support.errors import ImportModelError, IngotError

MAX_DEPTH = 64
# Errors of type rules and constructors on attributes or operands of the wrong kind or number.
TYPE_RULE_ERRORS = (IngotError, ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError)


class ParseError(ImportModelError):
    """Malformed text of a graph. The message starts with line:column."""


def parse(text: str, table: Sequence[Array] = ()) -> Graph:
    """Return the graph that `show` printed as `text`. table: its large constants.

    Raises ParseError (line:column) for malformed text, unknown ops and attributes, types that disagree with the ops'
    own type rules, and table entries that are missing or of another type.
    """
    parser = _Parser(text, table)
    graph = parser.graph(0)
    parser.end()
    return graph


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<comment>\#(?!\d)[^\n]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*")
      | (?P<ref>%\d+(?:\.\d+)?)
      | (?P<entry>\#\d+)
      | (?P<number>-?(?:\d+\.(?!\.)\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|0x[0-9a-fA-F]+|\d+|inf\b|nan\b))
      | (?P<word>\$?[A-Za-z_][\w.]*)
      | (?P<mark>\.\.|//|[-+*%(){}\[\]<>=:,])""",
    re.VERBOSE,
)


class _Parser:
    def __init__(self, text: str, table: Sequence[Array]) -> None:
        self.text = text
        self.table = table
        self.position = 0
        self.kind = ""
        self.token = ""
        self.start = 0
        self.previous_end = 0
        self.comment = ""
        self.next()

    # -- tokens

    def next(self) -> str:
        """Advance to the next token, and return the previous one."""
        previous = self.token
        self.previous_end = self.position
        self.comment = ""
        while True:
            self.start = self.position
            if self.position == len(self.text):
                self.kind, self.token = "end", ""
                return previous
            m = _TOKEN.match(self.text, self.position)
            if m is None:
                raise self.error(f"unexpected {self.text[self.position]!r}")
            self.position = m.end()
            self.kind, self.token = m.lastgroup or "", m.group()
            if self.kind == "comment":
                self.comment = self.comment or self._trailing(m)
            elif self.kind != "space":
                return previous

    def _trailing(self, m: re.Match[str]) -> str:
        """The text of a comment that follows a token on its line, else an empty one."""
        return "" if "\n" in self.text[self.previous_end : m.start()] else m.group()[1:].strip()

    def error(self, what: str, start: int | None = None) -> ParseError:
        position = self.start if start is None else start
        line = self.text.count("\n", 0, position) + 1
        column = position - (self.text.rfind("\n", 0, position) + 1) + 1
        return ParseError(f"{line}:{column}: {what}")

    def token_text(self) -> str:
        return repr(self.token) if self.token else "the end"

    def expect(self, token: str) -> None:
        if self.token != token:
            raise self.error(f"expected {token!r}, got {self.token_text()}")
        self.next()

    def take(self, kind: str, what: str) -> str:
        if self.kind != kind:
            raise self.error(f"expected {what}, got {self.token_text()}")
        return self.next()

    def accept(self, token: str) -> bool:
        if self.token != token:
            return False
        self.next()
        return True

    def end(self) -> None:
        if self.kind != "end":
            raise self.error(f"expected the end, got {self.token_text()}")

    def string(self, what: str) -> str:
        start = self.start
        raw = self.take("text", what)
        try:
            return json.loads(raw)
        except ValueError:
            raise self.error(f"malformed text {raw}", start) from None

    def integer(self, what: str) -> int:
        start = self.start
        return self.int_of(self.take("number", what), start)

    def int_of(self, raw: str, start: int) -> int:
        try:
            return int(raw)
        except ValueError:
            raise self.error(f"expected a whole number, got {raw[:40]!r}", start) from None

    def items(self, close: str, item: Callable[[], None]) -> None:
        """item {"," item} [","] close"""
        while not self.accept(close):
            item()
            if self.token != close:
                self.expect(",")

    # -- graphs

    def graph(self, depth: int) -> Graph:
        if depth > MAX_DEPTH:
            raise self.error(f"graphs nest deeper than {MAX_DEPTH}")
        self.expect("graph")
        self.expect("(")
        nodes: dict[str, Node] = {}
        inputs: list[Node] = []
        self.items(")", lambda: inputs.append(self.input(nodes)))
        bounds: list[tuple[str, int | None, int | None]] = []
        if self.accept("["):
            self.items("]", lambda: bounds.append(self.bound()))
        conditions = self.shape() if self.accept("nonnegative") else ()
        state: list[str] = []
        if self.accept("state"):
            self.expect("[")
            self.items("]", lambda: state.append(self.string("a name")))
        self.expect("{")
        while self.token != "return":
            self.line(nodes, depth)
        self.next()
        outputs: list[Node] = []
        names: list[str] = []
        while self.token not in ("}", "where"):
            outputs.append(self.reference(nodes))
            if self.kind == "text":
                names.append(self.string("a name"))
            if self.token not in ("}", "where"):
                self.expect(",")
        if names and len(names) != len(outputs):
            raise self.error(f"expected a name for each of the {len(outputs)} results or for none, got {len(names)}")
        sizes: list[tuple[str, DimLike]] = []
        if self.accept("where"):
            self.items("}", lambda: sizes.append(self.size(nodes, outputs)))
        else:
            self.next()
        symbolic_conditions = tuple(c for c in conditions if isinstance(c, Dim))
        if len(state) > min(len(inputs), len(outputs) - len(sizes)):
            raise self.error(f"expected an input and a result for each of the {len(state)} in the state")
        limits = tuple(bounds), symbolic_conditions, tuple(sizes), tuple(state)
        return Graph(tuple(inputs), tuple(outputs), tuple(names), *limits)

    def size(self, nodes: dict[str, Node], outputs: list[Node]) -> tuple[str, DimLike]:
        name = self.take("word", "a symbol")
        self.expect("=")
        outputs.append(self.reference(nodes))
        self.expect("max")
        return name, self.symbolic()

    def input(self, nodes: dict[str, Node]) -> Node:
        ref = self.new_reference(nodes)
        label = self.string("the input's label in quotes")
        self.expect(":")
        kind = self.type()
        nodes[ref] = Input(label, kind, self.shape() if self.accept("=") else ())()
        return nodes[ref]

    def new_reference(self, nodes: dict[str, Node]) -> str:
        start = self.start
        ref = self.take("ref", "a new value like %3")
        if ref in nodes or "." in ref:
            raise self.error(f"{ref} is defined twice" if ref in nodes else f"{ref} cannot be defined", start)
        return ref

    def bound(self) -> tuple[str, int | None, int | None]:
        name = self.take("word", "a symbol")
        self.expect(":")
        lo = self.integer("a lower bound") if self.kind == "number" else None
        self.expect("..")
        return name, lo, self.integer("an upper bound") if self.kind == "number" else None

    def reference(self, nodes: dict[str, Node]) -> Node:
        start = self.start
        ref = self.take("ref", "a value like %3")
        base, _, index = ref.partition(".")
        node = nodes.get(base)
        if node is None:
            raise self.error(f"{base} is not defined above", start)
        if not index:
            return node
        number = self.int_of(index, start)
        if number >= len(node.types):
            raise self.error(f"{base} has {len(node.types)} results, got index {index}", start)
        return node.results[number]

    def line(self, nodes: dict[str, Node], depth: int) -> None:
        ref = self.new_reference(nodes)
        self.expect("=")
        start = self.start
        name = self.take("word", "an op")
        if name == Const.name:
            self.constant(ref, nodes)
            return
        cls = Op.REGISTRY.get(name)
        if cls is None or issubclass(cls, Input):
            raise self.error(f"no op is named {name!r}", start)
        operands: list[Node] = []
        self.expect("(")
        self.items(")", lambda: operands.append(self.reference(nodes)))
        op = self.attributes(cls, depth)
        types, loc = self.types()
        try:
            node = op(*operands, loc=loc)
        except TYPE_RULE_ERRORS as e:
            raise self.error(str(e), start) from e
        if list(node.types) != types:
            raise self.error(f"{name}: the text says {_list(types)}, the type rule {_list(node.types)}", start)
        nodes[ref] = node

    def types(self) -> tuple[list[TensorType], str]:
        self.expect(":")
        out = [self.type()]
        while self.accept(","):
            out.append(self.type())
        return out, self.comment

    def attributes(self, cls: type[Op], depth: int) -> Op:
        start = self.start
        values: dict[str, object] = {}
        if self.accept("{"):
            self.items("}", lambda: self.attribute(cls, values, depth))
        try:
            return cls(**values)
        except TYPE_RULE_ERRORS as e:
            raise self.error(f"{cls.name}: {e}", start) from None

    def attribute(self, cls: type[Op], values: dict[str, object], depth: int) -> None:
        start = self.start
        name = self.take("word", "an attribute")
        names = [f.name for f in fields(cls)]
        if name not in names or name in values:
            why = "is given twice" if name in values else f"is none of {names}"
            raise self.error(f"{cls.name}: attribute {name!r} {why}", start)
        self.expect("=")
        values[name] = self.value(depth)

    # -- values

    def value(self, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise self.error(f"attributes nest deeper than {MAX_DEPTH}")
        match self.kind:
            case "number":
                return self.number()
            case "text":
                return self.string("text")
        match self.token:
            case "<":
                return self.symbolic()
            case "(":
                self.next()
                items: list[object] = []
                self.items(")", lambda: items.append(self.value(depth + 1)))
                return tuple(items)
            case "graph":
                return self.graph(depth + 1)
            case "none" | "true" | "false":
                return {"none": None, "true": True, "false": False}[self.next()]
        return self.type_or_dtype()

    def number(self) -> int | float:
        start = self.start
        raw = self.take("number", "a number")
        return self.convert(raw, start)

    def convert(self, raw: str, start: int) -> int | float:
        floating = not raw.startswith("0x") and any(c in raw for c in ".eEn")
        try:
            return float(raw) if floating else int(raw, 0)
        except ValueError:
            raise self.error(f"malformed number {raw!r}", start) from None

    def symbolic(self) -> DimLike:
        close = self.text.find(">", self.start)
        if close < 0:
            raise self.error("a symbolic size is not closed by '>'")
        dim = self.dim(self.text[self.start + 1 : close], self.start + 1)
        self.position = close + 1
        self.next()
        return dim

    def dim(self, text: str, start: int) -> DimLike:
        try:
            return parse_dim(text)
        except (ValueError, RecursionError, ZeroDivisionError) as e:
            raise self.error(f"{e}" if isinstance(e, ValueError) else f"malformed size {text[:40]!r}", start) from None

    def dtype(self) -> DType:
        start = self.start
        name = self.take("word", "a dtype")
        dtype = DTYPES.get(name)
        if dtype is None:
            raise self.error(f"expected a value or one of {', '.join(DTYPES)}, got {name!r}", start)
        return dtype

    def type_or_dtype(self) -> DType | TensorType:
        dtype = self.dtype()
        return TensorType(dtype, self.shape()) if self.token == "[" else dtype

    def type(self) -> TensorType:
        return TensorType(self.dtype(), self.shape())

    def shape(self) -> tuple[DimLike, ...]:
        if self.token != "[":
            raise self.error(f"expected a shape in [], got {self.token_text()}")
        close = self.text.find("]", self.start)
        if close < 0:
            raise self.error("a shape is not closed by ']'")
        start = self.start + 1
        inner = self.text[start:close]
        dims = tuple(self.dim(part, start) for part in _split(inner)) if inner.strip() else ()
        self.position = close + 1
        self.next()
        return dims

    # -- constants

    def constant(self, ref: str, nodes: dict[str, Node]) -> None:
        start = self.start
        if self.accept("<"):
            entry = self.int_of(self.take("entry", "a table entry like #0")[1:], start)
            kind = self.type()
            loc = self.close_entry()
            if entry >= len(self.table):
                raise self.error(f"entry #{entry} is not in the table of {len(self.table)} constants", start)
            array = self.table[entry]
            if array.shape != kind.shape or array.dtype != kind.dtype.numpy:
                got = f"{array.dtype}{list(array.shape)}"
                raise self.error(f"entry #{entry} of the table: expected {kind}, got {got}", start)
        else:
            elements, uniform = self.elements()
            self.expect(":")
            kind = self.type()
            loc = self.comment
            array = Array(self.dense(elements, uniform, kind, start))
        nodes[ref] = Const(array)(loc=loc)

    def close_entry(self) -> str:
        self.expect(">")
        return self.comment

    def elements(self) -> tuple[list[tuple[str, int]], bool]:
        if self.accept("all"):
            return [self.element()], True
        if not self.accept("["):
            return [self.element()], False
        out: list[tuple[str, int]] = []
        self.items("]", lambda: out.append(self.element()))
        return out, False

    def element(self) -> tuple[str, int]:
        start = self.start
        if self.token in ("true", "false"):
            return self.next(), start
        raw = self.take("number", "an element")
        if raw == "nan" and self.accept("("):
            raw = f"nan({self.take('number', 'the bits of a NaN')})"
            self.expect(")")
        return raw, start

    def dense(self, elements: list[tuple[str, int]], uniform: bool, kind: TensorType, start: int) -> np.ndarray:
        size = kind.size
        if not isinstance(size, int) or not all(isinstance(d, int) and d >= 0 for d in kind.shape):
            raise self.error(f"a constant of type {kind}: expected a static shape", start)
        if size * kind.dtype.nbytes > Array.MAX_CONTENT_KEY_BYTES:
            raise self.error(f"a constant of {size} elements is too large for the text; put it into the table", start)
        if len(elements) != (1 if uniform else size):
            raise self.error(f"{kind} has {size} elements, got {len(elements)}", start)
        # through bytes: a signalling NaN would be quieted on the way through a Python float
        raw_bytes = b"".join(self.scalar(raw, at, kind.dtype).tobytes() for raw, at in elements)
        flat = np.frombuffer(raw_bytes, kind.dtype.numpy)
        shape = static_shape(kind.shape)
        return (np.broadcast_to(flat, shape) if uniform else flat.reshape(shape)).copy()

    def scalar(self, raw: str, start: int, dtype: DType) -> np.generic:
        if (raw in ("true", "false")) != (dtype.kind == "b"):
            raise self.error(f"expected an element of {dtype}, got {raw}", start)
        if dtype.kind == "b":
            return np.bool_(raw == "true")
        if raw.startswith("nan("):
            return self.nan(raw[4:-1], start, dtype)
        number = self.convert(raw, start)
        if isinstance(number, float) != dtype.is_float:
            raise self.error(f"expected an element of {dtype}, got {raw}", start)
        if dtype.is_integer:
            low, high = dtype.range
            if not low <= number <= high:
                raise self.error(f"{raw} is out of range for {dtype}", start)
        return dtype.numpy.type(number)

    def nan(self, raw: str, start: int, dtype: DType) -> np.generic:
        bits = self.convert(raw, start)
        if not dtype.is_float or not isinstance(bits, int) or not 0 <= bits < 1 << dtype.bits:
            raise self.error(f"nan({raw}) is no element of {dtype}", start)
        value = np.frombuffer(bits.to_bytes(dtype.nbytes, "little"), dtype.numpy)[0]
        if value == value:
            raise self.error(f"nan({raw}) is a number in {dtype}", start)
        return value


def _split(text: str) -> list[str]:
    """Split at the commas outside of parentheses: max(a,b) is one size."""
    parts, depth, last = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and not depth:
            parts.append(text[last:i])
            last = i + 1
    return [*parts, text[last:]]


def _list(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))
