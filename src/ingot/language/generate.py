"""The program that generates: a chunk of a sequence, then a loop of steps of one token each, with sampling in it.

    if tokens > 1:  token = sample(chunk(ids))
    while turns < count and not done:  token = sample(step(token))

One program has both, so that weights and caches exist once and one native call generates several tokens. A prompt is
one or more chunks, all but the last with a count of 0; later calls have a chunk of the last token, which is a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import dim_min, symbol
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, boolean, i64
from ingot.language.attention import Chunk
from ingot.language.cache import CacheForm
from ingot.language.layers import Network
from ingot.language.programs import START, TOKENS, chunk_inputs, last, limits
from ingot.language.sampler import Sampler, inputs_like
from ingot.support.dataclass import dataclass

STOPS = 8  # the capacity of the program's input for tokens that end a sequence
END_POSITION = symbol("$end")  # the position after a step's token


def generate(network: Network, form: CacheForm, max_tokens: int = 16, *, has_lengths: bool = False) -> Graph:
    """(ids: i64[batch, tokens], at: i64[1], is_prompt: bool[], count: i64[], stops: i64[STOPS], SETTINGS...) ->
    (tokens: i64[batch, max_tokens], turns: i64[], logits: f32[batch, vocabulary]).

    The first `turns` tokens are valid: `count`, at most `max_tokens`, or fewer if all sequences reached a token of
    `stops` (-1: none). Tokens of a sequence after its stop token are to be ignored. is_prompt: whether the ids count as
    part of the prompt for penalties; generated ids were counted before. logits: from which the last token was drawn or,
    if there is none, would be. has_lengths: attention of the loop reads lengths from memory, so that the host need not
    know them.

    State: the caches, the sampler's `bias` and `counts`.
    """
    ids, at = chunk_inputs(form)
    is_prompt, count = Input("is_prompt", TensorType(boolean))(), Input("count", TensorType(i64))()
    stops = Input("stops", TensorType(i64, (STOPS,)))()
    sampler_inputs, caches = Sampler.inputs(form.batch, network.vocabulary), form.inputs()
    start = ops.reshape(at, ())

    limit = ops.minimum(count, max_tokens)
    token = ops.index_axis(ids, 1, TOKENS - 1)
    is_counted = ops.and_(is_prompt, ops.compare("EQ", ops.scalar(TOKENS, i64), 1))
    before = _Loop(
        ops.scalar(0, i64),
        limit,
        ops.add(start, ops.scalar(TOKENS - 1, i64)),
        token,
        ops.full((form.batch, max_tokens), 0, i64),
        ops.full((form.batch,), False, boolean),
        ops.full((form.batch, network.vocabulary), 0.0),
        stops,
        sampler_inputs.with_counted(ops.expand_dims(token, 1), ops.scalar(False, boolean), is_counted),
        caches,
    )
    first = _after_chunk(network, form, before, ids, start, is_prompt)
    results = ops.While(_loop_condition(first), _step(network, form, first, has_lengths))(*first.values).results
    final = first.of(results)
    turns = ops.minimum(final.turns, limit)
    state = (*form.names, "bias", "counts")
    return Graph(
        (
            ids,
            at,
            is_prompt,
            count,
            stops,
            *sampler_inputs.settings,
            *caches,
            sampler_inputs.bias,
            sampler_inputs.counts,
        ),
        (*final.caches, final.sampler.bias, final.sampler.counts, final.tokens, turns, final.logits),
        (*(f"next {name}" for name in state), "tokens", "turns", "logits"),
        bounds=(("tokens", 1, form.context),),
        state=state,
    )


@dataclass(frozen=True)
class _Loop:
    """The loop-carried values. token: the last token, i64[batch], at `position`, which is not in the caches yet."""

    turns: Node
    count: Node
    position: Node
    token: Node
    tokens: Node
    is_done: Node
    logits: Node
    stops: Node
    sampler: Sampler
    caches: tuple[Node, ...]

    @property
    def values(self) -> tuple[Node, ...]:
        s = self.sampler
        progress = (self.turns, self.count, self.position, self.token, self.tokens, self.is_done, self.logits)
        return (*progress, self.stops, *s.settings, s.bias, s.counts, *self.caches)

    def of(self, values: Sequence[Node]) -> _Loop:
        """The same of other nodes, in the order of `values`."""
        turns, count, position, token, tokens, is_done, logits, stops, *rest = values
        n = len(self.sampler.settings)
        sampler = Sampler(tuple(rest[:n]), rest[n], rest[n + 1])
        return _Loop(turns, count, position, token, tokens, is_done, logits, stops, sampler, tuple(rest[n + 2 :]))

    def inputs(self) -> _Loop:
        return self.of(inputs_like(self.values))

    def sampled(self, logits: Node, position: Node, sampler: Sampler, caches: Sequence[Node]) -> _Loop:
        """The values after a token at `position` is drawn. sampler: with the counts of all tokens before."""
        token = sampler.tokens(logits, position)
        is_generated, is_counted = ops.scalar(True, boolean), ops.compare("GT", self.count, 0)
        return _Loop(
            ops.add(self.turns, 1),
            self.count,
            position,
            token,
            _with_token(self.tokens, token, self.turns),
            ops.or_(self.is_done, _is_stop(token, self.stops)),
            logits,
            self.stops,
            sampler.with_counted(ops.expand_dims(token, 1), is_generated, is_counted),
            tuple(caches),
        )


def _after_chunk(network: Network, form: CacheForm, before: _Loop, ids: Node, start: Node, is_prompt: Node) -> _Loop:
    """The values after a chunk and the token that follows it. A single token is none: it is left to the loop."""
    count = ops.scalar(dim_min(TOKENS // 2, 1), i64)
    invariants = ids, start, is_prompt, count
    operands = *invariants, *before.values
    inputs = inputs_like(operands)
    ids, start, is_prompt, count = inputs[: len(invariants)]
    v = before.of(inputs[len(invariants) :])
    x, caches = network.hidden(ids, Chunk(START, start), form, v.caches)
    sampler = v.sampler.with_counted(ids, ops.scalar(False, boolean), is_prompt)
    after = v.sampled(network.logits(last(x)), ops.add(start, ops.scalar(TOKENS, i64)), sampler, caches)
    cond = Graph(inputs, (ops.compare("LT", v.turns, count),))
    sizes, conditions = (limits(form)[name] for name in ("sizes", "conditions"))
    body = Graph(inputs, (*inputs[: len(invariants)], *after.values, start), sizes=sizes, conditions=conditions)
    return before.of(ops.While(cond, body)(*operands).results[len(invariants) :])


def _loop_condition(values: _Loop) -> Graph:
    v = values.inputs()
    waiting = ops.Not()(ops.reduce("and", v.is_done))
    return Graph(v.values, (ops.and_(ops.compare("LT", v.turns, ops.maximum(v.count, 1)), waiting),))


def _step(network: Network, form: CacheForm, values: _Loop, has_lengths: bool) -> Graph:
    v = values.inputs()
    at = Chunk(None if has_lengths else END_POSITION - 1, v.position)
    x, caches = network.hidden(ops.expand_dims(v.token, 1), at, form, v.caches)
    position = ops.add(v.position, 1)
    after = v.sampled(network.logits(last(x)), position, v.sampler, caches)
    if has_lengths:
        return Graph(v.values, after.values)
    return Graph(v.values, (*after.values, position), sizes=((str(END_POSITION), form.context),))


def _with_token(tokens: Node, token: Node, index: Node) -> Node:
    return ops.DynamicUpdateSlice()(tokens, ops.expand_dims(token, 1), ops.scalar(0, i64), index)


def _is_stop(token: Node, stops: Node) -> Node:
    return ops.reduce("or", ops.compare("EQ", ops.expand_dims(token, 1), stops), 1)
