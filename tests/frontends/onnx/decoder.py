"""Decoders of random weights in 4 bits, in the ops of onnxruntime-genai's model builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, MS = TensorProto.FLOAT, TensorProto.INT64, "com.microsoft"


@dataclass
class Decoder:
    """A Llama: embedding, norms, grouped queries with rotary embeddings and caches, gated MLPs, logits.

    Inputs: ids and mask [batch, total], keys and values of each layer [batch, groups, past, width]; outputs: logits,
    and the caches with what was added.
    """

    layers: int = 2
    heads: int = 4
    groups: int = 2
    width: int = 16
    hidden: int = 96
    words: int = 50
    block: int = 32
    longest: int = 64
    has_joint_qkv: bool = True
    zeros: bool = False
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    node_count: int = 0

    @property
    def size(self) -> int:
        return self.heads * self.width

    def constant(self, value: np.ndarray) -> str:
        self.node_count += 1
        self.weights.append(numpy_helper.from_array(value, f"c{self.node_count}"))
        return f"c{self.node_count}"

    def node(self, op: str, inputs: list[str], domain: str = "", results: int = 1, **attributes: Any) -> Any:
        self.node_count += 1
        result_names = [f"n{self.node_count}_{i}" for i in range(results)]
        self.nodes.append(helper.make_node(op, inputs, result_names, domain=domain, **attributes))
        return result_names[0] if results == 1 else result_names

    def linear(self, x: str, k: int, n: int) -> str:
        blocks = -(-k // self.block)
        q = self.constant(self.rng.integers(0, 256, (n, blocks, self.block // 2)).astype(np.uint8))
        s = self.constant((self.rng.random((n, blocks)) * 0.3 / np.sqrt(k)).astype(np.float32))
        zeros = self.rng.integers(0, 256, (n, -(-blocks // 2))).astype(np.uint8)
        z = [self.constant(zeros)] if self.zeros else []
        return self.node("MatMulNBits", [x, q, s, *z], MS, K=k, N=n, bits=4, block_size=self.block)

    def scale(self) -> str:
        return self.constant(self.rng.standard_normal(self.size).astype(np.float32))

    def attend(self, x: str, layer: int, lengths: list[str], tables: list[str]) -> str:
        query_width, shared_width = self.size, self.groups * self.width
        if self.has_joint_qkv:
            qkv = [self.linear(x, query_width, query_width + 2 * shared_width), "", ""]
        else:
            qkv = [
                self.linear(x, query_width, query_width),
                self.linear(x, query_width, shared_width),
                self.linear(x, query_width, shared_width),
            ]
        caches = [f"past.{layer}.key", f"past.{layer}.value"]
        result_names = [f"n.a{layer}", f"present.{layer}.key", f"present.{layer}.value"]
        kinds = {"num_heads": self.heads, "kv_num_heads": self.groups, "do_rotary": 1, "scale": self.width**-0.5}
        inputs = [*qkv, *caches, *lengths, *tables]
        self.nodes.append(helper.make_node("GroupQueryAttention", inputs, result_names, domain=MS, **kinds))
        return self.linear(result_names[0], query_width, query_width)

    def gated(self, x: str) -> str:
        gate, up = (self.linear(x, self.size, self.hidden) for _ in range(2))
        gate = self.node("Mul", [gate, self.node("Sigmoid", [gate])])
        return self.linear(self.node("Mul", [gate, up]), self.hidden, self.size)

    def model(self) -> onnx.ModelProto:
        one, ones = self.constant(np.array(1, np.int64)), self.constant(np.array([1], np.int64))
        last = self.node("Sub", [self.node("ReduceSum", ["mask", ones], keepdims=0), one])
        total = self.node("Gather", [self.node("Shape", ["mask"]), one])
        lengths = [self.node("Cast", [n], to=TensorProto.INT32) for n in (last, total)]
        angles = self.rng.random((self.longest, self.width // 2)).astype(np.float32) * 6
        tables = [self.constant(np.cos(angles)), self.constant(np.sin(angles))]
        table = self.constant(self.rng.integers(0, 256, (self.words, self.size // 2)).astype(np.uint8))
        scales = self.constant(self.rng.random((self.words, self.size // 16)).astype(np.float32) * 0.2)
        x = self.node("GatherBlockQuantized", [table, "ids", scales], MS, block_size=16, quantize_axis=1, bits=4)
        normed = self.node("SimplifiedLayerNormalization", [x, self.scale()], axis=-1, epsilon=1e-5)
        for layer in range(self.layers):
            added = self.attend(normed, layer, lengths, tables)
            normed, x = self.skipped(x, added)
            normed, x = self.skipped(x, self.gated(normed))
        logits = self.linear(normed, self.size, self.words)
        self.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
        kinds = [f"{layer}.{kind}" for layer in range(self.layers) for kind in ("key", "value")]
        value = helper.make_tensor_value_info
        cache = ["batch", self.groups, "past", self.width]
        graph = helper.make_graph(
            self.nodes,
            "decoder",
            [
                value("ids", INT64, ["batch", "length"]),
                value("mask", INT64, ["batch", "total"]),
                *(value(f"past.{kind}", FLOAT, cache) for kind in kinds),
            ],
            [
                value("logits", FLOAT, ["batch", "length", self.words]),
                *(value(f"present.{kind}", FLOAT, ["batch", self.groups, "total", self.width]) for kind in kinds),
            ],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def skipped(self, x: str, added: str) -> tuple[str, str]:
        """(norm of the sum, the sum)."""
        self.node_count += 1
        result_names = [f"n{self.node_count}_0", "", "", f"n{self.node_count}_3"]
        inputs = [x, added, self.scale()]
        self.nodes.append(
            helper.make_node("SkipSimplifiedLayerNormalization", inputs, result_names, domain=MS, epsilon=1e-5)
        )
        return result_names[0], result_names[3]
