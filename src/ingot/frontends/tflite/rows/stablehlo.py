"""StableHLO's operators: by the rows of StableHLO's frontend, whose regions are subgraphs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo import importer, values
from ingot.frontends.stablehlo.rows import ROWS
from ingot.frontends.stablehlo.syntax import Attribute, Block, Ints, Module, Number, Operation, Raw
from ingot.frontends.stablehlo.types import Tensor
from ingot.frontends.tflite import schema
from ingot.frontends.tflite.call import Call, Table, Value
from ingot.frontends.tflite.rows.control import branches, called, loop
from ingot.ir.node import Node
from ingot.support.dataclass import dataclass

row = Table()
_PREFIX = "STABLEHLO_"
_NAMES = {name.removeprefix(_PREFIX) for name in schema.OPERATORS if name.startswith(_PREFIX)}
_DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")
_COMPARISONS = ("NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED")
_ALGORITHMS = ("DEFAULT", "PHILOX", "THREE_FRY")


@dataclass(frozen=True, slots=True)
class _Subgraph(Block):
    """A region that is subgraph `index`."""

    index: int = 0


class _Importer(importer.Importer):
    """Runs regions in the walk over the file's subgraphs."""

    def __init__(self, c: Call) -> None:
        super().__init__(Module("", {}), ROWS, c.loc, c.importer.inputs)
        self.sizes, self.walk = c.importer.sizes, c.importer

    def block(
        self, block: Block, arguments: Sequence[object], outer: values.Scope | None, captures: object = None
    ) -> tuple[object, ...]:
        assert isinstance(block, _Subgraph)
        return self.walk.run(block.index, cast(Sequence[Value], arguments))


class _Operation(values.Call):
    """The fields of dimension numbers stand beside the other attributes."""

    def fields(self, name: str) -> values.Call:
        return self

    def raw(self, name: str) -> str:
        """A convolution's dimension numbers."""
        layouts = [
            self._side(*letters) for letters in (("input", "b", "f"), ("kernel", "i", "o"), ("output", "b", "f"))
        ]
        return f"{layouts[0]}x{layouts[1]}->{layouts[2]}"

    def _side(self, name: str, *letters: str) -> str:
        places = ("batch", "feature") if name != "kernel" else ("input_feature", "output_feature")
        spatial = self.ints(f"{name}_spatial")
        at = {self.int(f"{name}_{place}"): letter for place, letter in zip(places, letters, strict=True)}
        at |= {d: str(i) for i, d in enumerate(spatial)}
        if sorted(at) != list(range(len(spatial) + 2)):
            raise Unsupported(f"dimension numbers {at} of its {name}")
        return f"[{', '.join(at[d] for d in range(len(at)))}]"


def _attribute(name: str, value: object) -> Attribute:
    words = {"comparison_direction": _DIRECTIONS, "compare_type": _COMPARISONS, "rng_algorithm": _ALGORITHMS}
    if name in words:
        number = int(cast(int, value))
        if not 0 <= number < len(words[name]):
            raise Unsupported(f"{name} {number}")
        return Raw(words[name][number])
    if isinstance(value, np.ndarray):
        return Ints(tuple(int(v) for v in value))
    return value if isinstance(value, str) else Number(str(int(cast(int, value))))


def _region(c: Call, index: int) -> Block:
    subgraphs = c.importer.model.subgraphs
    if not 0 <= index < len(subgraphs):
        raise c.importer.malformed(f"subgraph {index} of {len(subgraphs)}")
    return _Subgraph(tuple((f"arg{i}", "") for i in range(len(subgraphs[index].inputs))), (), index)


def _by_its_row(c: Call) -> Sequence[Value]:
    return _results(c, [tuple(None if d < 0 else d for d in t.signature) for t in c.results])


def _results(c: Call, shapes: Sequence[tuple[int | None, ...]]) -> Sequence[Value]:
    """shapes: of the results."""
    name = f"stablehlo.{c.op.name.removeprefix(_PREFIX).lower()}"
    # an empty list is one that the file leaves out
    options = {k: v for k, v in c.op.options.items() if not isinstance(v, np.ndarray) or len(v)}
    attributes = {k: _attribute(k, v) for k, v in options.items()}
    regions = tuple(_region(c, int(v)) for k, v in options.items() if k.endswith("subgraph_index"))
    types = tuple(Tensor(shape, c.type(i)) for i, shape in enumerate(shapes))
    op = Operation(name, (), attributes, regions, (("", ""),) * len(types))
    call = _Operation(_Importer(c), op, values.Scope(), types, c.loc, attributes)
    return cast(Sequence[Value], importer.call_row(call, c.values))


row(*(f"{_PREFIX}{name}" for name in sorted(_NAMES - {"WHILE", "CASE", "COMPOSITE", "RNG_BIT_GENERATOR"})))(_by_its_row)


@row("STABLEHLO_RNG_BIT_GENERATOR")
def rng_bit_generator(c: Call) -> Sequence[Value]:
    """LiteRT draws for a vector, which XLA does not for other shapes."""
    state, bits = (t.shape for t in c.results)
    new, drawn = _results(c, [state, (prod(bits),)])
    return new, ops.reshape(cast(Node, drawn), bits)


@row("STABLEHLO_WHILE", is_movement=True)
def while_(c: Call) -> Sequence[Value]:
    return loop(c)


@row("STABLEHLO_CASE", is_movement=True)
def case(c: Call) -> Sequence[Value]:
    return branches(c, c.list("branch_subgraph_indices"), c.x(0))


@row("STABLEHLO_COMPOSITE", is_movement=True)
def composite(c: Call) -> Sequence[Value]:
    return called(c, c.int("decomposition_subgraph_index"), c.values)
