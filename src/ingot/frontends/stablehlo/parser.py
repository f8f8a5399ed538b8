"""StableHLO text to `syntax.Module`: MLIR's generic form, and, by `pretty`, the short forms that its printers write.

Both occur in one file. Aliases (`#map = ...`) are resolved; locations are kept as text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

from ingot.frontends.stablehlo.lexer import fail, tokenize
from ingot.frontends.stablehlo.syntax import (
    Attribute,
    Block,
    Dense,
    Function,
    Ints,
    Module,
    Number,
    Operation,
    Raw,
    Symbol,
)

_MAX_DEPTH = 100  # of nested regions and attributes
_END = ""
T = TypeVar("T")
Named = tuple[str, str]


class Parser:
    """One pass over the tokens. Methods read a construct and leave `at` after it."""

    def __init__(self, text: str, where: str = "") -> None:
        self.text, self.where = text, where
        self.tokens: list[str] = [*tokenize(text), _END]
        self.at = 0
        self.depth = 0
        self.aliases: dict[str, Attribute] = {}
        self.locations: dict[str, str] = {}

    # --- tokens

    def fail(self, expected: str, at: int | None = None) -> NoReturn:
        fail(self.text, self.at if at is None else at, expected, self.where)

    def peek(self) -> str:
        return self.tokens[self.at]

    def take(self) -> str:
        token = self.tokens[self.at]
        if token == _END:
            self.fail("more text")
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        is_next = self.tokens[self.at] == token
        self.at += is_next
        return is_next

    def expect(self, token: str) -> None:
        if self.tokens[self.at] != token:
            self.fail(repr(token))
        self.at += 1

    def many(self, item: Callable[[], T], open: str, close: str) -> list[T]:
        """open item, item, ... close"""
        self.expect(open)
        items: list[T] = []
        if self.accept(close):
            return items
        while True:
            items.append(item())
            if not self.accept(","):
                self.expect(close)
                return items

    def skip(self) -> str:
        """<...>, a sharding, as text."""
        self.expect("<")
        tokens, depth = ["<"], 1
        while depth:
            tokens.append(token := self.take())
            depth += (token == "<") - (token == ">")
        return "".join(tokens)

    def nested(self, item: Callable[[], T]) -> T:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.fail(f"at most {_MAX_DEPTH} levels of nesting")
        out = item()
        self.depth -= 1
        return out

    # --- attributes

    def attribute(self) -> Attribute:
        token = self.take()
        first = token[0]
        if first == '"':
            return string(token)
        if first.isdigit() or (first == "-" and len(token) > 1):
            return Number(token, self.type() if self.accept(":") else "")
        if token == "[":
            self.at -= 1
            return self.nested(lambda: self.many(self.attribute, "[", "]"))
        if token == "{":
            self.at -= 1
            return self.nested(self.dictionary)
        if first == "@":
            return Symbol(symbol_name(token))
        if first == "#":
            return self.aliases.get(token, Raw(token))
        if token.startswith("dense"):
            self.expect(":")
            kind, body = token.split("<", 1)
            return Dense(("resource " if kind != "dense" else "") + body[:-1], self.type())
        if token.startswith("array<"):
            return ints(token)
        if token in ("true", "false"):
            return token == "true"
        if token == "unit":
            return None
        if token == "loc":
            self.at -= 1
            self.location()
            return Raw("loc(unknown)")
        if token == "(" or token == "!" or token[0] == "!" or "<" in token or first.isalpha():
            self.at -= 1
            return Raw(self.type())
        self.at -= 1
        return self.fail("an attribute")

    def dictionary(self) -> dict[str, Attribute]:
        def entry() -> tuple[str, Attribute]:
            name = self.take()
            name = string(name) if name[0] == '"' else name
            return name, self.attribute() if self.accept("=") else None

        return dict(self.many(entry, "{", "}"))

    # --- types

    def type(self) -> str:
        """One type, as normalized text."""
        token = self.take()
        if token == "(":
            self.at -= 1
            inputs, outputs = self.signature()
            return f"({', '.join(inputs)}) -> ({', '.join(outputs)})"
        if token[0] == "!":
            return sys.intern(str(alias.text) if isinstance(alias := self.aliases.get(token), Raw) else token)
        if not token[0].isalpha():
            self.at -= 1
            self.fail("a type")
        return sys.intern(token)

    def type_list(self) -> list[str]:
        if self.peek() == "(":
            return self.many(self.type, "(", ")")
        return [self.type()]

    def signature(self) -> tuple[list[str], list[str]]:
        """(types) -> types"""
        inputs = self.many(self.type, "(", ")")
        self.expect("->")
        return inputs, self.type_list()

    # --- locations

    def location(self) -> str:
        """loc(...) as text."""
        self.expect("loc")
        start, depth = self.at, 0
        if self.tokens[start : start + 3 : 2] == ["(", ")"]:  # an alias, as nearly all are
            self.at += 3
            return self.tokens[start + 1]
        while True:
            token = self.take()
            depth += (token == "(") - (token == ")")
            if depth == 0:
                return " ".join(self.tokens[start + 1 : self.at - 1])

    def optional_location(self) -> str:
        return self.location() if self.peek() == "loc" else ""

    # --- operations

    def operation(self) -> Operation:
        results: list[tuple[str, int]] = []
        while self.peek()[:1] == "%":
            name = self.take()
            results.append((name, int(self.take()) if self.accept(":") else 1))
            if not self.accept(","):
                self.expect("=")
                break
        name = self.take()
        count = sum(n for _, n in results)
        if name[0] == '"':
            operation = self.generic(string(name), count)
        elif name[0].isalpha():
            operation = self.pretty(name, count)
        else:
            self.at -= 1
            self.fail("an operation")
        op, operands, attributes, regions, types = operation
        if len(types) != count and results:
            self.fail(f"{count} result types for {op}", self.at - 1)
        names = [n if k == 1 else f"{n}#{i}" for n, k in results for i in range(k)]
        loc = self.optional_location()
        # unnamed results get names
        named = tuple(zip(names or [f"%_{i}" for i in range(len(types))], types, strict=True))
        return Operation(op, tuple(operands), attributes, tuple(regions), named, loc)

    def generic(self, name: str, count: int) -> Parts:
        operands = self.many(self.take, "(", ")")
        attributes: dict[str, Attribute] = {}
        regions: list[Block] = []
        if self.accept("<"):
            attributes |= self.dictionary()
            self.expect(">")
        if self.peek() == "(":
            regions = self.many(self.region, "(", ")")
        if self.peek() == "{":
            attributes |= self.dictionary()
        self.expect(":")
        return name, operands, attributes, regions, self.signature()[1]

    def pretty(self, name: str, count: int) -> Parts:
        """An operation in a short form; see `pretty`."""
        self.fail("an operation in the generic form", self.at - 1)

    def region(self, arguments: tuple[Named, ...] = ()) -> Block:
        """{ operations }, or { ^bb0(arguments): operations }"""
        return self.nested(lambda: self._region(arguments))

    def _region(self, arguments: tuple[Named, ...]) -> Block:
        self.expect("{")
        if self.peek()[:1] == "^":
            self.take()
            if self.peek() == "(":
                arguments = tuple(self.many(self.argument, "(", ")"))
            self.expect(":")
        operations: list[Operation] = []
        while not self.accept("}"):
            if self.peek()[:1] == "^":
                self.fail("one block in a region")
            operations.append(self.operation())
        return Block(arguments, tuple(operations))

    def argument(self) -> Named:
        name = self.take()
        self.expect(":")
        type = self.type()
        self.optional_location()
        return name, type

    # --- functions and modules

    def function(self) -> Function:
        visibility = self.take() if self.peek() in ("private", "public", "nested") else ""
        name = symbol_name(self.take())
        arguments: list[tuple[str, str, dict[str, Attribute], str]] = []

        def argument() -> tuple[str, str, dict[str, Attribute], str]:
            # a declaration has types alone
            value = self.take() if self.peek()[:1] == "%" else ""
            if value:
                self.expect(":")
            return value, self.type(), self.dictionary() if self.peek() == "{" else {}, self.optional_location()

        def result() -> tuple[str, dict[str, Attribute]]:
            return self.type(), self.dictionary() if self.peek() == "{" else {}

        arguments = self.many(argument, "(", ")")
        results: list[tuple[str, dict[str, Attribute]]] = []
        if self.accept("->"):
            results = self.many(result, "(", ")") if self.peek() == "(" else [(self.type(), {})]
        if self.accept("attributes"):
            self.dictionary()
        parameters = tuple((a, t) for a, t, _, _ in arguments)
        body = self.region(parameters) if self.peek() == "{" else Block(parameters, ())
        self.optional_location()
        return Function(
            name, Block(parameters, body.operations), tuple(t for t, _ in results),
            tuple(a for _, _, a, _ in arguments), tuple(a for _, a in results), visibility,
            tuple(loc for *_, loc in arguments),
        )  # fmt: skip

    def generic_function(self) -> Function:
        """ "func.func"() <{function_type = ..., sym_name = "main"}> ({ ^bb0(...): ... }) : () -> ()"""
        _, _, attributes, regions, _ = self.generic("func.func", 0)
        name, signature = attributes.get("sym_name"), attributes.get("function_type")
        if not isinstance(name, str) or not isinstance(signature, Raw) or len(regions) > 1:
            self.fail("a function with sym_name and function_type", self.at - 1)
        inputs, outputs = Parser(signature.text, self.where).signature()
        body = regions[0] if regions else Block(tuple(("", t) for t in inputs), ())
        attribute_lists = (attributes.get("arg_attrs"), attributes.get("res_attrs"))
        of_arguments, of_results = map(_dictionaries, attribute_lists)
        visibility = attributes.get("sym_visibility")
        self.optional_location()
        return Function(
            name, body, tuple(outputs), tuple(of_arguments or [{} for _ in inputs]),
            tuple(of_results or [{} for _ in outputs]), visibility if isinstance(visibility, str) else "",
        )  # fmt: skip

    def module(self) -> Module:
        functions: dict[str, Function] = {}
        name, attributes = "", dict[str, Attribute]()
        resources: dict[str, str] = {}
        meshes: dict[str, str] = {}
        opened: list[str] = []
        while (token := self.peek()) != _END:
            self.at += 1
            if token == "module" or token == "builtin.module":
                if self.peek()[:1] == "@":
                    name = symbol_name(self.take())
                if self.accept("attributes"):
                    attributes = self.dictionary()
                self.expect("{")
                opened.append("}")
            elif token == '"builtin.module"':
                attributes, brackets = self._generic_module()
                opened.append(brackets)
            elif token == "}" and opened:
                if opened.pop() == "})":
                    self.expect(")")
                    attributes |= self.dictionary() if self.peek() == "{" else {}
                    self.expect(":")
                    self.signature()
                self.optional_location()
            elif token in ("func.func", "func", '"func.func"'):
                f = self.generic_function() if token[0] == '"' else self.function()
                if f.name in functions:
                    self.fail(f"one function @{f.name}", self.at - 1)
                functions[f.name] = f
            elif token[0] in "#!" and self.accept("="):
                self._alias(token)
            elif token == "sdy.mesh":
                name_of_mesh, text = self._mesh()
                meshes[name_of_mesh] = text
            elif token == "{-#":
                resources = self._resources()
            else:
                self.fail("a module or a function", self.at - 1)
        if opened:
            self.fail("'}'")
        if not functions:
            self.fail("a function")
        return Module(name, functions, attributes, self.locations, resources, meshes)

    def _generic_module(self) -> tuple[dict[str, Attribute], str]:
        self.many(self.take, "(", ")")
        attributes: dict[str, Attribute] = {}
        if self.accept("<"):
            attributes = self.dictionary()
            self.expect(">")
        self.expect("(")
        self.expect("{")
        if self.peek()[:1] == "^":
            self.take()
            self.expect(":")
        return attributes, "})"

    def _alias(self, token: str) -> None:
        if self.peek() == "loc":
            self.locations[token] = self.location()
        elif token[0] == "!":
            self.aliases[token] = Raw(self.type())
        else:
            self.aliases[token] = self.attribute()

    def _mesh(self) -> tuple[str, str]:
        """sdy.mesh @mesh = <["x"=2]> {...}: its name, and its definition as text."""
        name = symbol_name(self.take())
        self.expect("=")
        text = self.skip()
        if self.peek() == "{":
            self.dictionary()
        self.optional_location()
        return name, text

    def _resources(self) -> dict[str, str]:
        """{-# dialect_resources: { builtin: { name: "0x..." } } #-}"""
        resources: dict[str, str] = {}
        while (token := self.take()) != "#-}":
            if self.peek() == ":" and self.tokens[self.at + 1][:1] == '"':
                self.take()
                resources[token.strip('"')] = string(self.take())
        return resources


def _dictionaries(value: Attribute) -> list[dict[str, Attribute]]:
    return [v if isinstance(v, dict) else {} for v in value] if isinstance(value, list) else []


Parts = tuple[str, list[str], dict[str, Attribute], list[Block], list[str]]


def symbol_name(token: str) -> str:
    """The name in @name or @"name"."""
    return token[1:].replace('"', "")


def string(token: str) -> str:
    """The value of a string literal. Escapes are MLIR's: two hexadecimal digits, or a character."""
    body = token[1:-1]
    if "\\" not in body:
        return body
    decoded, at = bytearray(), 0
    raw = body.encode()
    short = {ord("n"): 10, ord("t"): 9, ord('"'): 34, ord("\\"): 92}
    while at < len(raw):
        if raw[at] != 92:
            decoded.append(raw[at])
            at += 1
        elif at + 1 < len(raw) and raw[at + 1] in short:
            decoded.append(short[raw[at + 1]])
            at += 2
        else:
            try:
                decoded.append(int(raw[at + 1 : at + 3], 16))
            except ValueError:
                decoded.append(92)
                at -= 2
            at += 3
    return decoded.decode("utf-8", "replace")


def ints(token: str) -> Attribute:
    """array<i64: 1, 2>; other element types stay text."""
    type, _, values = token[len("array<") : -1].partition(":")
    items = [v.strip() for v in values.split(",")] if values.strip() else []
    bits = {"true": 1, "false": 0}
    try:
        return Ints(tuple(bits[v] if v in bits else int(v) for v in items), type.strip())
    except ValueError:
        return Raw(token)


def fields(text: str) -> Mapping[str, Attribute] | None:
    """`#stablehlo.gather<offset_dims = [0], ...>` by name; None where it holds no such list."""
    parser = Parser(text[text.index("<") + 1 : -1])
    attributes: dict[str, Attribute] = {}
    while parser.peek() != _END:
        name = parser.take()
        if not parser.accept("="):
            return None
        attributes[name] = parser.attribute()
        if not parser.accept(","):
            break
    return attributes if parser.peek() == _END else None
