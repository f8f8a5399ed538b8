"""The syntax of StableHLO text: operations with attributes and regions, in generic form.

    module    ::= function*
    function  ::= name, block                       visibility and attributes beside
    operation ::= name, operand names, attributes, regions, result names and types
    attribute ::= None (unit) | bool | Number | str | Symbol | Raw | Dense | Ints | list | dict

Types stay text until the importer asks (`types.tensor_type`): one string per type, equal where the types are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ingot.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Number:
    """`5 : i64`, `1.5 : f32`; `text` as it was written, so that floats keep their digits."""

    text: str
    type: str = ""

    def __int__(self) -> int:
        return int(self.text, 0)


@dataclass(frozen=True, slots=True)
class Symbol:
    """`@name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Raw:
    """A type, or an attribute of a dialect, as text: `tensor<2xf32>`, `#stablehlo.gather<...>`."""

    text: str


@dataclass(frozen=True, slots=True)
class Dense:
    """`dense<body> : type`; see `literals.array`."""

    body: str
    type: str


@dataclass(frozen=True, slots=True)
class Ints:
    """`array<i64: 1, 2>`; of i1 the values are 0 and 1."""

    values: tuple[int, ...]
    type: str = "i64"


Attribute = None | bool | Number | str | Symbol | Raw | Dense | Ints | list["Attribute"] | dict[str, "Attribute"]


@dataclass(frozen=True, slots=True)
class Block:
    """arguments: (name, type) pairs; operations end with a terminator."""

    arguments: tuple[tuple[str, str], ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """results: (name, type) pairs. `loc`: the text of its location, an alias or the location itself; "" for none."""

    name: str
    operands: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    regions: tuple[Block, ...]
    results: tuple[tuple[str, str], ...]
    loc: str = ""


@dataclass(frozen=True, slots=True)
class Function:
    """argument_attributes, result_attributes: one mapping per argument and result."""

    name: str
    body: Block
    result_types: tuple[str, ...]
    argument_attributes: tuple[Mapping[str, Attribute], ...] = ()
    result_attributes: tuple[Mapping[str, Attribute], ...] = ()
    visibility: str = ""
    argument_locs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Module:
    name: str
    functions: Mapping[str, Function]
    attributes: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])
    locations: Mapping[str, str] = field(default_factory=dict[str, str])
    resources: Mapping[str, str] = field(default_factory=dict[str, str])
    meshes: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def main(self) -> Function | None:
        """The function that a caller runs: `main`, or the only public one."""
        public = [f for f in self.functions.values() if f.visibility != "private"]
        return self.functions.get("main") or (public[0] if len(public) == 1 else None)
