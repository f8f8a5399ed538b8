"""A TFLite model as records: numbered tensors, and operators over them in order."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from ingot.frontends.tflite.file import Quantization
from ingot.ir.node import Node
from ingot.support.dataclass import dataclass


@dataclass
class Tensor:
    """data: the elements of a constant. quantization: of a tensor of levels, or of a float constant whose elements lie
    on levels. node: the node whose value it has, in either order; None for an intermediate tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray | None = None
    quantization: Quantization | None = None
    node: Node | None = None


@dataclass
class Operator:
    """name: of a builtin operator. table: of its options, "" for none. inputs: tensors, -1 for an omitted one."""

    name: str
    inputs: list[int]
    outputs: list[int]
    table: str = ""
    options: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Model:
    """inputs, outputs: the numbers of tensors; input_names, output_names: their names in the model. subgraphs: loops
    and branches, numbered from 1."""

    tensors: list[Tensor] = field(default_factory=list[Tensor])
    operators: list[Operator] = field(default_factory=list[Operator])
    inputs: list[int] = field(default_factory=list[int])
    outputs: list[int] = field(default_factory=list[int])
    input_names: list[str] = field(default_factory=list[str])
    output_names: list[str] = field(default_factory=list[str])
    subgraphs: list[Model] = field(default_factory=list["Model"])

    def add(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def constant(self, value: np.ndarray, name: str = "", levels: Quantization | None = None) -> int:
        """Add a constant. levels: the quantization of float elements that lie on levels."""
        prefixes = {"float": "f", "int": "i", "uint": "u"}
        kind = value.dtype.name.rstrip("0123456789")
        dtype = "bool" if kind == "bool" else f"{prefixes[kind]}{8 * value.itemsize}"
        data = np.ascontiguousarray(value).reshape(value.shape)
        return self.add(Tensor(name or f"constant_{len(self.tensors)}", dtype, value.shape, data, levels))

    def uses(self) -> dict[int, int]:
        """The number of readers of each tensor; an output of the model counts as a reader."""
        counts: dict[int, int] = {}
        for i in (*(i for op in self.operators for i in op.inputs), *self.outputs):
            counts[i] = counts.get(i, 0) + 1
        return counts

    def compact(self) -> None:
        """Remove operators whose results have no readers, and then tensors without readers."""
        live = set(self.outputs)
        live_operators: list[Operator] = []
        for op in reversed(self.operators):
            if live.intersection(op.outputs):
                live_operators.append(op)
                live.update(op.inputs)
        self.operators = live_operators[::-1]
        live.update(self.inputs, (i for op in self.operators for i in op.outputs))
        order = [i for i in range(len(self.tensors)) if i in live]
        new_numbers = {old: new for new, old in enumerate(order)} | {-1: -1}
        self.tensors = [self.tensors[i] for i in order]
        for op in self.operators:
            op.inputs = [new_numbers[i] for i in op.inputs]
            op.outputs = [new_numbers[i] for i in op.outputs]
        self.inputs, self.outputs = [new_numbers[i] for i in self.inputs], [new_numbers[i] for i in self.outputs]
