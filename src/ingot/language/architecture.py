"""What kind of language model a file holds: one record of switches, which `layers` reads.

    config.json or GGUF's metadata  ->  Architecture  ->  graphs

A family is a few switches on top of Llama. What a record cannot say is refused by name: a model that is computed almost
right gives plausible nonsense.
"""

from __future__ import annotations

from dataclasses import field

from ingot.language.names import Names
from ingot.language.rope import Rope
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Norm:
    """kind: "rms" or "layer". offset: what is added to the stored scale, 1 where it is stored as a difference from 1.
    Scale and bias are those that the file has; plain: it has none."""

    kind: str = "rms"
    eps: float = 1e-5
    offset: float = 0.0
    plain: bool = False


@dataclass(frozen=True)
class Experts:
    """A mixture: each token goes through the `chosen` of its `count` experts that the router's softmax ranks first.

    normalized: their weights add up to 1. scale: of their sum. Experts that all tokens share are those that the file
    has.
    """

    count: int
    chosen: int
    normalized: bool = True
    scale: float = 1.0


@dataclass(frozen=True)
class Layer:
    """window: the last tokens that a token sees, itself among them; 0: all. rope: None where positions are learned or
    not told. experts: None where all tokens go through one network. convolution: instead of attention there is a gated
    causal convolution over so many tokens (LFM2's); 0: attention."""

    window: int = 0
    rope: Rope | None = None
    experts: Experts | None = None
    convolution: int = 0


@dataclass(frozen=True)
class Architecture:
    """A decoder, or an encoder that is built alike.

    x = embed(ids) * embedding_scale
    for each layer:
        x = x + residual_scale * post_norm(attention(pre_norm(x)))
        x = x + residual_scale * post_norm(feed_forward(pre_norm(x)))
    logits = cap(output(norm(x)) * logit_scale)

    family: as the file calls it. context: the tokens that it was trained for. causal: tokens see those before, else
    all. pre_norm, post_norm: where normalization stands. residual_norm: it stands behind each sum, with the post norms'
    parameters. parallel: both halves of a layer read one x. head_norm: queries and keys are normalized, "head" each
    head, "all" all heads at once, "none". gated: activation(gate(x)) * up(x) instead of activation(up(x)).
    attention_scale: of the scores. attention_cap, logit_cap: c of c tanh(x / c); 0: none. clip: the largest absolute
    value of queries, keys and values; 0: any. positions: they are learned and added to the embeddings. transposed:
    matrices of layers are stored [inputs, outputs]. tied: the output is the embedding.
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
