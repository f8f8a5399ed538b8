"""A TorchScript method as plain data, which the evaluator reads and processes exchange.

block  ::= inputs -> outputs, over nodes
node   ::= outputs = kind(inputs), with a constant, an attribute's path or blocks
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import torch

from ingot.frontends.torch.convert import to_numpy, to_torch
from ingot.support import safetensors
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

_TENSORS, _PROGRAM = "tensors.safetensors", "program.json"


@dataclass(frozen=True, eq=False)
class Node:
    """kind: such as `aten::add.Tensor` or `prim::If`. attribute: of GetAttr and SetAttr, its path from the module.
    value: of a Constant."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    blocks: tuple[Block, ...] = ()
    attribute: str = ""
    value: Any = None
    loc: str = ""


@dataclass(frozen=True, eq=False)
class Block:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]

    def set_attributes(self) -> tuple[str, ...]:
        """Paths of attributes that nodes set, including inner blocks."""
        attributes = [n.attribute for n in self.nodes if n.kind == "prim::SetAttr"]
        inner = [path for n in self.nodes for b in n.blocks for path in b.set_attributes()]
        return tuple(dict.fromkeys([*attributes, *inner]))


@dataclass(frozen=True, eq=False)
class Argument:
    name: str
    has_default: bool = False
    default: Any = None


@dataclass(frozen=True, eq=False)
class Program:
    """A module's forward. attributes: values by path. written_paths: those that forward sets."""

    name: str
    arguments: tuple[Argument, ...]
    body: Block
    attributes: Mapping[str, Any]
    written_paths: tuple[str, ...]


# --- as files: JSON and a tensor file


@dataclass
class _Writer:
    """tensors: storages by name. Tensors that share memory share it in the file."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    names: dict[tuple[int, torch.dtype], str] = field(default_factory=dict[tuple[int, torch.dtype], str])

    def value(self, v: Any) -> Any:
        match v:
            case torch.Tensor():
                v = v.detach().cpu().resolve_conj().resolve_neg()
                memory = v.new_empty(0).set_(v.untyped_storage())
                name = self.names.setdefault((memory.data_ptr(), v.dtype), str(len(self.tensors)))
                self.tensors[name] = memory
                return {"tensor": [name, list(v.shape), v.stride(), v.storage_offset()]}
            case None | bool() | int() | float() | str():
                return v
            case torch.device():
                return {"device": str(v)}
            case dict():
                return {"dict": [[self.value(k), self.value(w)] for k, w in v.items()]}
            case list() | tuple():
                return {"tuple" if isinstance(v, tuple) else "list": [self.value(w) for w in v]}
            case _:
                raise TypeError(f"a constant of type {type(v).__name__}")

    def block(self, b: Block) -> Any:
        return {"inputs": b.inputs, "outputs": b.outputs, "nodes": [self.node(n) for n in b.nodes]}

    def node(self, n: Node) -> Any:
        blocks = [self.block(b) for b in n.blocks]
        return [n.kind, n.inputs, n.outputs, blocks, n.attribute, self.value(n.value), n.loc]


def write(program: Program, folder: Path) -> None:
    """Raises TypeError for values that JSON cannot represent."""
    w = _Writer()
    arguments = [[a.name, a.has_default, w.value(a.default)] for a in program.arguments]
    attributes = {k: w.value(v) for k, v in program.attributes.items()}
    data = [program.name, arguments, w.block(program.body), attributes, program.written_paths]
    safetensors.write(folder / _TENSORS, {k: to_numpy(v) for k, v in w.tensors.items()})
    (folder / _PROGRAM).write_text(json.dumps(data))


def read(folder: Path) -> Program:
    """Raises ImportModelError for files that are not from `write`."""
    try:
        tensors = {k: to_torch(v.copy()) for k, v in safetensors.read(folder / _TENSORS).items()}
        name, arguments, body, attributes, written_paths = json.loads((folder / _PROGRAM).read_text())
        return Program(
            str(name),
            tuple(Argument(str(n), bool(has), _value(v, tensors)) for n, has, v in arguments),
            _block(body, tensors),
            {str(k): _value(v, tensors) for k, v in attributes.items()},
            tuple(map(str, written_paths)),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as e:
        raise ImportModelError(f"the TorchScript archive was not read: {e}") from e


def _value(v: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(v, dict):
        return v
    ((kind, inner),) = v.items()
    if kind == "tensor":
        name, *strided = inner
        return tensors[name].as_strided(*strided)
    if kind == "device":
        return torch.device("cpu")
    if kind == "dict":
        return {_value(k, tensors): _value(w, tensors) for k, w in inner}
    items = [_value(w, tensors) for w in inner]
    return tuple(items) if kind == "tuple" else items


def _names(v: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(str, v))


def _block(v: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Block:
    nodes = tuple(
        Node(
            str(kind), _names(inputs), _names(outputs), tuple(_block(b, tensors) for b in blocks), str(attribute),
            _value(value, tensors), str(loc),
        )
        for kind, inputs, outputs, blocks, attribute, value, loc in v["nodes"]
    )  # fmt: skip
    return Block(_names(v["inputs"]), _names(v["outputs"]), nodes)
