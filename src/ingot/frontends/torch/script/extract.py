"""A ScriptModule's forward with all that it calls written in its place, as plain data."""

from __future__ import annotations

import re
from typing import Any

import torch

from ingot.frontends.torch.script.graph import Argument, Block, Node, Program
from ingot.support.errors import ImportModelError, UnsupportedOp, UnsupportedOpError

_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
# of objects that the program makes, whose attributes are their own
_OF_OBJECTS = {"prim::GetAttr": "object::get", "prim::SetAttr": "object::set"}
_MODULES = (torch.jit.ScriptModule, torch._C.ScriptModule)


def extract(module: torch.jit.ScriptModule) -> Program:
    """Raises ImportModelError for a module without forward or in training mode, UnsupportedOpError for attributes that
    are neither modules nor plain values."""
    if not hasattr(module, "forward"):
        raise ImportModelError("a TorchScript module without forward", fix="save one that has it")
    # a frozen module has no mode
    if getattr(module, "training", False) and any(True for _ in module.parameters()):
        raise ImportModelError("the model is in training mode", fix="call .eval() on it before it is saved")
    graph = module.inlined_graph
    schema: Any = getattr(module.forward, "schema")  # noqa: B009 - a ScriptMethod is typed as a function
    self_name, *inputs = (v.debugName() for v in graph.inputs())
    reader = _Reader({self_name: ("", module)})
    body = reader.block(graph, inputs)
    if reader.refused:
        raise UnsupportedOpError(reader.refused, model=module.original_name)
    arguments = tuple(
        Argument(a.name, a.has_default_value(), a.default_value if a.has_default_value() else None)
        for a in schema.arguments[1:]
    )
    return Program(module.original_name, arguments, body, reader.attributes, tuple(reader.written))


class _Reader:
    """modules: what stands for a module in the graph -> (its path, itself)."""

    def __init__(self, modules: dict[str, tuple[str, Any]]) -> None:
        self.modules = modules
        self.attributes: dict[str, Any] = {}
        self.written: dict[str, None] = {}
        self.refused: list[UnsupportedOp] = []

    def block(self, block: Any, inputs: list[str] | None = None) -> Block:
        names = [v.debugName() for v in block.inputs()] if inputs is None else inputs
        nodes: list[Node] = []
        for n in block.nodes():
            made = self.node(n)
            if made is not None:
                nodes.append(made)
        return Block(tuple(names), tuple(v.debugName() for v in block.outputs()), tuple(nodes))

    def node(self, n: Any) -> Node | None:
        kind, loc = n.kind(), _location(n)
        inputs = tuple(v.debugName() for v in n.inputs())
        outputs = tuple(v.debugName() for v in n.outputs())
        if kind == "prim::Constant":
            return Node(kind, (), outputs, value=n.output().toIValue(), loc=loc)
        if kind == "prim::CreateObject":
            return Node(kind, (), outputs, loc=loc)
        if kind in ("prim::GetAttr", "prim::SetAttr") and inputs[0] not in self.modules:
            return Node(_OF_OBJECTS[kind], inputs, outputs, attribute=n.s("name"), loc=loc)
        if kind == "prim::GetAttr":
            return self._get(n, inputs[0], outputs, loc)
        if kind == "prim::SetAttr":
            path = self._path(inputs[0], n.s("name"))
            self.written[path] = None
            self.attributes.setdefault(path, self._attribute(inputs[0], n.s("name")))
            return Node(kind, inputs[1:], (), attribute=path, loc=loc)
        schema = n.schema().split("(")[0]
        name = kind if schema == "" else schema
        return Node(name, inputs, outputs, tuple(self.block(b) for b in n.blocks()), loc=loc)

    def _get(self, n: Any, owner: str, outputs: tuple[str, ...], loc: str) -> Node | None:
        path = self._path(owner, n.s("name"))
        value = self._attribute(owner, n.s("name"))
        if isinstance(value, _MODULES):
            self.modules[outputs[0]] = (path, value)
            return None
        if isinstance(value, torch.ScriptObject):
            self.refused.append(UnsupportedOp("prim::GetAttr", loc, f"{path}: an object of {value._type()}"))
        self.attributes[path] = value
        return Node("prim::GetAttr", (), outputs, attribute=path, loc=loc)

    def _path(self, owner: str, name: str) -> str:
        path = self.modules[owner][0]
        return f"{path}.{name}" if path else name

    def _attribute(self, owner: str, name: str) -> Any:
        return getattr(self.modules[owner][1], name)


def _location(n: Any) -> str:
    found = _PLACE.findall(n.sourceRange())
    return f"{found[0][0]}:{found[0][1]}" if found else ""
