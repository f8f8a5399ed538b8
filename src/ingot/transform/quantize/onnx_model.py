"""Write a quantized model's formats into its original ONNX model, for other runtimes.

    MatMul(x, W)   ->   MatMul(DequantizeLinear(QuantizeLinear(x)), DequantizeLinear(levels of W))       int8
                        MatMul(DequantizeLinear(DynamicQuantizeLinear(x)), ...)                          int8-dynamic
                        the same, and MatMul(DequantizeLinear(QuantizeLinear(rest of x)), ...) added         int16
                        as int8, and all other readers of x read DequantizeLinear(QuantizeLinear(x))     int8-shared
                        MatMulNBits(x, packed levels)                                                    weight8, 4

Norms that Ingot folds into weights stay as nodes: the scales of the levels are divided by their channel factors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ingot.ir.types import f16
from ingot.support.errors import InputError
from ingot.support.files import atomic_write
from ingot.transform.quantize.formats import DYNAMIC, FLOAT, PAIRED, SHARED_STATIC, STORED_FLOATS, Formats, Recipe
from ingot.transform.quantize.ranges import Levels
from ingot.transform.quantize.sites import Group, Site, StateSite
from ingot.transform.quantize.weights import Blocks, Channels

_OPSET = 13  # the first whose DequantizeLinear has a scale for each channel
_TOLERANCE = 1e-4  # between the weights and the file's, up to a factor of each channel
_MICROSOFT = "com.microsoft"


def write_onnx(source: Any, path: Path, groups: Sequence[Group], recipe: Recipe, formats: Formats) -> None:
    """Raises InputError if a product is not a node of the file, or its weights differ from the file's."""
    model = (
        onnx.load(str(source))
        if isinstance(source, str | Path)
        else onnx.ModelProto.FromString(source.SerializeToString())
    )
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < _OPSET:
        fix = "onnx.version_converter.convert_version(model, 17)"
        raise InputError("an ONNX model to write formats into", expected=f"opset {_OPSET} or later", got=opset, fix=fix)
    writer = _Writer(model, recipe)
    for group in groups:
        form = formats.get(group.name, FLOAT)
        if form != FLOAT:
            for site in group.sites:
                writer.rewrite(group, site, form)
    atomic_write(path, [writer.finish().SerializeToString()])


class _Writer:
    def __init__(self, model: onnx.ModelProto, recipe: Recipe) -> None:
        self.model, self.recipe = model, recipe
        self.nodes = {n.name or f"{n.op_type}_{i}": n for i, n in enumerate(model.graph.node)}
        self.constants = {t.name: t for t in model.graph.initializer}
        for n in model.graph.node:
            if n.op_type == "Constant" and n.attribute and n.attribute[0].name == "value":
                self.constants[n.output[0]] = n.attribute[0].t
        self.nodes_before: dict[int, list[onnx.NodeProto]] = {}
        self.nodes_after: dict[int, list[onnx.NodeProto]] = {}
        self.values: dict[tuple[str, str, str], str] = {}
        self.constant_names: dict[bytes, str] = {}  # by content
        self.name_count = 0

    def rewrite(self, group: Group, site: Site, form: str) -> None:
        node = self.nodes.get(site.node.loc)
        if node is None or len(node.input) <= site.operand or node.input[site.operand] not in self.constants:
            where = "a node of the model's main graph with constant weights"
            raise InputError(
                f"{site.name} cannot be written to ONNX", expected=where, got=node.op_type if node else "none"
            )
        if isinstance(site, StateSite):
            node.input[site.operand] = self._state_weights(node, group, site, form)
            return
        factors = self._channel_factors(site, numpy_helper.to_array(self.constants[node.input[1]]))
        shift = None
        if form in STORED_FLOATS:
            self._narrow(node, form)
        else:
            quantized = self.recipe.weights(group, site, form)
            shift = self.recipe.shift(group, site, form, quantized.value(site))
            if isinstance(quantized, Blocks):
                self._use_blocks(node, site, quantized, factors)
            else:
                x, node.input[0] = node.input[0], self._round_value(node, group, form)
                node.input[1] = self._dequantize(node, site, quantized, factors)
                if form == PAIRED:
                    self._add_residual_product(node, x, group)
        if shift is not None and shift.any():
            self._add_shift(node, site, shift / factors)

    def _add_residual_product(self, node: onnx.NodeProto, x: str, group: Group) -> None:
        """Add the product of the residual of x after rounding."""
        levels = self.recipe.rounding(group, PAIRED).levels
        assert levels is not None
        key = x, "rest", group.name
        if key not in self.values:
            (rest,) = self._node(node, "Sub", [x, node.input[0]])
            self.values[key] = self._quantize(node, rest, levels.sublevels())
        flags = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        (product,) = self._node(node, node.op_type, [self.values[key], node.input[1]], **flags)
        self._add_term(node, product)

    def _quantize(self, at: onnx.NodeProto, x: str, levels: Levels) -> str:
        scale = self._constant(np.array(levels.scale, np.float32), "scale")
        zero = self._constant(np.array(levels.zero, np.uint8), "zero")
        (q,) = self._node(at, "QuantizeLinear", [x, scale, zero])
        return self._node(at, "DequantizeLinear", [q, scale, zero])[0]

    def _state_weights(self, node: onnx.NodeProto, group: Group, site: Site, form: str) -> str:
        """The levels of all rows of [directions, rows, hidden]. ONNX cannot express that the state is rounded, too."""
        weights = self.recipe.weights(group, site, form)
        assert isinstance(weights, Channels)
        rows = weights.q.reshape(site.channels, site.depth)
        inputs = [self._constant(rows, "levels"), self._constant(weights.scale, "scales")]
        (flat,) = self._node(
            node, "DequantizeLinear", [*inputs, self._constant(np.zeros(len(rows), np.int8), "zeros")], axis=0
        )
        return self._node(node, "Reshape", [flat, self._constant(np.array(weights.q.shape), "shape")])[0]

    def _channel_factors(self, site: Site, file_weights: np.ndarray) -> np.ndarray:
        """The factor of each output channel from the file's weights to those of the compiled model."""
        w = site.weight()
        if file_weights.shape != w.shape:
            raise InputError(
                f"{site.name} cannot be written to ONNX", expected=f"weights {w.shape}", got=file_weights.shape
            )
        a, b = site.by_channel(file_weights.astype(np.float64)), site.by_channel(w.astype(np.float64))
        squares = (a * a).sum(1)
        factors = np.where(squares > 0, (a * b).sum(1) / np.where(squares > 0, squares, 1), 1.0)
        factors = np.where(factors == 0, 1.0, factors)
        if np.abs(a * factors[:, None] - b).max() > _TOLERANCE * max(np.abs(b).max(), 1e-30):
            what = "the file's weights up to a factor of each output channel"
            raise InputError(f"{site.name} cannot be written to ONNX", expected=what, got="other weights")
        return factors.astype(np.float32)

    def _constant(self, value: np.ndarray, what: str, kind: int | None = None) -> str:
        """The name of an initializer with this value; equal ones, such as weights of several products, are shared."""
        if kind is None:
            tensor = numpy_helper.from_array(np.ascontiguousarray(value))
        else:
            tensor = helper.make_tensor("", kind, value.shape, value.tobytes(), raw=True)
        key = hashlib.blake2b(tensor.SerializeToString(), digest_size=16).digest()
        if key not in self.constant_names:
            self.name_count += 1
            tensor.name = self.constant_names[key] = f"ingot.{what}.{self.name_count}"
            self.model.graph.initializer.append(tensor)
        return self.constant_names[key]

    def _node(
        self, at: onnx.NodeProto, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any
    ) -> list[str]:
        """Add a node before `at`. Returns the names of its outputs."""
        self.name_count += 1
        names = [f"ingot.{op}.{self.name_count}.{i}" for i in range(outputs)]
        node = helper.make_node(op, inputs, names, f"ingot.{op}.{self.name_count}", **attributes)
        self.nodes_before.setdefault(id(at), []).append(node)
        return names

    def _round_value(self, at: onnx.NodeProto, group: Group, form: str) -> str:
        key = ("" if form == SHARED_STATIC else at.input[0], form, group.name)
        if key in self.values:
            return self.values[key]
        rounding, x = self.recipe.rounding(group, form), at.input[0]
        readers = [n for n in self.model.graph.node if x in n.input] if form == SHARED_STATIC else []
        at = readers[0] if readers else at
        if rounding.factors is not None:
            shape = [-1 if d == group.axis else 1 for d in range(group.value.type.rank)]
            (x,) = self._node(at, "Mul", [x, self._constant(rounding.factors.reshape(shape), "factors")])
        if form == DYNAMIC:
            (self.values[key],) = self._node(at, "DequantizeLinear", self._node(at, "DynamicQuantizeLinear", [x], 3))
        else:
            assert rounding.levels is not None
            self.values[key] = self._quantize(at, x, rounding.levels)
        for reader in readers:
            reader.input[:] = [self.values[key] if name == x else name for name in reader.input]
        return self.values[key]

    def _dequantize(self, at: onnx.NodeProto, site: Site, weights: Channels, factors: np.ndarray) -> str:
        q = np.where(site.per_channel(factors) < 0, -weights.q, weights.q).astype(np.int8)
        inputs = [self._constant(q, "levels"), self._constant(weights.scale / np.abs(factors), "scales")]
        inputs.append(self._constant(np.zeros(len(factors), np.int8), "zeros"))
        return self._node(at, "DequantizeLinear", inputs, axis=site.axes.out)[0]

    def _use_blocks(self, node: onnx.NodeProto, site: Site, weights: Blocks, factors: np.ndarray) -> None:
        """Turn `node` into MatMulNBits, with its bias in a separate Add."""
        flags = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type not in ("MatMul", "Gemm") or flags.get("transA") or flags.get("alpha", 1.0) != 1.0:
            plain = "a MatMul, or a Gemm with neither alpha nor transA"
            raise InputError(f"{site.name} cannot be written to ONNX", expected=plain, got=node.op_type)
        if (factors < 0).any():
            raise InputError(
                f"{site.name} cannot be written to ONNX", expected="factors above 0", got="a negative norm"
            )
        n, count, block = weights.q.shape
        scales = weights.scale / factors.reshape(-1, 1, 1)
        zeros = weights.zero.reshape(n, count).astype(np.uint8)
        packed = weights.q
        if weights.bits == 4:
            packed = packed[..., ::2] | packed[..., 1::2] << 4
            zeros = np.pad(zeros, ((0, 0), (0, count % 2)))
            zeros = zeros[:, ::2] | zeros[:, 1::2] << 4
        constants = (packed, "levels"), (scales.reshape(-1).astype(np.float32), "scales"), (zeros.reshape(-1), "zeros")
        inputs = [node.input[0], *(self._constant(value, what) for value, what in constants)]
        bias = node.input[2] if len(node.input) > 2 and node.input[2] and flags.get("beta", 1.0) != 0 else ""
        if bias and flags.get("beta", 1.0) != 1.0:
            raise InputError(f"{site.name} cannot be written to ONNX", expected="a beta of 1", got=flags["beta"])
        sizes = {"K": weights.depth, "N": n, "bits": weights.bits, "block_size": block}
        new_node = helper.make_node("MatMulNBits", inputs, list(node.output), node.name, domain=_MICROSOFT, **sizes)
        node.CopyFrom(new_node)
        if bias:
            self._add_term(node, bias)
        if all(o.domain != _MICROSOFT for o in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))

    def _narrow(self, node: onnx.NodeProto, form: str) -> None:
        stored = STORED_FLOATS[form]
        kind = TensorProto.FLOAT16 if stored == f16 else TensorProto.BFLOAT16
        w = numpy_helper.to_array(self.constants[node.input[1]]).astype(stored.numpy)
        (node.input[1],) = self._node(node, "Cast", [self._constant(w, "weights", kind)], to=TensorProto.FLOAT)
        if stored != f16:
            (x,) = self._node(node, "Cast", [node.input[0]], to=kind)
            (node.input[0],) = self._node(node, "Cast", [x], to=TensorProto.FLOAT)

    def _add_shift(self, node: onnx.NodeProto, site: Site, shift: np.ndarray) -> None:
        rank = site.node.type.rank
        shape = [-1 if d == site.axes.result else 1 for d in range(rank)]
        self._add_term(node, self._constant(shift.reshape(shape).astype(np.float32), "shift"))

    def _add_term(self, node: onnx.NodeProto, term: str) -> None:
        """Add `term` to the node's result; the sum takes the result's name."""
        self.name_count += 1
        name = node.output[0]
        # insert before the terms that were added earlier
        node.output[0] = f"ingot.product.{self.name_count}"
        node_add = helper.make_node("Add", [node.output[0], term], [name], f"ingot.Add.{self.name_count}")
        self.nodes_after.setdefault(id(node), []).insert(0, node_add)

    def finish(self) -> onnx.ModelProto:
        nodes = [
            n
            for node in self.model.graph.node
            for n in (*self.nodes_before.get(id(node), ()), node, *self.nodes_after.get(id(node), ()))
        ]
        copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
        used = {name for n in copies for name in n.input} | {o.name for o in self.model.graph.output}
        used |= {name for n in copies for a in n.attribute for g in (a.g, *a.graphs) for name in _names(g)}
        initializers = [
            onnx.TensorProto.FromString(t.SerializeToString()) for t in self.model.graph.initializer if t.name in used
        ]
        del self.model.graph.node[:], self.model.graph.initializer[:]
        self.model.graph.node.extend(copies)
        self.model.graph.initializer.extend(initializers)
        return self.model


def _names(graph: onnx.GraphProto) -> set[str]:
    """The names that the nodes of a nested graph read."""
    names = {name for n in graph.node for name in n.input} | {o.name for o in graph.output}
    for n in graph.node:
        for a in n.attribute:
            for g in (a.g, *a.graphs):
                names |= _names(g)
    return names
