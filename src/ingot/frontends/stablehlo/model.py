"""A StableHLO file or text: the caller's requests about arguments, and the adapters of a caller's arrays."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ingot.frontends.shared.dynamic import Dynamic, requests
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.subprocesses import limit_resources, run_in_subprocess
from ingot.frontends.shared.weights import Weights, arrays_of
from ingot.frontends.stablehlo.importer import COMPLEX, Argument, Leaf, import_module
from ingot.frontends.stablehlo.pretty import parse
from ingot.frontends.stablehlo.rows import ROWS
from ingot.frontends.stablehlo.syntax import Module
from ingot.frontends.stablehlo.types import tensor_type
from ingot.ir.dims import DimLike
from ingot.ir.node import Graph
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, InputError

BYTECODE = b"ML\xefR"
_READER_CODE = "from ingot.frontends.stablehlo.model import main; main()"
_READER_SECONDS = 300
_READER_MEMORY_BYTES = 4 << 30  # of address space: jaxlib alone takes one GB
_MAX_MEMORY_RATIO = 64  # of memory to bytecode: constants are copied several times, and become text


@dataclass(frozen=True)
class ImportedModel:
    """A program as a graph, with the adapters of a caller's arrays to it."""

    graph: Graph
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]

    @property
    def plain(self) -> bool:
        """Whether a caller's arrays are the graph's inputs and outputs without conversion."""
        return all(leaf.kind == "tensor" for leaf in (*self.inputs, *self.outputs))

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The graph's inputs of a call's arguments, by position or by name."""
        names = [leaf.name for leaf in self.inputs]
        values = dict(zip(names, args, strict=False)) | dict(kwargs)
        if len(values) != len(args) + len(kwargs) or set(values) != set(names):
            raise InputError("inputs", expected=", ".join(names), got=f"{len(args)} values, and {list(kwargs)} by name")
        return self.graph_inputs([values[name] for name in names])

    def graph_inputs(self, values: Sequence[Any]) -> list[Any]:
        """The graph's inputs of main's arguments in their order."""
        return [_leaf_array(leaf, value) for leaf, value in zip(self.inputs, values, strict=True)]

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """One array, or a tuple in main's order, of the graph's outputs."""
        results = self.results(outputs)
        return results[0] if len(results) == 1 else tuple(results)

    def results(self, outputs: Sequence[Any]) -> list[Any]:
        """main's results in their order, of the graph's outputs."""
        return [_result(leaf, y) for leaf, y in zip(self.outputs, outputs, strict=True)]


def _leaf_array(leaf: Leaf, value: Any) -> Any:
    """An argument as the graph takes it."""
    if leaf.kind != COMPLEX:
        return value
    array, dtype = np.asarray(value), np.result_type(leaf.dtype.numpy, np.complex64)
    if array.dtype != dtype:
        raise InputError(f"input {leaf.name!r}", expected=dtype, got=array.dtype)
    return np.stack([np.real(array), np.imag(array)], -1)


def _result(leaf: Leaf, value: Any) -> Any:
    if leaf.kind != COMPLEX:
        return value
    pairs = np.ascontiguousarray(value)
    return pairs.view(np.result_type(pairs.dtype, np.complex64))[..., 0]


def import_stablehlo(
    source: str | os.PathLike[str] | bytes | Module, *, dynamic: Dynamic = None, weights: Weights | None = None,
    names: Sequence[str] | None = None, shapes: Sequence[tuple[DimLike, ...] | None] | None = None, where: str = "",
) -> ImportedModel:  # fmt: skip
    """A StableHLO program as a MODEL-level graph.

    source: a path, the text itself (it has a line break), portable bytecode, or a parsed module.
    dynamic: of the sizes that main's types leave open, symbols `<argument>_<axis>`: None keeps them, False refuses
        them; a mapping gives symbols a size or inclusive bounds, an argument names for its axes: {"x": {0: "batch"}}.
    weights: arguments, by index or name, that always have these values: they are constants of the graph. Or the path of
        a safetensors file, whose arrays are those of the arguments of their names.
    names: of main's arguments; by default those of the text, or of its locations.
    shapes: of arguments whose type leaves sizes open.

    Raises ImportModelError for text that cannot be read, UnsupportedOpError naming every op that there is no row for,
    InputError for arguments here that do not fit main's.
    """
    module, where = _module(source, where)
    main = module.main
    if main is None:
        functions = ", ".join(module.functions)
        raise ImportModelError("a module has no main function", expected="@main", got=functions, where=where or None)
    labels = _names(module) if names is None else list(names)
    values = arrays_of(weights, labels)
    declared = [_declared(type, shapes[i] if shapes else None) for i, (_, type) in enumerate(main.body.arguments)]
    requested = requests(dynamic, dict(zip(labels, declared, strict=True)))
    arguments = [
        Argument(label, None if shape is None else requested.shapes[label], values.get(label))
        for label, shape in zip(labels, declared, strict=True)
    ]
    imported = import_module(module, ROWS, arguments, where)
    graph = replace(imported.graph, bounds=requested.limits(imported.graph))
    return ImportedModel(graph, imported.inputs, imported.outputs)


def _module(source: str | os.PathLike[str] | bytes | Module, where: str) -> tuple[Module, str]:
    if isinstance(source, Module):
        return source, where
    if isinstance(source, str) and "\n" in source:
        return parse(source, where), where
    if isinstance(source, bytes):
        data = source
    else:
        path = Path(source)
        where = str(path)
        try:
            data = path.read_bytes()
        except OSError as e:
            raise ImportModelError(f"cannot read the model: {e.strerror}", where=where) from e
    if data.startswith(BYTECODE):
        return parse(text_in_subprocess(data, where), where), where
    try:
        return parse(data.decode(), where), where
    except UnicodeDecodeError as e:
        raise ImportModelError("not a StableHLO program", expected="text in UTF-8, or bytecode", where=where) from e


def text_of(bytecode: bytes) -> str:
    """Trusted portable bytecode as text, by jaxlib, which damaged bytecode can crash. Raises as MLIR does."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    with ir.Context() as context:
        for dialect in (stablehlo, chlo, sdy):
            dialect.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, bytecode)
        return str(module.operation.get_asm(enable_debug_info=True))


def text_in_subprocess(bytecode: bytes, where: str) -> str:
    """Untrusted bytecode as text. Raises ImportModelError without jaxlib, and for bytecode that it cannot read."""
    if importlib.util.find_spec("jaxlib") is None:
        fix = "pip install 'ingot-compiler[jax]', or give the program as text"
        raise ImportModelError("reading StableHLO bytecode needs jaxlib", where=where or None, fix=fix)
    return run_in_subprocess(_READER_CODE, [], "not readable as StableHLO bytecode", where, stdin=bytecode).decode()


def main() -> None:
    """The process's entry point: bytecode from stdin, text to stdout."""
    data = sys.stdin.buffer.read()
    limit_resources(_READER_SECONDS, _READER_MEMORY_BYTES + _MAX_MEMORY_RATIO * len(data))
    try:
        text = text_of(data)
    except Exception as e:  # of MLIR's own kind, a ValueError, or a MemoryError
        sys.stderr.write(" ".join(str(e).split()) or type(e).__name__)
        raise SystemExit(1) from None
    sys.stdout.buffer.write(text.encode())


def _names(module: Module) -> list[str]:
    """The names of main's arguments: from `loc("x")` where there is one, else from `%x`."""
    assert module.main is not None
    main = module.main
    names: list[str] = []
    for i, (name, _) in enumerate(main.body.arguments):
        text = main.argument_locs[i] if i < len(main.argument_locs) else ""
        text = module.locations.get(text, text)
        quoted = re.fullmatch(r'"([^"]*)"', text)
        names.append(quoted[1] if quoted and quoted[1] else name.lstrip("%"))
    return names if len(set(names)) == len(names) else [n.lstrip("%") for n, _ in main.body.arguments]


def _declared(text: str, sizes: tuple[DimLike, ...] | None) -> tuple[DimLike | None, ...] | None:
    """The sizes of an argument; None for one that is no tensor, or that is refused with all others."""
    if sizes is not None or not text.startswith("tensor<"):
        return sizes
    try:
        return tensor_type(text).shape
    except Unsupported:
        return None
