"""The programs without generation: for a chunk of a sequence, with the caches as state, and for embeddings of complete
sequences.

`at` is the position at which a chunk begins: the tokens before it are in the caches.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, f32, i64
from ingot.language.attention import Chunk
from ingot.language.cache import CacheForm
from ingot.language.layers import Network
from ingot.support.errors import InputError

START_POSITION = symbol("at.0")  # a size from a call's input: tools that generate inputs know its bounds
START = symbol("$at")  # the same, but computed at run time: a program is bound once for all positions
TOKENS = symbol("tokens")


def chunk(network: Network, form: CacheForm, *, tokens: DimLike = TOKENS, every: bool = False) -> Graph:
    """(ids: i64[batch, tokens], at: i64[1]) -> logits of the last token: f32[batch, vocabulary]; every: of each token,
    f32[batch, tokens, vocabulary]."""
    ids, at = (
        Input("ids", TensorType(i64, (form.batch, tokens)))(),
        Input("at", TensorType(i64, (1,)), (START_POSITION,))(),
    )
    caches = form.inputs()
    x, after = network.hidden(ids, Chunk(START_POSITION, ops.reshape(at, ())), form, caches)
    logits = network.logits(x if every else last(x))
    rest = form.context - START_POSITION - tokens
    bounds = (("at.0", 0, form.context - (tokens if isinstance(tokens, int) else 1)), ("tokens", 1, form.context))
    return Graph(
        (ids, at, *caches),
        (*after, logits),
        (*(f"next {name}" for name in form.names), "logits"),
        bounds=bounds[:1] if isinstance(tokens, int) else bounds,
        conditions=() if isinstance(rest, int) or isinstance(tokens, int) else (rest,),
        state=form.names,
    )


def score(network: Network, form: CacheForm) -> Graph:
    """(ids: i64[batch, tokens], at: i64[1], targets: i64[batch, tokens]) -> f32[batch, tokens]: the log probability of
    each target after its token."""
    ids, at = chunk_inputs(form)
    targets = Input("targets", ids.type)()
    caches = form.inputs()
    start = ops.reshape(at, ())
    x, after = network.hidden(ids, Chunk(START, start), form, caches)
    logprobs = ops.LogSoftmax(2)(network.logits(x))
    scores = ops.squeeze(ops.GatherElements(2)(logprobs, ops.expand_dims(targets, 2)), 2)
    names = (*(f"next {name}" for name in form.names), "scores")
    return Graph((ids, at, targets, *caches), (*after, scores, start), names, **limits(form), state=form.names)


def chunk_inputs(form: CacheForm) -> tuple[Node, Node]:
    """Of a program whose last output is where its chunk begins."""
    ids = Input("ids", TensorType(i64, (form.batch, TOKENS)))()
    return ids, Input("at", TensorType(i64, (1,)))()


def limits(form: CacheForm) -> dict[str, tuple]:
    """The sizes, bounds and conditions of a graph whose chunk lies within the context."""
    return {
        "sizes": ((str(START), form.context - 1),),
        "bounds": (("tokens", 1, form.context),),
        "conditions": (form.context - START - TOKENS,),
    }


def last(x: Node) -> Node:
    return ops.index_axis(x, 1, x.shape[1] - 1)


POOLINGS = ("mean", "first", "last")


def embed(network: Network, batch: int, pooling: str, *, is_normalized: bool = True) -> Graph:
    """(ids: i64[batch, tokens], lengths: i64[batch]) -> f32[batch, width]: the mean, the first or the last of a
    sequence's tokens; divided by its norm if `is_normalized`. lengths: the number of tokens, 1 or more.
    """
    if pooling not in POOLINGS:
        raise InputError("pooling", expected=f"one of {', '.join(POOLINGS)}", got=repr(pooling))
    ids = Input("ids", TensorType(i64, (batch, TOKENS)))()
    lengths = Input("lengths", TensorType(i64, (batch,)))()
    x = network.encoded(ids, lengths)
    if pooling == "first":
        y = ops.index_axis(x, 1, 0)
    elif pooling == "last":
        at = ops.expand_dims(ops.sub(lengths, 1), (1, 2))
        y = ops.squeeze(ops.GatherElements(1)(x, ops.broadcast_to(at, (batch, 1, x.shape[2]))), 1)
    else:
        is_there = ops.compare("LT", ops.arange(TOKENS), ops.expand_dims(lengths, 1))
        total = ops.reduce_sum(ops.where(ops.expand_dims(is_there, 2), x, 0.0), 1)
        y = ops.div(total, ops.cast(ops.expand_dims(lengths, 1), f32))
    if is_normalized:
        y = ops.LpNorm(1)(y)
    return Graph((ids, lengths), (y,), ("embeddings",), bounds=(("tokens", 1, network.context),))
