"""The architecture of a language model as a record of switches, which `layers` reads.

    config.json or GGUF's metadata  ->  Architecture  ->  graphs

A family is a few switches on top of Llama. Variants that a record cannot express are refused by name, as a model that
is computed almost correctly gives plausible nonsense.
"""

from __future__ import annotations

from dataclasses import field

from ingot.language.names import Names
from ingot.language.rope import Rope
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Norm:
    """kind: "rms" or "layer". offset: added to the stored scale: 1 if that is stored as a difference from 1. Scale and
    bias come from the file; plain: there are none."""

    kind: str = "rms"
    eps: float = 1e-5
    offset: float = 0.0
    plain: bool = False


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: each token goes through `experts_per_token` of the `count` experts that the router's
    softmax ranks first.

    normalized: their weights add up to 1. scale: of the weighted sum. Whether there are shared experts depends on the
    file's tensors.
    """

    count: int
    experts_per_token: int
    normalized: bool = True
    scale: float = 1.0


@dataclass(frozen=True)
class Layer:
    """window: the number of tokens that a token attends to, including itself; 0: all. rope: None if positions are
    learned or not encoded. experts: None for a plain feed-forward network. convolution: the size of a gated causal
    convolution in place of attention (LFM2); 0: attention."""

    window: int = 0
    rope: Rope | None = None
    experts: Experts | None = None
    convolution: int = 0


@dataclass(frozen=True)
class Architecture:
    """A decoder, or an encoder of the same structure.

    x = embed(ids) * embedding_scale
    for each layer:
        x = x + residual_scale * post_norm(attention(pre_norm(x)))
        x = x + residual_scale * post_norm(feed_forward(pre_norm(x)))
    logits = cap(output(norm(x)) * logit_scale)

    family: the file's name for it. context: the number of tokens that it was trained for. causal: tokens attend only to
    preceding ones, else to all. pre_norm, post_norm: where normalization takes place. residual_norm: after each sum,
    with the parameters of the post norms. parallel: both halves of a layer read the same x. head_norm: the
    normalization of queries and keys: "head" for each head, "all" over all heads, or "none". gated:
    activation(gate(x)) * up(x) instead of activation(up(x)). attention_scale: of the scores. attention_cap, logit_cap:
    c in c tanh(x / c); 0: none. clip: the largest absolute value of queries, keys and values; 0: no limit. positions:
    learned embeddings of positions are added. transposed: matrices of layers are stored [inputs, outputs]. tied: the
    output matrix is the embedding.
    """

    family: str
    width: int
    heads: int
    key_heads: int
    head_width: int
    context: int
    names: Names
    layers: tuple[Layer, ...]
    norm: Norm = field(default=Norm())
    pre_norm: bool = True
    post_norm: bool = False
    residual_norm: bool = False
    causal: bool = True
    parallel: bool = False
    head_norm: str = "none"
    activation: str = "silu"
    gated: bool = True
    attention_scale: float = 1.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    clip: float = 0.0
    positions: bool = False
    transposed: bool = False
    tied: bool = False
