"""The program that reads a chunk of a sequence: its state are the caches.

`at` is where the chunk begins: the tokens before it are in the caches.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import Dim, DimLike, symbol
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, i64
from ingot.language.cache import CacheForm, Position
from ingot.language.layers import Decoder

START = symbol("at.0")
TOKENS = symbol("tokens")


def chunk(decoder: Decoder, form: CacheForm, *, tokens: DimLike = TOKENS, every: bool = False) -> Graph:
    """(ids: i64[batch, tokens], at: i64[1]) -> logits: f32[batch, vocabulary] of the last token; every: of each,
    f32[batch, tokens, vocabulary]."""
    ids, at = chunk_inputs(form, tokens)
    caches = form.inputs()
    x, after = decoder.hidden(ids, Position(START, ops.reshape(at, ())), form, caches)
    logits = decoder.logits(x if every else last(x))
    return Graph(
        (ids, at, *caches),
        (*after, logits),
        (*(f"next {name}" for name in form.names), "logits"),
        **limits(form, tokens),
        state=form.names,
    )


def chunk_inputs(form: CacheForm, tokens: DimLike) -> tuple[Node, Node]:
    ids = Input("ids", TensorType(i64, (form.batch, tokens)))()
    return ids, Input("at", TensorType(i64, (1,)), (START,))()


def limits(form: CacheForm, tokens: DimLike) -> dict[str, tuple]:
    """What holds of a chunk's sizes: it lies within the context."""
    if not isinstance(tokens, Dim):
        return {"bounds": (("at.0", 0, form.context - tokens),)}
    bounds = (("at.0", 0, form.context - 1), ("tokens", 1, form.context))
    return {"bounds": bounds, "conditions": (form.context - START - TOKENS,)}


def last(x: Node) -> Node:
    return ops.index_axis(x, 1, x.shape[1] - 1)
