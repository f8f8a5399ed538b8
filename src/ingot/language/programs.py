"""What a language model is compiled to: graphs whose state are the caches.

    chunk     ids[batch, n], at                    ->  logits of the last of them, or of all
    generate  ids[batch, n], at, count, ...        ->  tokens: a chunk, then a loop of steps of one token each

`at` is where the chunk begins: the tokens before it are in the caches. A prompt is one chunk or several; what follows
is a chunk of the last token. One program holds the chunk and the loop, so that weights and caches are there once and
several tokens are one native call.
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
FOUND = "$end"  # of a step: the position behind its token


def chunk(decoder: Decoder, form: CacheForm, *, tokens: DimLike = TOKENS, every: bool = False) -> Graph:
    """(ids: i64[batch, tokens], at: i64[1]) -> logits: f32[batch, vocabulary] of the last token; every: of each,
    f32[batch, tokens, vocabulary]."""
    ids, at = _chunk_inputs(form, tokens)
    caches = form.inputs()
    x, after = decoder.hidden(ids, Position(START, ops.reshape(at, ())), form, caches)
    logits = decoder.logits(x if every else _last(x))
    return Graph(
        (ids, at, *caches),
        (*after, logits),
        (*(f"next {name}" for name in form.names), "logits"),
        **_limits(form, tokens),
        state=form.names,
    )


def _chunk_inputs(form: CacheForm, tokens: DimLike) -> tuple[Node, Node]:
    ids = Input("ids", TensorType(i64, (form.batch, tokens)))()
    return ids, Input("at", TensorType(i64, (1,)), (START,))()


def _limits(form: CacheForm, tokens: DimLike) -> dict[str, tuple]:
    """What holds of a chunk's sizes: it lies within the context."""
    if not isinstance(tokens, Dim):
        return {"bounds": (("at.0", 0, form.context - tokens),)}
    bounds = (("at.0", 0, form.context - 1), ("tokens", 1, form.context))
    return {"bounds": bounds, "conditions": (form.context - START - TOKENS,)}


def _last(x: Node) -> Node:
    return ops.index_axis(x, 1, x.shape[1] - 1)
