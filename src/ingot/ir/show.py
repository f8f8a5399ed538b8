"""The text form of a graph; `ingot.ir.parse` reads it back exactly.

    graph(%0 "x": f32[s0,8]) [s0: 1..16] {
      %1 = const 0.5 : f32[]
      %2 = const<#0 f32[8,4]>                                  large constants live in a table beside the text
      %3 = dot_general(%0, %2) {batch = ((), ()), contract = ((1,), (0,)), dtype = none} : f32[s0,4]    # model.py:7
      %4 = sort(%3) {dimension = 1, descending = true, stable = false, num_keys = 1} : f32[s0,4], i64[s0,4]
      return %4.0 "values", %4.1 "indices"
    }

Nodes are numbered in order within each graph, so equal graphs print equally. `%4.1` is result 1 of %4. An attribute is
none, true, false, an int, a float (with a point, an exponent, inf or nan), "text", `s0*2` in <> (a symbolic size), a
dtype, a tensor type, a tuple or a graph. Computed sizes follow the results:

      return %7 "places" where $n = %5 max <4*s0>

The names of the state precede the body: its values are the last inputs, and the first results replace them.

    graph(%0 "x": f32[8], %1 "k": f32[8]) state ["cache"] {
"""

from __future__ import annotations

import json
import math

import numpy as np

from ingot.ir.array import Array
from ingot.ir.dims import Dim
from ingot.ir.node import Const, Graph, Node, Op, Project, size_elements
from ingot.ir.types import DType, TensorType, dtype_of

MAX_INLINE_ELEMENTS = 32


def show(
    graph: Graph, *, locations: bool = False, inline: int = MAX_INLINE_ELEMENTS, table: list[Array] | None = None
) -> str:
    """`graph` as text, ending in a newline.

    Constants of up to `inline` elements, and small ones whose elements are all the same, are written out; others are
    appended to `table` and written as `const<#k type>`. `locations` adds each node's source as a trailing comment.
    """
    return "\n".join(_Printer(locations, inline, table).graph(graph, "")) + "\n"


def show_node(node: Node) -> str:
    """One line for messages: the node by its global id, with attributes."""
    text = f"%{node.id} = {_Printer(False, 8, []).application(node, [f'%{i.id}' for i in node.inputs], '')}"
    return f"{text}    # {node.loc}" if node.loc else text


def _elements_text(node: Node) -> str:
    """The elements of an input of sizes, as text."""
    elements = size_elements(node)
    return f" = [{', '.join(map(str, elements))}]" if elements else ""


class _Printer:
    def __init__(self, locations: bool, inline: int, table: list[Array] | None) -> None:
        self.locations = locations
        self.inline = inline
        self.table = table
        self.table_start = len(table or ())
        self.entries: dict[Array, int] = {}

    def graph(self, graph: Graph, indent: str) -> list[str]:
        refs: dict[Node, str] = {}
        for n in graph.inputs:
            refs[n] = f"%{len(refs)}"
        inputs = ", ".join(f"{refs[n]} {_quote(n.op.label)}: {n.type}{_elements_text(n)}" for n in graph.inputs)  # type: ignore[attr-defined]
        bounds = ", ".join(f"{s}: {'' if lo is None else lo}..{'' if hi is None else hi}" for s, lo, hi in graph.bounds)
        conditions = ", ".join(map(str, graph.conditions))
        limits = (f" [{bounds}]" if bounds else "") + (f" nonnegative [{conditions}]" if conditions else "")
        limits += f" state [{', '.join(map(_quote, graph.state))}]" if graph.state else ""
        lines = [f"graph({inputs}){limits} {{"]
        inner_indent = indent + "  "
        count = len(refs)
        for n in graph.nodes():
            if n in refs:
                continue
            if isinstance(n.op, Project):
                refs[n] = f"{refs[n.inputs[0]]}.{n.op.index}"
                continue
            refs[n] = f"%{count}"
            count += 1
            line = f"{inner_indent}{refs[n]} = {self.application(n, [refs[i] for i in n.inputs], inner_indent)}"
            lines.append(f"{line}    # {_one_line(n.loc)}" if self.locations and n.loc else line)
        names = graph.output_names or (None,) * len(graph.results)
        results = (
            refs[n] if name is None else f"{refs[n]} {_quote(name)}"
            for n, name in zip(graph.results, names, strict=True)
        )
        sizes = ", ".join(f"{s} = {refs[graph.size_nodes[s]]} max <{size}>" for s, size in graph.sizes)
        lines.append(f"{inner_indent}return {', '.join(results)}".rstrip() + (f" where {sizes}" if sizes else ""))
        lines.append(indent + "}")
        return lines

    def application(self, node: Node, operands: list[str], indent: str) -> str:
        if isinstance(node.op, Const):
            return self.constant(node.op.array)
        attributes = self.attributes(node.op, indent)
        types = ", ".join(map(str, node.types))
        return f"{node.op.name}({', '.join(operands)}){f' {{{attributes}}}' if attributes else ''} : {types}"

    def attributes(self, op: Op, indent: str) -> str:
        return ", ".join(f"{k} = {self.value(v, indent)}" for k, v in op.attributes().items())

    def constant(self, array: Array) -> str:
        kind = TensorType(dtype_of(array.dtype), array.shape)
        body = literal(array.value, self.inline) if array.nbytes <= Array.MAX_CONTENT_KEY_BYTES else None
        if body is not None:
            return f"const {body} : {kind}"
        if array not in self.entries:
            self.entries[array] = self.table_start + len(self.entries)
            if self.table is not None:
                self.table.append(array)
        return f"const<#{self.entries[array]} {kind}>"

    def value(self, value: object, indent: str) -> str:
        match value:
            case None:
                return "none"
            case bool():
                return "true" if value else "false"
            case int():
                return str(value)
            case float():
                return repr(value)
            case str():
                return _quote(value)
            case Dim():
                return f"<{value}>"
            case DType() | TensorType():
                return str(value)
            case tuple():
                inner = ", ".join(self.value(v, indent) for v in value)
                return f"({inner},)" if len(value) == 1 else f"({inner})"
            case Graph():
                return "\n".join(self.graph(value, indent))
            case np.integer() | np.floating() | np.bool_():
                return self.value(value.item(), indent)
        raise TypeError(f"an attribute cannot hold {type(value).__name__}: {value!r}")


def _quote(text: str) -> str:
    return json.dumps(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def literal(value: np.ndarray, inline: int) -> str | None:
    """The elements of `value` as text that parses to the same bits: one for all, or a list; None if there are too
    many."""
    flat = np.ascontiguousarray(value).reshape(-1)
    if flat.size > 1 and _uniform(flat):
        return f"all {_element(flat[0])}"
    if flat.size > inline:
        return None
    if not value.shape:
        return _element(flat[0])
    return f"[{', '.join(_element(x) for x in flat)}]"


def _uniform(flat: np.ndarray) -> bool:
    raw = flat.view(np.uint8).reshape(flat.size, flat.itemsize)
    return bool((raw == raw[0]).all())


def _element(x: np.generic) -> str:
    kind = dtype_of(x)
    if kind.name == "bool":
        return "true" if x else "false"
    if kind.is_integer:
        return str(int(x))
    number = float(x)
    if math.isnan(number):
        bits = int.from_bytes(x.tobytes(), "little")
        return f"nan(0x{bits:x})"
    # the shortest text of that precision if it parses to the same value, else all digits of the double
    short = str(x)
    if not any(c in short for c in ".en"):
        short += ".0"
    return short if kind.numpy.type(float(short)).tobytes() == x.tobytes() else repr(number)
