"""`syntax.Module` as text in MLIR's generic form, which every reader of StableHLO accepts.

show(parse(show(m))) == show(m).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

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


def show(module: Module) -> str:
    head = f"module @{_name(module.name)}" if module.name else "module"
    if module.attributes:
        head += " attributes " + _dictionary(module.attributes)
    lines = [head + " {"]
    for function in module.functions.values():
        lines += _function(function)
    return "\n".join([*lines, "}", ""])


def _name(name: str) -> str:
    plain = name and all(c.isalnum() or c in "_$." for c in name) and not name[0].isdigit()
    return name if plain else '"' + name + '"'


def _function(f: Function) -> Iterator[str]:
    def with_attributes(text: str, attributes: Sequence[Mapping[str, Attribute]], i: int) -> str:
        return f"{text} {_dictionary(attributes[i])}" if i < len(attributes) and attributes[i] else text

    arguments = [
        with_attributes(f"{name}: {type}" if name else type, f.argument_attributes, i) + _location(f.argument_locs, i)
        for i, (name, type) in enumerate(f.body.arguments)
    ]
    results = [with_attributes(t, f.result_attributes, i) for i, t in enumerate(f.result_types)]
    visibility = f"{f.visibility} " if f.visibility else ""
    head = f"  func.func {visibility}@{_name(f.name)}({', '.join(arguments)}) -> ({', '.join(results)})"
    if not f.body.operations:
        yield head
        return
    yield head + " {"
    yield from _operations(f.body, dict(f.body.arguments), "    ")
    yield "  }"


def _location(locations: Sequence[str], i: int) -> str:
    """The names of arguments, the only locations that are printed."""
    named = i < len(locations) and re.fullmatch(r'"[^"]*"', locations[i])
    return f" loc({locations[i]})" if named else ""


def _operations(block: Block, types: dict[str, str], pad: str) -> Iterator[str]:
    for op in block.operations:
        yield from _operation(op, types, pad)


def _operation(op: Operation, types: dict[str, str], pad: str) -> Iterator[str]:
    signature = f": ({', '.join(types.get(o, '?') for o in op.operands)}) -> ({', '.join(t for _, t in op.results)})"
    types.update(op.results)
    results = _results(op.results)
    attributes = f" {_dictionary(op.attributes)}" if op.attributes else ""
    head = f'{pad}{results}"{op.name}"({", ".join(op.operands)})'
    if not op.regions:
        yield f"{head}{attributes} {signature}"
        return
    for i, region in enumerate(op.regions):
        yield f"{head} ({{" if i == 0 else f"{pad}}}, {{"
        arguments = ", ".join(f"{n}: {t}" for n, t in region.arguments)
        yield f"{pad}^bb0({arguments}):" if arguments else f"{pad}^bb0:"
        yield from _operations(region, {**types, **dict(region.arguments)}, pad + "  ")
    yield f"{pad}}}){attributes} {signature}"


def _results(results: tuple[tuple[str, str], ...]) -> str:
    if not results or results[0][0].startswith("%_"):
        return ""
    first, _, index = results[0][0].partition("#")
    # %0:2 defines %0#0 and %0#1
    grouped = index and all(n == f"{first}#{i}" for i, (n, _) in enumerate(results))
    return f"{first}:{len(results)} = " if grouped else ", ".join(n for n, _ in results) + " = "


def _dictionary(attributes: Mapping[str, Attribute]) -> str:
    parts = [_key(k) if v is None else f"{_key(k)} = {_attribute(v)}" for k, v in attributes.items()]
    return "{" + ", ".join(parts) + "}"


def _key(name: str) -> str:
    plain = name and all(c.isalnum() or c in "_$." for c in name) and not name[0].isdigit()
    return name if plain else quoted(name)


def quoted(text: str) -> str:
    def one(c: str) -> str:
        return c if " " <= c <= "~" and c not in '"\\' else "".join(f"\\{b:02X}" for b in c.encode())

    return f'"{"".join(map(one, text))}"'


def _attribute(value: Attribute) -> str:
    match value:
        case None:
            return "unit"
        case bool():
            return "true" if value else "false"
        case Number(text, type):
            return f"{text} : {type}" if type else text
        case str():
            return quoted(value)
        case Symbol(name):
            return "@" + "::@".join(_name(part) for part in name.split("::@"))
        case Raw(text):
            return text
        case Dense(body, type):
            kind, _, name = body.partition("resource ")
            return f"dense_resource<{name}> : {type}" if not kind and name else f"dense<{body}> : {type}"
        case Ints(values, type):
            texts = [("false", "true")[v] if type == "i1" else str(v) for v in values]
            return f"array<{type}: {', '.join(texts)}>" if values else f"array<{type}>"
        case list():
            return f"[{', '.join(map(_attribute, value))}]"
        case dict():
            return _dictionary(value)
