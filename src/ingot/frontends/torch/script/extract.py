"""A ScriptModule's forward, with all calls inlined, as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ingot.frontends.torch.script.graph import Argument, Block, Node, Program
from ingot.support.errors import ImportModelError, UnsupportedOp, UnsupportedOpError

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# ops on objects that the program creates; objects that a module holds are treated as modules
_OBJECT_OPS = {"prim::GetAttr": "object::get", "prim::SetAttr": "object::set"}
_ARITHMETIC = frozenset(("aten::add", "aten::sub", "aten::mul", "aten::floor_divide", "aten::remainder"))
_MODULES = (torch.jit.ScriptModule, torch._C.ScriptModule)


def extract(module: torch.jit.ScriptModule) -> Program:
    """Raises ImportModelError for a module without forward or in training mode, UnsupportedOpError for attributes that
    are neither modules nor plain values."""
    if not hasattr(module, "forward"):
        raise ImportModelError("a TorchScript module without forward", fix="save one that has it")
    # a frozen module has no training mode
    if getattr(module, "training", False) and any(True for _ in module.parameters()):
        raise ImportModelError("the model is in training mode", fix="call .eval() on it before it is saved")
    graph = module.inlined_graph
    schema: Any = getattr(module.forward, "schema")  # noqa: B009 - a ScriptMethod is typed as a function
    self_name, *inputs = (v.debugName() for v in graph.inputs())
    reader = _Reader({self_name: ("", module)}, _types_set(graph))
    body = reader.block(graph, inputs)
    if reader.refused:
        raise UnsupportedOpError(reader.refused, model=module.original_name)
    arguments = tuple(
        Argument(a.name, a.has_default_value(), a.default_value if a.has_default_value() else None)
        for a in schema.arguments[1:]
    )
    return Program(module.original_name, arguments, body, reader.attributes, tuple(reader.written_paths))


class _Reader:
    """modules: a graph value that is a module, or an object that one holds -> (its path, the object). A shared object
    has the path at which it is met first, so that all see what is set there. types_set: the types whose attributes the
    program sets; other objects need not be recognized as shared."""

    def __init__(self, modules: dict[str, tuple[str, Any]], types_set: frozenset[str]) -> None:
        self.modules = modules
        self.types_set = types_set
        self.objects_by_type: dict[str, list[tuple[str, Any]]] = {}  # (path, object) by type
        self.attributes: dict[str, Any] = {}
        self.written_paths: dict[str, None] = {}
        self.refused: list[UnsupportedOp] = []

    def block(self, block: Any, inputs: list[str] | None = None) -> Block:
        names = [v.debugName() for v in block.inputs()] if inputs is None else inputs
        nodes: list[Node] = []
        for n in block.nodes():
            node_outputs = self.node(n)
            if node_outputs is not None:
                nodes.append(node_outputs)
        outputs = tuple(v.debugName() for v in block.outputs())
        self._refuse_objects("prim::Return", outputs, nodes[-1].loc if nodes else "")
        return Block(tuple(names), outputs, tuple(nodes))

    def node(self, n: Any) -> Node | None:
        kind, loc = n.kind(), _location(n)
        inputs = tuple(v.debugName() for v in n.inputs())
        outputs = tuple(v.debugName() for v in n.outputs())
        if kind == "prim::Constant":
            value = n.output().toIValue()
            return Node(kind, (), outputs, value=int(value) if _stands_for_a_number(n, value) else value, loc=loc)
        if "MKLDNN" in kind or kind in ("aten::to_mkldnn", "prim::mkldnn_convolution"):
            reason = "made by torch.jit.optimize_for_inference: save the module as it was before"
            self.refused.append(UnsupportedOp(kind, loc, reason))
        if kind == "prim::CreateObject":
            return Node(kind, (), outputs, loc=loc)
        if kind in ("prim::GetAttr", "prim::SetAttr") and inputs[0] not in self.modules:
            return Node(_OBJECT_OPS[kind], inputs, outputs, attribute=n.s("name"), loc=loc)
        if kind == "prim::GetAttr":
            return self._get(n, inputs[0], outputs, loc)
        if kind == "prim::SetAttr":
            path, type = self._path(inputs[0], n.s("name")), list(n.inputs())[1].type()
            if type.kind() == "ClassType":
                self.refused.append(UnsupportedOp(kind, loc, f"of {path}, which is an object"))
                return None
            self.written_paths[path] = None
            self.attributes.setdefault(path, self._attribute(inputs[0], n.s("name"), type))
            return Node(kind, inputs[1:], (), attribute=path, loc=loc)
        if kind == "prim::fork":
            return self._forked(n, inputs, outputs, loc)
        self._refuse_objects(kind, inputs, loc)
        schema = n.schema().split("(")[0]
        name = kind if schema == "" else schema
        return Node(name, inputs, outputs, tuple(self.block(b) for b in n.blocks()), loc=loc)

    def _refuse_objects(self, kind: str, names: Sequence[str], loc: str) -> None:
        if strangers := [self.modules[i][0] for i in names if i in self.modules]:
            self.refused.append(UnsupportedOp(kind, loc, f"of {', '.join(strangers)}, an object that a module holds"))

    def _forked(self, n: Any, inputs: tuple[str, ...], outputs: tuple[str, ...], loc: str) -> Node:
        """A task as a branch that is always taken: its block's arguments are outer values."""
        task = _task(n)
        names = [v.debugName() for v in task.inputs()]
        self.modules |= {name: self.modules[i] for name, i in zip(names, inputs, strict=True) if i in self.modules}
        graph_inputs = [(name, i) for name, i in zip(names, inputs, strict=True) if i not in self.modules]
        body = self.block(task, [name for name, _ in graph_inputs])
        return Node("prim::fork", tuple(i for _, i in graph_inputs), outputs, (body,), loc=loc)

    def _get(self, n: Any, owner: str, outputs: tuple[str, ...], loc: str) -> Node | None:
        path, type = self._path(owner, n.s("name")), n.output().type()
        if _is_packed(type):
            self.refused.append(UnsupportedOp("prim::GetAttr", loc, f"{path}: an object of {type}"))
            return Node("prim::GetAttr", (), outputs, attribute=path, loc=loc)
        value = self._attribute(owner, n.s("name"), type)
        if isinstance(value, (*_MODULES, _ScriptObject)):
            self.modules[outputs[0]] = self._first(path, value, type)
            return None
        self.attributes[path] = value
        return Node("prim::GetAttr", (), outputs, attribute=path, loc=loc)

    def _first(self, path: str, value: Any, type: Any) -> tuple[str, Any]:
        """(path, value) at which this object was met first."""
        if type.str() not in self.types_set:
            return path, value
        met = self.objects_by_type.setdefault(type.str(), [])
        for candidate in met:
            if candidate[0] == path or _is_same(candidate[1], value):
                return candidate
        met.append((path, value))
        return met[-1]

    def _path(self, owner: str, name: str) -> str:
        path = self.modules[owner][0]
        return f"{path}.{name}" if path else name

    def _attribute(self, owner: str, name: str, type: Any) -> Any:
        """The value of an attribute; `_ScriptObject` for an object of a class of the program's own."""
        tensor = self.modules[owner][1]
        if isinstance(tensor, _ScriptObject):
            return tensor.at(name, type)
        inner = type.kind() == "ClassType" and name not in _submodules(tensor)
        return _ScriptObject(tensor, ()).at(name, type) if inner else getattr(tensor, name)


class _ScriptObject:
    """An object of a class of the program that a module holds. Python may lack its class, so its attributes are read by
    a graph that torch runs."""

    def __init__(self, module: Any, names: tuple[tuple[str, Any], ...]) -> None:
        """names: the path of attributes from the module, with their types."""
        self.module, self.names = getattr(module, "_c", module), names

    def at(self, name: str, type: Any) -> Any:
        names = (*self.names, (name, type))
        if type.kind() == "ClassType":
            return _ScriptObject(self.module, names)
        graph = torch._C.Graph()
        graph.registerOutput(_read_path(graph, self.module, names))
        return torch._C._create_function_from_graph("held", graph)(self.module)


def _read_path(graph: Any, module: Any, names: Sequence[tuple[str, Any]]) -> Any:
    """Builds, in `graph`, the read of an object at a path of attributes from the module, a new input."""
    value = graph.addInput("")
    value.setType(module._type())
    for name, type in names:
        node = graph.create("prim::GetAttr", [value], 1)
        node.s_("name", name)
        value = graph.insertNode(node).output()
        value.setType(type)
    return value


def _is_same(a: Any, b: Any) -> bool:
    """Whether both are the same module or held object, possibly in different Python wrappers."""
    graph = torch._C.Graph()
    owners = [(v.module, v.names) if isinstance(v, _ScriptObject) else (getattr(v, "_c", v), ()) for v in (a, b)]
    node = graph.insertNode(graph.create("aten::__is__", [_read_path(graph, *owner) for owner in owners], 1))
    node.output().setType(torch._C.BoolType.get())
    graph.registerOutput(node.output())
    return torch._C._create_function_from_graph("same", graph)(*(module for module, _ in owners))


def _types_set(graph: Any) -> frozenset[str]:
    """Types of the objects whose attributes a program sets, including its tasks."""
    types = {next(n.inputs()).type().str() for n in graph.findAllNodes("prim::SetAttr")}
    return frozenset(types).union(*(_types_set(_task(n)) for n in graph.findAllNodes("prim::fork")))


def _task(fork: Any) -> Any:
    """The graph of a task, with its calls inlined."""
    task = fork.g("Subgraph").copy()
    torch._C._jit_pass_inline(task)
    return task


def _submodules(module: Any) -> Mapping[str, Any]:
    return dict(torch._C.ModuleDict(getattr(module, "_c", module)).items())


def _stands_for_a_number(constant: Any, value: Any) -> bool:
    """Whether a tensor is only used as an integer: traces have sizes (`n * 4`) as tensors of rank 0."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.int64 or value.dim():
        return False
    users = [use.user for use in constant.output().uses()]
    return all(
        u.kind() in _ARITHMETIC and any(i.node().kind() != "prim::Constant" for i in list(u.inputs())[:2])
        for u in users
    )


def _is_packed(type: Any) -> bool:
    """Whether values are C++ objects of torch, such as packed weights of its quantized modules."""
    return str(type).startswith("__torch__.torch.classes.")


def _location(n: Any) -> str:
    places = _FRAME.findall(n.sourceRange())
    return f"{places[0][0]}:{places[0][1]}" if places else ""
