"""The layers of a network as nodes of a graph, as specified by an `Architecture`."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node, const
from ingot.ir.types import i64
from ingot.language.architecture import Architecture, Experts, Norm
from ingot.language.attention import Chunk, Tokens, UpdatedCaches
from ingot.language.cache import CacheForm
from ingot.language.rope import Rope
from ingot.language.tensors import Tensors
from ingot.language.weights import Weights
from ingot.support.errors import ImportModelError

ACTIVATIONS = {
    "silu": ops.Silu(),
    "gelu": ops.Gelu(),
    "gelu_tanh": ops.Gelu(approximate="tanh"),
    "relu": ops.Relu(),
}

CosSin = tuple[Node, Node]  # cos and sin of a chunk's positions, f32[tokens, width / 2]


class Network:
    """A language model, from ids to logits or to embeddings.

    context: the maximum number of tokens of a sequence. launches_cost: on targets where each kernel is a launch,
    queries, keys and values are one product of floats, too; a gate and what it gates are two, which share a kernel.
    Raises ImportModelError if the context exceeds the file's positions.
    """

    def __init__(
        self, architecture: Architecture, weights: Weights, context: int, *, launches_cost: bool = False
    ) -> None:
        self.architecture, self.context, self._launches_cost = architecture, context, launches_cost
        self._tensors = Tensors(architecture, weights, joins_floats=launches_cost)
        self.vocabulary = self._tensors.shape("embedding")[0]
        max_context = self._tensors.shape("positions")[0] if architecture.positions else context
        if not 1 <= context <= max_context:
            raise ImportModelError(
                "context",
                expected=f"1 to {max_context} tokens" if architecture.positions else "1 or more tokens",
                got=context,
            )

    def hidden(self, ids: Node, at: Tokens, form: CacheForm, caches: Sequence[Node]) -> tuple[Node, list[Node]]:
        """(f32[batch, tokens, width] before the last norm, the updated caches), for ids, i64[batch, tokens], from
        position `at` on. Raises ImportModelError for a file that lacks a tensor, and for an encoder."""
        if not self.architecture.causal:
            what = f"a model of family {self.architecture.family!r} has no next token"
            raise ImportModelError(what, fix="take its embeddings")
        return self._through(ids, at, form.by_layer(caches))

    def encoded(self, ids: Node, lengths: Node) -> Node:
        """f32[batch, tokens, width] after the last norm, for complete sequences. lengths: i64[batch]; later positions
        have arbitrary values."""
        a, t = self.architecture, self._tensors
        mask = None
        if not a.causal:  # a causal model never attends to padding at the end
            mask = ops.compare("LT", ops.arange(ids.shape[1]), ops.reshape(lengths, (*lengths.shape, 1, 1, 1)))
        x, _ = self._through(ids, Chunk(0, ops.scalar(0, i64)), [()] * len(a.layers), mask)
        x = x if a.residual_norm else self._norm(x, "norm")
        t.ignore("output")
        t.check_all_read()
        return x

    def _through(
        self, ids: Node, at: Tokens, caches: Sequence[Sequence[Node]], mask: Node | None = None
    ) -> tuple[Node, list[Node]]:
        a, t = self.architecture, self._tensors
        tokens = ids.shape[1]
        x = _scaled(t.rows("embedding", ids), a.embedding_scale)
        if a.positions:
            x = ops.add(x, at.rows(t.matrix("positions"), tokens))
        if t.has("segments"):
            x = ops.add(x, ops.index_axis(t.matrix("segments"), 0, 0))
        if t.has("embedding_norm"):
            x = self._norm(x, "embedding_norm")
        rotations = {
            rope: self._rotation(rope, at, tokens) for rope in {layer.rope: None for layer in a.layers} if rope
        }
        after: list[Node] = []
        for i, (layer, layer_caches) in enumerate(zip(a.layers, caches, strict=True)):
            h = self._norm(x, "attention_norm", i) if a.pre_norm else x
            if layer.convolution:
                y, new_caches = self._convolved(h, i, layer_caches, at)
            else:
                y, new_caches = self._attended(
                    h, i, layer_caches, at, rotations.get(layer.rope) if layer.rope else None, mask
                )
            after += new_caches
            y = self._branch(y, "attention_post_norm", i)
            if not a.parallel:
                x = self._sum(x, y, "attention_post_norm", i)
            # a parallel feed-forward half reads the input of attention, unless it has its own norm
            if a.pre_norm and (not a.parallel or t.has("feed_forward_norm", i)):
                h = self._norm(x, "feed_forward_norm", i)
            elif not a.parallel:
                h = x
            z = self._mixture(h, i, layer.experts) if layer.experts else self._feed_forward(h, i)
            z = self._branch(z, "feed_forward_post_norm", i)
            x = self._sum(x, ops.add(y, z) if a.parallel else z, "feed_forward_post_norm", i)
        return x, after

    def logits(self, x: Node) -> Node:
        """f32[..., width] from `hidden` -> f32[..., vocabulary]."""
        a, t = self.architecture, self._tensors
        tied = a.tied or not t.has("output")
        if tied:
            t.ignore("output")  # a copy of the embedding
        y = t.linear(self._norm(x, "norm"), "embedding" if tied else "output")
        t.check_all_read()
        return _capped(_scaled(y, a.logit_scale), a.logit_cap)

    # --- attention

    def _heads(self, x: Node, i: int, rotation: CosSin | None) -> tuple[Node, Node, Node]:
        """Queries, keys and values: [batch, heads, tokens, head width]."""
        a, t = self.architecture, self._tensors
        q_width, k_width = a.heads * a.head_width, a.key_heads * a.head_width
        if t.has("query_key_value", i):
            q, k, v = ops.split(t.linear(x, "query_key_value", i), (q_width, k_width, k_width), -1)
        else:
            q, k, v = t.linears(x, ("query", "key", "value"), i)
        if a.head_norm == "all":
            q, k = self._norm(q, "query_norm", i), self._norm(k, "key_norm", i)
        if a.clip:
            q, k, v = (ops.clip(y, -a.clip, a.clip) for y in (q, k, v))
        q, k, v = (ops.reshape(y, (*y.shape[:-1], -1, a.head_width)) for y in (q, k, v))
        if a.head_norm == "head":
            q, k = self._norm(q, "query_norm", i), self._norm(k, "key_norm", i)
        q, k, v = (ops.swap_axes(y, 1, 2) for y in (q, k, v))
        rope = a.layers[i].rope
        if rope and rotation:
            q, k = _rotated(q, rope, rotation), _rotated(k, rope, rotation)
        return q, k, v

    def _attended(
        self, x: Node, i: int, caches: Sequence[Node], at: Tokens, rotation: CosSin | None, mask: Node | None
    ) -> tuple[Node, UpdatedCaches]:
        a = self.architecture
        window = a.layers[i].window
        window = 0 if window >= self.context else window
        y, new_caches = at.attended(a, window, *self._heads(x, i, rotation), caches, mask)
        y = ops.reshape(ops.swap_axes(y, 1, 2), (*x.shape[:-1], a.heads * a.head_width))
        return self._tensors.linear(y, "attention_output", i), new_caches

    def _rotation(self, rope: Rope, at: Tokens, tokens: DimLike) -> CosSin:
        role = "rope_factors"
        if rope.scaling == "longrope":
            role += "_long" if self.context > rope.original else "_short"
        factors = self._tensors.array(role) if self._tensors.has(role) else None
        for other in ("rope_factors_long", "rope_factors_short"):
            self._tensors.ignore(other)
        cos, sin = (at.rows(const(table), tokens) for table in rope.tables(self.context, factors))
        return cos, sin

    # --- convolution

    def _convolved(self, x: Node, i: int, caches: Sequence[Node], at: Tokens) -> tuple[Node, UpdatedCaches]:
        """A causal convolution of each channel, gated before and after."""
        t, width, size = self._tensors, x.shape[-1], self.architecture.layers[i].convolution
        input_gate, output_gate, x = ops.split(t.linear(x, "convolution_input", i), (width,) * 3, -1)
        taps = ops.reshape(t.vector("convolution", i), (width, size))
        y, new_caches = at.convolved(ops.mul(input_gate, x), taps, caches)
        if (bias := t.bias("convolution", i)) is not None:
            y = ops.add(y, bias)
        return t.linear(ops.mul(output_gate, y), "convolution_output", i), new_caches

    # --- norms and feed-forward networks

    def _norm(self, x: Node, role: str, *place: int) -> Node:
        norm = self.architecture.norm
        if norm.plain:
            return _normalized(x, norm)
        scale, bias = self._tensors.vector(role, *place), self._tensors.bias(role, *place)
        if norm.offset:
            scale = ops.add(scale, norm.offset)
        return _normalized(x, norm, scale) if bias is None else _normalized(x, norm, scale, bias)

    def _branch(self, y: Node, post_norm: str, i: int) -> Node:
        """A branch as it is added to the residual stream."""
        a = self.architecture
        return _scaled(self._norm(y, post_norm, i) if a.post_norm else y, a.residual_scale)

    def _sum(self, x: Node, y: Node, norm: str, i: int) -> Node:
        return self._norm(ops.add(x, y), norm, i) if self.architecture.residual_norm else ops.add(x, y)

    def _feed_forward(self, x: Node, i: int, kind: str = "") -> Node:
        """A feed-forward network. kind: the prefix of its tensors' roles."""
        t, a = self._tensors, self.architecture
        activation = ACTIVATIONS[a.activation]
        if not a.gated:
            return t.linear(activation(t.linear(x, f"{kind}up", i)), f"{kind}down", i)
        if t.has(f"{kind}gate_up", i):
            gate, up = _halves(t.linear(x, f"{kind}gate_up", i))
        elif self._launches_cost:
            gate, up = (t.linear(x, f"{kind}{role}", i) for role in ("gate", "up"))
        else:
            gate, up = t.linears(x, (f"{kind}gate", f"{kind}up"), i)
        return t.linear(ops.mul(activation(gate), up), f"{kind}down", i)

    # --- mixtures of experts

    def _mixture(self, x: Node, i: int, experts: Experts) -> Node:
        """Rows are sorted by expert, multiplied with the experts' matrices, and put back in order."""
        t = self._tensors
        flat = ops.reshape(x, (product(x.shape[:-1]), x.shape[-1]))
        weights, chosen = ops.TopK(experts.experts_per_token, 1)(ops.Softmax(1)(t.linear(flat, "router", i))).results
        if experts.normalized:
            weights = ops.div(weights, ops.reduce_sum(weights, 1, keepdims=True))
        weights = _scaled(weights, experts.scale)
        expert = ops.flatten(chosen)
        rows = expert.shape[0]
        order = ops.Sort(0)(expert, ops.arange(rows)).results[1]
        ends = ops.reduce_sum(
            ops.cast(ops.compare("LE", expert, ops.expand_dims(ops.arange(experts.count), 1)), i64), 1
        )
        routed = ops.Take(0)(flat, ops.div(order, experts.experts_per_token))
        y = self._expert_products(routed, ends, i, experts)
        inverse_order = ops.Sort(0)(order, ops.arange(rows)).results[1]
        y = ops.reshape(ops.Take(0)(y, inverse_order), (*weights.shape, x.shape[-1]))
        y = ops.reduce_sum(ops.mul(y, ops.expand_dims(weights, 2)), 1)
        if t.has("shared_down", i):
            shared = self._feed_forward(flat, i, "shared_")
            if t.has("shared_router", i):
                shared = ops.mul(shared, ops.Logistic()(t.linear(flat, "shared_router", i)))
            y = ops.add(y, shared)
        return ops.reshape(y, x.shape)

    def _expert_products(self, x: Node, ends: Node, i: int, experts: Experts) -> Node:
        def product_with(x: Node, w: Node) -> Node:
            return ops.GroupedMatMul()(x, ops.swap_axes(w, 1, 2), ends)

        if self._tensors.has("experts_gate_up", i):
            gate, up = _halves(product_with(x, self._tensors.matrix("experts_gate_up", i)))
        else:
            gate, up = (product_with(x, self._expert_matrices(role, i, experts)) for role in ("gate", "up"))
        inner = ops.mul(ACTIVATIONS[self.architecture.activation](gate), up)
        return product_with(inner, self._expert_matrices("down", i, experts))

    def _expert_matrices(self, role: str, i: int, experts: Experts) -> Node:
        """[experts, outputs, inputs], stored as one tensor or as one per expert."""
        if self._tensors.has(f"experts_{role}", i):
            return self._tensors.matrix(f"experts_{role}", i)
        return self._tensors.experts(f"expert_{role}", i, experts.count)


def _normalized(x: Node, norm: Norm, *parameters: Node) -> Node:
    kind = ops.RMSNorm if norm.kind == "rms" else ops.LayerNorm
    return kind((x.type.rank - 1,), norm.eps)(x, *parameters)


def _scaled(x: Node, scale: float) -> Node:
    return x if scale == 1 else ops.mul(x, scale)


def _capped(x: Node, cap: float) -> Node:
    return ops.mul(ops.Tanh()(ops.div(x, cap)), cap) if cap else x


def _halves(x: Node) -> tuple[Node, Node]:
    first, second = ops.split(x, (x.shape[-1] // 2,) * 2, -1)
    return first, second


def _rotated(x: Node, rope: Rope, rotation: CosSin) -> Node:
    """[..., tokens, head width] with its pairs rotated."""
    cos, sin = rotation
    width = x.shape[-1]
    full, x = x, ops.slice_axis(x, -1, 0, rope.width)
    pairs = (*x.shape[:-1], rope.width // 2, 2) if rope.interleaved else (*x.shape[:-1], 2, rope.width // 2)
    axis = -1 if rope.interleaved else -2
    split = ops.reshape(x, pairs)
    a, b = ops.index_axis(split, axis, 0), ops.index_axis(split, axis, 1)
    rotated = ops.stack([ops.sub(ops.mul(a, cos), ops.mul(b, sin)), ops.add(ops.mul(b, cos), ops.mul(a, sin))], axis)
    result = ops.reshape(rotated, x.shape)
    return result if rope.width == width else ops.concat([result, ops.slice_axis(full, -1, rope.width)], -1)
