"""StableHLO programs in a graph, as JAX and Keras on JAX export them: bytecode in an attribute, walked in its place."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.importer import Importer
from ingot.frontends.stablehlo.model import text_in_subprocess
from ingot.frontends.stablehlo.pretty import parse
from ingot.frontends.stablehlo.rows import ROWS
from ingot.frontends.tensorflow.values import Call, Result, Table, Value
from ingot.ir.node import Node
from ingot.ir.types import i32
from ingot.support.errors import ImportModelError

row = Table()
_PLATFORM = "CPU"


@row("XlaCallModule")
def call_module(c: Call, *operands: Node) -> Result:
    """Its first argument says which of several platforms it runs on."""
    module = parse(text_in_subprocess(c.bytes("module"), c.loc), c.loc)
    main = module.main
    if main is None:
        raise ImportModelError("a module", expected="a function @main", got=", ".join(module.functions), where=c.loc)
    arguments: list[Node] = list(operands)
    platforms = c.texts("platforms")
    if len(platforms) > 1:
        if _PLATFORM not in platforms:
            raise Unsupported(f"for {', '.join(platforms)} alone")
        arguments.insert(0, ops.scalar(platforms.index(_PLATFORM), i32))
    if len(arguments) != len(main.body.arguments):
        raise Unsupported(f"{len(operands)} operands of a program of {len(main.body.arguments)} arguments")
    importer = Importer(module, ROWS, c.loc, c.walk.sizes.inputs, c.walk.computed_sizes)
    results = importer.function(main, arguments)
    if importer.refused:
        c.walk.refused += importer.refused
        raise Unsupported("")
    values: list[Value] = [v for v in results if isinstance(v, Node | Complex)]
    if len(values) != len(results):
        raise Unsupported("results that are no tensors of numbers")
    return values
