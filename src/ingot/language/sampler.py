"""Sampling as a graph: from logits to tokens, in the program.

The order is that of `transformers` and vLLM: bias, penalties, temperature, top-k, top-p, min-p. The Gumbel-max trick
draws from the remaining tokens: the largest of logit + noise. The noise depends only on the seed and the token's
position, so that a sequence does not depend on its division into calls, or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot import ops
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, TensorType, f32, i32, i64
from ingot.ops import sampling
from ingot.support.dataclass import dataclass

CANDIDATES = 128  # selecting this many of the largest logits is faster than sorting all
_INF = float("inf")

# name -> (type, the value that turns it off)
SETTINGS: dict[str, tuple[DType, float]] = {
    "temperature": (f32, 1.0),  # 0: the largest logit
    "top_k": (i64, 0),  # 0: all
    "top_p": (f32, 1.0),
    "min_p": (f32, 0.0),
    "repetition_penalty": (f32, 1.0),
    "presence_penalty": (f32, 0.0),
    "frequency_penalty": (f32, 0.0),
    "seed": (i64, 0),
}


@dataclass(frozen=True)
class Sampler:
    """The nodes of the sampling parameters.

    settings: scalars, in the order of SETTINGS. bias: f32[batch, vocabulary], added to logits: -inf forbids a token.
    counts: i32[batch, 2, vocabulary], the occurrences of each token in the prompt and in the generated tokens.
    """

    settings: tuple[Node, ...]
    bias: Node
    counts: Node

    @staticmethod
    def inputs(batch: int, vocabulary: int) -> Sampler:
        settings = tuple(Input(name, TensorType(dtype))() for name, (dtype, _) in SETTINGS.items())
        bias = Input("bias", TensorType(f32, (batch, vocabulary)))()
        return Sampler(settings, bias, Input("counts", TensorType(i32, (batch, 2, vocabulary)))())

    def __getitem__(self, name: str) -> Node:
        return self.settings[[*SETTINGS].index(name)]

    def tokens(self, logits: Node, position: Node) -> Node:
        """(logits: f32[batch, vocabulary], position of the new tokens: i64[]) -> i64[batch]."""
        return self.draw(self.weighed(logits), position)

    def weighed(self, logits: Node) -> Node:
        """The logits with bias and penalties."""
        return self._penalized(ops.add(logits, self.bias))

    def draw(self, scores: Node, position: Node) -> Node:
        """The tokens that are drawn from weighed logits."""
        is_greedy = ops.compare("LE", self["temperature"], 0.0)
        names = "temperature", "top_k", "top_p", "min_p", "seed"
        operands = (*(self[name] for name in names), scores, position)
        branches = (_greedy(operands), *(_drawn(operands, count) for count in self._counts(scores)))
        return ops.Case(branches)(self._branch(is_greedy, len(branches)), *operands)

    def with_counted(self, tokens: Node, is_generated: Node, is_counted: Node) -> Sampler:
        """The sampler with counts that include `tokens`, i64[batch, n]. is_generated: bool[]; otherwise they belong to
        the prompt. is_counted: bool[]; otherwise nothing changes."""
        row = ops.broadcast_to(ops.expand_dims(ops.arange(tokens.shape[0]), 1), tokens.shape)
        kind = ops.broadcast_to(ops.cast(is_generated, i64), tokens.shape)
        increment = ops.broadcast_to(ops.cast(is_counted, i32), tokens.shape)
        counts = ops.ScatterND("add")(self.counts, ops.stack([row, kind, tokens], 2), increment)
        return replace(self, counts=counts)

    def _counts(self, logits: Node) -> tuple[int, ...]:
        """The number of candidates that each branch sorts: few, all, none."""
        vocabulary = logits.shape[1]
        assert isinstance(vocabulary, int)
        return (min(CANDIDATES, vocabulary), vocabulary, 0)

    def _branch(self, is_greedy: Node, count: int) -> Node:
        top_k = self["top_k"]
        is_short = ops.and_(ops.compare("GE", top_k, 1), ops.compare("LE", top_k, CANDIDATES))
        is_sorted = ops.or_(ops.compare("GT", top_k, 0), ops.compare("LT", self["top_p"], 1.0))
        index = ops.where(is_short, ops.scalar(1, i64), ops.where(is_sorted, ops.scalar(2, i64), ops.scalar(3, i64)))
        return ops.where(is_greedy, ops.scalar(0, i64), index)

    def _penalized(self, logits: Node) -> Node:
        """The logits with penalties. Repetition: for all tokens so far, positive logits are divided, others multiplied
        (Keskar et al. 2019). Presence and frequency: for generated tokens, as OpenAI's."""
        prompt, generated = (ops.index_axis(self.counts, 1, i) for i in (0, 1))
        penalty = self["repetition_penalty"]
        penalized = ops.where(ops.compare("GT", logits, 0.0), ops.div(logits, penalty), ops.mul(logits, penalty))
        has_occurred = ops.compare("GT", ops.add(prompt, generated), 0)
        logits = ops.where(has_occurred, penalized, logits)
        frequency = ops.cast(generated, f32)
        presence = ops.cast(ops.compare("GT", generated, 0), f32)
        subtracted = ops.add(ops.mul(frequency, self["frequency_penalty"]), ops.mul(presence, self["presence_penalty"]))
        return ops.sub(logits, subtracted)


def inputs_like(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Inputs of the types of these nodes, for the graph of a branch or of a loop."""
    return tuple(Input(f"operand {i}", n.type)() for i, n in enumerate(nodes))


def _greedy(operands: tuple[Node, ...]) -> Graph:
    inputs = inputs_like(operands)
    return Graph(inputs, (ops.arg_reduce("max", inputs[-2], 1),))


def _drawn(operands: tuple[Node, ...], count: int) -> Graph:
    """Draw from the `count` largest; 0: from all, unsorted, which only min-p may restrict."""
    inputs = inputs_like(operands)
    temperature, top_k, top_p, min_p, seed, scores, position = inputs
    # a temperature near 0 selects the largest logit, instead of comparing infinities
    temperature = ops.maximum(temperature, 1e-6)
    scaled = ops.div(ops.sub(scores, ops.reduce_max(scores, 1, keepdims=True)), temperature)
    key = ops.counted_key(seed, position)
    ids = None
    if count:
        scaled, ids = ops.TopK(count, 1)(scaled).results
    weights = ops.Softmax(1)(scaled)
    is_kept = ops.compare("GE", weights, ops.mul(ops.reduce_max(weights, 1, keepdims=True), min_p))
    if count:
        rank = ops.arange(count)
        limit = ops.where(ops.compare("GT", top_k, 0), top_k, ops.scalar(count, i64))
        is_in_top_k = ops.compare("LT", rank, limit)
        # top-p applies to the tokens that top-k left
        weights = ops.mul(weights, ops.cast(is_in_top_k, f32))
        weights = ops.div(weights, ops.reduce_sum(weights, 1, keepdims=True))
        preceding_weight = ops.cumulative("sum", weights, 1, exclusive=True)
        is_in_top_p = ops.compare("LT", preceding_weight, top_p)
        # the most likely token is always a candidate
        is_kept = ops.or_(ops.and_(is_kept, ops.and_(is_in_top_p, is_in_top_k)), ops.compare("EQ", rank, 0))
    noise = ops.Neg()(ops.Log()(sampling.exponential(key, scaled.shape)))
    place = ops.arg_reduce("max", ops.where(is_kept, ops.add(scaled, noise), -_INF), 1)
    if ids is None:
        return Graph(inputs, (place,))
    return Graph(inputs, (ops.squeeze(ops.GatherElements(1)(ids, ops.expand_dims(place, 1)), 1),))
