"""The program that generates: a chunk of a sequence, then a loop of steps of one token each, with sampling in it.

    logits = chunk(ids);  token = sample(logits)
    while turns < count and not done:  token = sample(step(token))

One program holds both, so that weights and caches are there once and several tokens are one native call. A prompt is
one chunk or several, all but the last with a count of 0; what follows is a chunk of the last token.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, boolean, i64
from ingot.language.attention import Chunk
from ingot.language.cache import CacheForm
from ingot.language.layers import Network
from ingot.language.programs import START, TOKENS, chunk_inputs, last, limits
from ingot.language.sampler import Sampler
from ingot.support.dataclass import dataclass

STOPS = 8  # tokens that end a sequence, as a program's input has room for
END = symbol("$end")  # of a step: the position behind its token


def generate(network: Network, form: CacheForm, most: int = 16) -> Graph:
    """(ids: i64[batch, tokens], at: i64[1], is_prompt: bool[], count: i64[], stops: i64[STOPS], SETTINGS...) ->
    (tokens: i64[batch, most], turns: i64[], logits: f32[batch, vocabulary]).

    The first `turns` tokens hold: `count`, at most `most`, or fewer where all sequences came to a token of `stops`
    (-1: none); what a sequence has behind its own is to be left out. is_prompt: the ids count as the prompt's for
    penalties; those that were generated have been counted. logits: of the chunk's last token, before the sampler.

    State: the caches, the sampler's `bias` and `counts`.
    """
    ids, at = chunk_inputs(form)
    is_prompt, count = Input("is_prompt", TensorType(boolean))(), Input("count", TensorType(i64))()
    stops = Input("stops", TensorType(i64, (STOPS,)))()
    given, caches = Sampler.inputs(form.batch, network.vocabulary), form.inputs()
    start = ops.reshape(at, ())

    x, after = network.hidden(ids, Chunk(START, start), form, caches)
    logits = network.logits(last(x))
    sampler = given.counted(ids, ops.scalar(False, boolean), is_prompt)
    limit = ops.minimum(count, most)
    position = ops.add(start, ops.scalar(TOKENS, i64))
    token = sampler.tokens(logits, position)
    some = ops.compare("GT", limit, 0)
    sampler = sampler.counted(ops.expand_dims(token, 1), ops.scalar(True, boolean), some)
    tokens = _written(ops.full((form.batch, most), 0, i64), token, ops.scalar(0, i64))

    first = _Loop(
        ops.scalar(1, i64), limit, position, token, tokens, _stopped(token, stops), stops, sampler, tuple(after)
    )
    done = ops.While(_goes_on(first), _step(network, form, first))(*first.values).results
    final = first.of(done)
    turns = ops.minimum(final.turns, limit)
    state = (*form.names, "bias", "counts")
    return Graph(
        (ids, at, is_prompt, count, stops, *given.settings, *caches, given.bias, given.counts),
        (*final.caches, final.sampler.bias, final.sampler.counts, final.tokens, turns, logits, start),
        (*(f"next {name}" for name in state), "tokens", "turns", "logits"),
        **limits(form),
        state=state,
    )


@dataclass(frozen=True)
class _Loop:
    """What lasts from turn to turn. token: i64[batch], the last, which stands at `position` and is in no cache yet."""

    turns: Node
    count: Node
    position: Node
    token: Node
    tokens: Node
    is_done: Node
    stops: Node
    sampler: Sampler
    caches: tuple[Node, ...]

    @property
    def values(self) -> tuple[Node, ...]:
        s = self.sampler
        own = (self.turns, self.count, self.position, self.token, self.tokens, self.is_done, self.stops)
        return (*own, *s.settings, s.bias, s.counts, *self.caches)

    def of(self, values: Sequence[Node]) -> _Loop:
        """The same of other nodes, in the order of `values`."""
        turns, count, position, token, tokens, is_done, stops, *rest = values
        n = len(self.sampler.settings)
        sampler = Sampler(tuple(rest[:n]), rest[n], rest[n + 1])
        return _Loop(turns, count, position, token, tokens, is_done, stops, sampler, tuple(rest[n + 2 :]))

    def inputs(self) -> _Loop:
        return self.of([Input(f"value {i}", n.type)() for i, n in enumerate(self.values)])


def _goes_on(values: _Loop) -> Graph:
    v = values.inputs()
    waiting = ops.Not()(ops.reduce("and", v.is_done))
    return Graph(v.values, (ops.and_(ops.compare("LT", v.turns, v.count), waiting),))


def _step(network: Network, form: CacheForm, values: _Loop) -> Graph:
    v = values.inputs()
    x, caches = network.hidden(ops.expand_dims(v.token, 1), Chunk(END - 1, v.position), form, v.caches)
    position = ops.add(v.position, 1)
    token = v.sampler.tokens(network.logits(last(x)), position)
    yes = ops.scalar(True, boolean)
    after = _Loop(
        ops.add(v.turns, 1),
        v.count,
        position,
        token,
        _written(v.tokens, token, v.turns),
        ops.or_(v.is_done, _stopped(token, v.stops)),
        v.stops,
        v.sampler.counted(ops.expand_dims(token, 1), yes, yes),
        tuple(caches),
    )
    return Graph(v.values, (*after.values, position), sizes=((str(END), form.context),))


def _written(tokens: Node, token: Node, turn: Node) -> Node:
    return ops.DynamicUpdateSlice()(tokens, ops.expand_dims(token, 1), ops.scalar(0, i64), turn)


def _stopped(token: Node, stops: Node) -> Node:
    return ops.reduce("or", ops.compare("EQ", ops.expand_dims(token, 1), stops), 1)
