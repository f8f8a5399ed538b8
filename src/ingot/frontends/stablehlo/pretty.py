"""The short forms that MLIR's printers write, read into generic form.

One grammar serves all of them: after the name come operands, words (`LT`), `key = value` pairs, bracketed lists and
attribute dictionaries, then the types. Tables have the generic names of lists and keys.

    stablehlo.slice %0 [0:1, 2:8:2] : ...   ->   {start_indices = [0, 2], limit_indices = [1, 8], strides = [1, 2]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from ingot.frontends.stablehlo.parser import Named, Parser, Parts
from ingot.frontends.stablehlo.syntax import Attribute, Block, Dense, Ints, Module, Number, Operation, Raw, Symbol
from ingot.support.dataclass import dataclass


def parse(text: str, where: str = "") -> Module:
    """`text` as a module. Raises ImportModelError with the line and column of an error."""
    return _TextParser(text, where).module()


class _TextParser(Parser):
    def pretty(self, name: str, count: int) -> Parts:
        return operation(self, name, count)


@dataclass
class _Pieces:
    """The parts between an operation's name and its types."""

    operands: list[str] = field(default_factory=list[str])
    inits: list[str] = field(default_factory=list[str])
    arguments: list[str] = field(default_factory=list[str])  # a loop's names of its carried values
    words: list[str] = field(default_factory=list[str])
    lists: list[list[Attribute]] = field(default_factory=list[list[Attribute]])
    named: dict[str, Attribute] = field(default_factory=dict[str, Attribute])
    attributes: dict[str, Attribute] = field(default_factory=dict[str, Attribute])
    symbols: list[Attribute] = field(default_factory=list[Attribute])
    type: str = ""


def operation(p: Parser, name: str, count: int) -> Parts:
    """The operation whose name has been read. `count`: of its results."""
    if name == "sdy.manual_computation":
        return _manual_computation(p, name)
    pieces = _pieces(p)
    types = _types(p, name, count) if p.accept(":") else [pieces.type] * count
    attributes = pieces.attributes
    if name == "stablehlo.while":
        while p.peek() == "attributes":
            p.take()
            attributes |= p.dictionary()
        return name, pieces.operands, attributes, _loop(p, pieces, types), types
    regions: list[Block] = []
    if name == "stablehlo.reduce":
        regions = [_reducer(p, pieces, types)]
    rename = _KEYS.get(name)
    if pieces.named or pieces.lists or pieces.words or pieces.symbols or rename:
        attributes = _named(name, pieces, rename)
    short = _FULL_NAMES.get(name, name)
    return short, [*pieces.operands, *pieces.inits], attributes, regions, types


def _manual_computation(p: Parser, name: str) -> Parts:
    """sdy.manual_computation(%x) in_shardings=[<@mesh, [{"dp"}]>] out_shardings=[...] manual_axes={"dp"} (%y: ...) {}
    : (types) -> types"""
    operands = p.many(p.take, "(", ")")
    attributes: dict[str, Attribute] = {}
    for key in ("in_shardings", "out_shardings"):
        p.expect(key)
        p.expect("=")
        attributes[key] = Raw("".join(p.many(p.skip, "[", "]")))
    p.expect("manual_axes")
    p.expect("=")
    attributes["manual_axes"] = Raw(" ".join(p.many(p.take, "{", "}")))
    region = p.region(tuple(p.many(p.argument, "(", ")")))
    p.expect(":")
    return name, operands, attributes, [region], p.signature()[1]


def _pieces(p: Parser) -> _Pieces:
    pieces = _Pieces()
    tokens = p.tokens
    while True:
        token = tokens[p.at]
        first = token[:1]
        if first == "%":
            p.at += 1
            pieces.operands.append(token)
        elif token == ",":
            p.at += 1
        elif token == ":" or token == "" or token == "}":
            return pieces
        elif token == "(":
            _group(p, pieces)
        elif token == "<":
            pieces.attributes["sharding"] = Raw(p.skip())
        elif token == "[":
            pieces.lists.append(_list(p))
        elif token == "{":
            pieces.attributes |= p.dictionary()
        elif first == "@":
            pieces.symbols.append(p.attribute())
        elif first == '"' and tokens[p.at + 1] == "(":
            # the start of a generic operation: this one had neither operands nor types
            return pieces
        elif first == '"':
            pieces.symbols.append(p.attribute())
        elif token == "attributes":
            p.at += 1
            pieces.attributes |= p.dictionary()
        elif tokens[p.at + 1] == "=" and first.isalpha():
            p.at += 2
            pieces.named[token] = _value(p)
        elif first.isalpha() and "<" not in token:
            if token in ("loc", "reducer", "cond"):
                return pieces
            if "." in token and token not in ("chlo", "stablehlo") and pieces.words[-1:] != ["applies"]:
                return pieces
            p.at += 1
            pieces.words.append(token)
        else:
            # a constant: the literal's type is the result's
            value = pieces.attributes["value"] = p.attribute()
            pieces.type = value.type if isinstance(value, Dense | Number) else ""
            return pieces


def _group(p: Parser, pieces: _Pieces) -> None:
    """(%a, %b), (%a init: %b), (%name = %a), (%a, key = value)"""
    p.expect("(")
    while not p.accept(")"):
        token = p.take()
        if token == ",":
            continue
        if token == "init":
            p.expect(":")
            pieces.inits.append(p.take())
        elif token[0] == "%" and p.accept("="):
            pieces.arguments.append(token)
            pieces.operands.append(p.take())
        elif token[0] == "%":
            pieces.operands.append(token)
        elif p.accept("="):
            pieces.named[token] = _value(p)
        else:
            p.fail("an operand", p.at - 1)


def _list(p: Parser) -> list[Attribute]:
    """[1, b, [2, 3], 0:4:2]; a range is a list of its parts"""

    def item() -> Attribute:
        if p.peek() == "[":
            return list(_list(p))
        token = p.take()
        word: Attribute = Number(token) if token[0].isdigit() or token[0] == "-" else token
        if token[0] == '"':
            p.at -= 1
            return p.attribute()
        if token in ("true", "false"):
            return token == "true"
        if p.peek() != ":":
            return word
        parts: list[Attribute] = [word]
        while p.accept(":"):
            parts.append(Number(p.take()))
        return parts

    return p.nested(lambda: p.many(item, "[", "]"))


def _value(p: Parser) -> Attribute:
    """A list, lists joined by `x` and `->`, an attribute dictionary, a word or any attribute."""
    token = p.peek()
    if token == "[":
        value: list[Attribute] = _list(p)
        if p.peek() not in ("x", "->"):
            return value
        lists: list[Attribute] = [value]
        while p.accept("x") or p.accept("->"):
            lists.append(_list(p))
        return {"joined": lists}
    if token == "{":
        return dict(p.many(lambda: _entry(p), "{", "}"))
    if token == "<":
        return {k: v for k, v in p.many(lambda: _entry(p), "<", ">")}
    if token[:1].isalpha() and "<" not in token and token not in ("true", "false", "unit"):
        p.at += 1
        return token
    if token[:1].isdigit() or (token[:1] == "-" and len(token) > 1):
        # the colon after it begins the operation's types
        p.at += 1
        return Number(token)
    return p.attribute()


def _entry(p: Parser) -> tuple[str, Attribute]:
    name = p.take()
    p.expect("=")
    return name, _value(p)


# --- types

# in a type list without an arrow, the last is the result's, except for operations with one result per operand
_TYPE_PER_OPERAND = {"stablehlo.while", "stablehlo.optimization_barrier"}
_NO_RESULTS = {"return", "func.return", "stablehlo.return", "sdy.return"}


def _types(p: Parser, name: str, count: int) -> list[str]:
    """The result types of the signature after the colon."""
    if p.peek() == "(":
        types = p.many(p.type, "(", ")")
        if p.accept("->"):
            return p.type_list()
    else:
        types = [p.type()]
        while p.accept(","):
            types.append(p.type())
        if p.accept("->"):
            return p.type_list()
    if name in _NO_RESULTS:
        return []
    return types if name in _TYPE_PER_OPERAND else types * count if len(types) == 1 else types[-1:]


# --- regions


def _loop(p: Parser, pieces: _Pieces, types: list[str]) -> list[Block]:
    if len(pieces.arguments) != len(types):
        p.fail(f"{len(pieces.arguments)} types")
    arguments = tuple(zip(pieces.arguments, types, strict=True))
    p.expect("cond")
    cond = p.region(arguments)
    p.expect("do")
    return [cond, p.region(arguments)]


def _reducer(p: Parser, pieces: _Pieces, types: list[str]) -> Block:
    """reducer(%a: t, %b: t) (%c: t, %d: t) {...}: a pair for each operand; or `applies op`."""
    if pieces.words[:1] == ["applies"]:
        if not types or not types[0].startswith("tensor<"):
            p.fail("the type of a tensor", p.at - 1)
        scalar = f"tensor<{_element(types[0])}>"
        a, b, c = "%lhs", "%rhs", "%out"
        body = (
            Operation(pieces.words[1], (a, b), {}, (), ((c, scalar),)),
            Operation("stablehlo.return", (c,), {}, (), ()),
        )
        pieces.words[:2] = []
        return Block(((a, scalar), (b, scalar)), body)
    p.expect("reducer")
    pairs: list[list[Named]] = []
    while p.peek() == "(":
        pairs.append(p.many(p.argument, "(", ")"))
    if any(len(pair) != 2 for pair in pairs):
        p.fail("pairs of arguments", p.at - 1)
    return p.region((*(a for a, _ in pairs), *(b for _, b in pairs)))


def _element(type: str) -> str:
    """tensor<2x?xcomplex<f32>, #bounds> -> complex<f32>"""
    content = type[type.index("<") + 1 : -1]
    while content[:1].isdigit() or content[:1] == "?":
        content = content.partition("x")[2]
    depth = 0
    for i, ch in enumerate(content):
        depth += (ch == "<") - (ch == ">")
        if ch == "," and depth == 0:
            return content[:i]
    return content


# --- attributes in generic form


def _ints(value: Attribute) -> Attribute:
    """A list of numbers as array<i64>; other values are unchanged."""
    if isinstance(value, list) and all(isinstance(v, Number) for v in value):
        return Ints(tuple(int(v) for v in value if isinstance(v, Number)))
    if isinstance(value, list) and value and all(isinstance(v, bool) for v in value):
        return Ints(tuple(int(bool(v)) for v in value), "i1")
    return value


def _i64(value: Attribute) -> Attribute:
    return Number(value.text, "i64") if isinstance(value, Number) and not value.type else value


def _number(value: Attribute) -> str:
    return value.text if isinstance(value, Number) else str(value)


def _text(values: Attribute) -> str:
    assert isinstance(values, list)
    return f"[{', '.join(_number(v) for v in values)}]"


def _enum(kind: str) -> Callable[[Attribute], Attribute]:
    def attribute(value: Attribute) -> Attribute:
        if isinstance(value, list):
            return [Raw(f"#stablehlo<{kind} {v}>") for v in value]
        return Raw(f"#stablehlo<{kind} {value}>") if isinstance(value, str) else value

    return attribute


def _plain(value: Attribute) -> Attribute:
    return value


MakeAttribute = Callable[[Attribute], Attribute]
_PRECISION: tuple[str, MakeAttribute] = ("precision_config", _enum("precision"))
_DIM = {"dim": ("dimension", _i64)}
# operation -> key in the short form -> (generic name, its value)
_KEYS: Mapping[str, Mapping[str, tuple[str, MakeAttribute]]] = {
    "stablehlo.broadcast_in_dim": {"dims": ("broadcast_dimensions", _ints)},
    "stablehlo.dynamic_broadcast_in_dim": {"dims": ("broadcast_dimensions", _ints)},
    "stablehlo.transpose": {"dims": ("permutation", _ints)},
    "stablehlo.reverse": {"dims": ("dimensions", _ints)},
    "stablehlo.concatenate": _DIM,
    "stablehlo.get_dimension_size": _DIM,
    "stablehlo.set_dimension_size": _DIM,
    "stablehlo.iota": {"dim": ("iota_dimension", _i64)},
    "stablehlo.dynamic_iota": {"dim": ("iota_dimension", _i64)},
    "stablehlo.pad": {
        "low": ("edge_padding_low", _ints),
        "high": ("edge_padding_high", _ints),
        "interior": ("interior_padding", _ints),
    },
    "stablehlo.dynamic_slice": {"sizes": ("slice_sizes", _ints)},
    "stablehlo.reduce": {"dimensions": ("dimensions", _ints)},
    "stablehlo.fft": {"type": ("fft_type", _enum("fft_type")), "length": ("fft_length", _ints)},
    "stablehlo.rng": {"distribution": ("rng_distribution", _enum("rng_distribution"))},
    "stablehlo.rng_bit_generator": {"algorithm": ("rng_algorithm", _enum("rng_algorithm"))},
    "stablehlo.dot": {"precision": _PRECISION},
    "stablehlo.dot_general": {"precision": _PRECISION, "algorithm": ("algorithm", _plain)},
    "stablehlo.cholesky": {"lower": ("lower", _plain)},
    "chlo.top_k": {"k": ("k", _i64)},
}
_FULL_NAMES = {"call": "func.call", "return": "func.return"}


def _named(name: str, pieces: _Pieces, rename: Mapping[str, tuple[str, MakeAttribute]] | None) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {}
    table = rename or {}
    special = _SPECIAL.get(name)
    if special is not None:
        attributes |= special(pieces)
    for key, value in pieces.named.items():
        generic, make = table.get(key, (key, _ints))
        attributes[generic] = make(value)
    return attributes | pieces.attributes


def _compare(pieces: _Pieces) -> dict[str, Attribute]:
    direction, *kind = pieces.words or [""]
    attributes: dict[str, Attribute] = {"comparison_direction": Raw(f"#stablehlo<comparison_direction {direction}>")}
    if kind:
        attributes["compare_type"] = Raw(f"#stablehlo<comparison_type {kind[0]}>")
    return attributes


def _chlo_compare(pieces: _Pieces) -> dict[str, Attribute]:
    return {k: Raw(v.text.replace("#stablehlo", "#chlo")) for k, v in _compare(pieces).items() if isinstance(v, Raw)}


def _slice(pieces: _Pieces) -> dict[str, Attribute]:
    columns: list[list[int]] = [[], [], []]
    for part in pieces.lists[0] if pieces.lists else []:
        values = [int(v) for v in part if isinstance(v, Number)] if isinstance(part, list) else []
        for column, value in zip(columns, [*values, 1] if len(values) == 2 else values, strict=True):
            column.append(value)
    names = ("start_indices", "limit_indices", "strides")
    return {n: Ints(tuple(c)) for n, c in zip(names, columns, strict=True)}


def _dot(pieces: _Pieces) -> dict[str, Attribute]:
    attributes: dict[str, str] = {}
    for key, kind in (("batching_dims", "batching"), ("contracting_dims", "contracting")):
        value = pieces.named.pop(key, None)
        lists = value["joined"] if isinstance(value, dict) else [[], []]
        assert isinstance(lists, list)
        for side, dims in zip(("lhs", "rhs"), lists, strict=True):
            attributes[f"{side}_{kind}_dimensions"] = _text(dims)
    text = ", ".join(f"{k} = {v}" for k, v in attributes.items() if v != "[]")
    return {"dot_dimension_numbers": Raw(f"#stablehlo.dot<{text}>")}


def _convolution(pieces: _Pieces) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {}
    numbers, window = pieces.named.pop("dim_numbers", None), pieces.named.pop("window", None)
    if isinstance(numbers, dict) and isinstance(layouts := numbers["joined"], list) and len(layouts) == 3:
        x, w, y = (_text(v) for v in layouts)
        attributes["dimension_numbers"] = Raw(f"#stablehlo.conv<{x}x{w}->{y}>")
    for key, value in window.items() if isinstance(window, dict) else ():
        attributes[_WINDOW[key]] = (
            [_ints(v) for v in value] if key == "pad" and isinstance(value, list) else _ints(value)
        )
    return attributes


_WINDOW = {
    "stride": "window_strides",
    "pad": "padding",
    "lhs_dilate": "lhs_dilation",
    "rhs_dilate": "rhs_dilation",
    "reverse": "window_reversal",
}


def _format(pieces: _Pieces) -> dict[str, Attribute]:
    """e5m10"""
    text = str(pieces.named.pop("format"))
    exponent, _, mantissa = text[1:].partition("m")
    return {"exponent_bits": Number(exponent, "i32"), "mantissa_bits": Number(mantissa, "i32")}


def _callee(key: str) -> Callable[[_Pieces], dict[str, Attribute]]:
    def read(pieces: _Pieces) -> dict[str, Attribute]:
        (symbol,) = pieces.symbols or [None]
        return {key: symbol.name if isinstance(symbol, Symbol) and key == "call_target_name" else symbol}

    return read


def _index(pieces: _Pieces) -> dict[str, Attribute]:
    ((index,),) = pieces.lists
    return {"index": Number(_number(index), "i32")}


_SPECIAL: Mapping[str, Callable[[_Pieces], dict[str, Attribute]]] = {
    "stablehlo.compare": _compare, "chlo.broadcast_compare": _chlo_compare, "stablehlo.slice": _slice,
    "stablehlo.dot_general": _dot, "stablehlo.convolution": _convolution, "stablehlo.dynamic_conv": _convolution,
    "stablehlo.reduce_precision": _format, "stablehlo.custom_call": _callee("call_target_name"),
    "stablehlo.composite": _callee("name"), "func.call": _callee("callee"), "call": _callee("callee"),
    "stablehlo.get_tuple_element": _index,
}  # fmt: skip
