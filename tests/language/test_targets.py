"""The programs of quantized models for other targets: passes and schedules, as far as a machine without them goes."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Node, const
from ingot.ir.types import f16, u4
from ingot.language.cache import CacheForm
from ingot.language.config import from_config
from ingot.language.generate import generate
from ingot.language.layers import Network
from ingot.language.weights import ArrayWeights
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of

CONFIG = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4, "tie_word_embeddings": True, "hidden_act": "silu",
}  # fmt: skip
SHAPES = {
    "model.embed_tokens.weight": (96, 64), "model.norm.weight": (64,),
    "model.layers.0.input_layernorm.weight": (64,), "model.layers.0.post_attention_layernorm.weight": (64,),
    "model.layers.0.self_attn.q_proj.weight": (64, 64), "model.layers.0.self_attn.k_proj.weight": (32, 64),
    "model.layers.0.self_attn.v_proj.weight": (32, 64), "model.layers.0.self_attn.o_proj.weight": (64, 64),
    "model.layers.0.mlp.gate_proj.weight": (96, 64), "model.layers.0.mlp.up_proj.weight": (96, 64),
    "model.layers.0.mlp.down_proj.weight": (64, 96),
}  # fmt: skip


class InBlocks(ArrayWeights):
    """Matrices as Q4_0 has them."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        super().__init__({name: rng.normal(size=shape) for name, shape in SHAPES.items()})
        blocks = {name: (*shape[:-1], shape[-1] // 32) for name, shape in SHAPES.items() if len(shape) == 2}
        self._forms = {
            name: ops.DequantizeBlocks(8, 4)(
                const(rng.integers(0, 16, (*shape, 32)).astype(u4.numpy)),
                const(rng.normal(size=(*shape, 1)).astype(np.float16)),
            )
            for name, shape in blocks.items()
        }

    def matrix(self, name: str) -> Node:
        return ops.reshape(self._forms[name], SHAPES[name])

    def rows(self, name: str, ids: Node) -> Node:
        return ops.reshape(ops.EmbeddingLookup()(self._forms[name], ids), (*ids.shape, SHAPES[name][1]))


@pytest.mark.parametrize("target", ["null:cuda:sm_90a", "null:cpu:x86-64-v2", "null:cpu:x86-64-v3"])
def test_generate(target: str) -> None:
    """The loop and the chunk share weights: a CPU's program has 4.5 bits a weight, or 5 where scales are f32."""
    architecture = from_config(CONFIG)
    network = Network(architecture, InBlocks(), 64)
    program = build_program(generate(network, CacheForm.of(architecture, 1, 64, f16)), features_of(target), 1)
    assert program.state
    numbers = sum(int(np.prod(shape)) for shape in SHAPES.values() if len(shape) == 2)
    if "cpu" in target:
        assert program.weights.nbytes * 8 / numbers < (5.0 if "v3" in target else 5.5) + 8 * 64 * 16 * 2 * 4 / numbers
