"""Attention and rotary embeddings, standard and com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold_left

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.onnx.rows.common import ints_of
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import Dim, DimLike, dim_max
from ingot.ir.node import Node

MS = "com.microsoft"


def split_heads(x: Node, heads: int) -> Node:
    """[B, S, heads*D] -> [B, heads, S, D]."""
    b, s, _ = x.shape
    return ops.transpose(ops.reshape(x, (b, s, heads, -1)), (0, 2, 1, 3))


def merge_heads(x: Node) -> Node:
    """[B, heads, S, D] -> [B, S, heads*D]."""
    b, h, s, d = x.shape
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (b, s, h * d))


def _padded_mask(mask: Node, keys: DimLike) -> Node:
    """A mask as [B|1, H|1, Sq|1, Skv]; keys beyond its last column are masked."""
    mask_keys = mask.shape[-1]
    if mask_keys != 1 and mask_keys != keys:
        fill = ops.scalar(False, T.boolean) if mask.dtype == T.boolean else ops.scalar(-np.inf, mask.dtype)
        rank = len(mask.shape)
        mask = ops.pad(mask, (0,) * rank, (*(0,) * (rank - 1), keys - mask_keys), fill)
    rank = len(mask.shape)
    return ops.expand_dims(mask, tuple(range(4 - rank))) if rank < 4 else mask


def _joined_mask(mask: Node | None, keep: list[Node], dtype: T.DType) -> Node | None:
    """The mask and the keep-conditions as one mask."""
    if not keep:
        return mask
    keep_mask = fold_left(ops.and_, keep)
    if mask is None:
        return keep_mask
    if mask.dtype == T.boolean:
        return ops.and_(mask, keep_mask)
    return ops.where(keep_mask, mask, ops.scalar(-np.inf, dtype))


@onnx_op("Attention", since=23)
def attention(c: Call) -> Result | None:
    if c.is_result_used(3):
        # the scores are a result, too: use ONNX's own definition in plain ops
        return None
    q, k, v = c.x(0), c.x(1), c.x(2)
    flat = len(q.shape) == 3
    if flat:
        q = split_heads(q, c.int("q_num_heads"))
        k, v = (split_heads(t, c.int("kv_num_heads")) for t in (k, v))
    new_keys = k.shape[2]
    past_length: DimLike = 0
    if c.has(4):
        past_length = c.shape(4)[2]
        k, v = ops.concat([c.x(4), k], 2), ops.concat([c.x(5), v], 2)
    queries, keys = q.shape[2], k.shape[2]
    mask = _padded_mask(c.x(3), keys) if c.has(3) else None
    if mask is not None and mask.dtype not in (T.boolean, q.dtype):
        mask = ops.cast(mask, q.dtype)
    left_window, right_window = c.int("left_window_size", -1), c.int("right_window_size", -1)
    causal, aligned = "none", c.flag("is_causal")
    keep: list[Node] = []
    offset: Node | DimLike = past_length
    if c.has(6):
        lengths = ops.reshape(ops.cast(c.x(6), T.i64), (-1, 1, 1, 1))
        keep.append(ops.compare("LT", ops.iota((1, 1, 1, keys), 3), lengths))
        if not c.has(4):
            offset = ops.sub(lengths, queries)
    if aligned and not c.has(6) and (past_length == 0 or new_keys == queries):
        causal, aligned = ("upper_left" if past_length == 0 else "lower_right"), False
    if aligned or left_window >= 0 or right_window >= 0:
        # the query in row i has position i + offset among the keys
        position = ops.add(ops.iota((1, 1, queries, 1), 2), offset)
        key = ops.iota((1, 1, 1, keys), 3)
        if aligned:
            keep.append(ops.compare("LE", key, position))
        if left_window >= 0:
            keep.append(ops.compare("LE", ops.sub(position, key), left_window))
        if right_window >= 0:
            keep.append(ops.compare("LE", ops.sub(key, position), right_window))
    y = scaled_attention(c, q, k, v, _joined_mask(mask, keep, q.dtype), causal)
    return [merge_heads(y) if flat else y, k, v]


def scaled_attention(c: Call, q: Node, k: Node, v: Node, mask: Node | None, causal: str) -> Node:
    (width,) = ints_of(q.shape[3:], "the head size")
    scale = c.float("scale") if c.has_attr("scale") else 1.0 / np.sqrt(width)
    extra = () if mask is None else (mask,)
    return ops.Attention(causal=causal, scale=float(scale), softcap=c.float("softcap", 0.0))(q, k, v, *extra)


# rotary embeddings


def rotate(x: Node, cos: Node, sin: Node, interleaved: bool) -> Node:
    """x [B, S, H, R] rotated by angles given as cos, sin [B|1, S, 1, R/2]."""
    half = x.shape[-1] // 2
    if interleaved:
        pairs = ops.reshape(x, (*x.shape[:-1], half, 2))
        a, b = (ops.index_axis(pairs, -1, i) for i in (0, 1))
    else:
        a, b = ops.split(x, (half, half), -1)
    real = ops.sub(ops.mul(a, cos), ops.mul(b, sin))
    imaginary = ops.add(ops.mul(a, sin), ops.mul(b, cos))
    if interleaved:
        return ops.reshape(ops.stack([real, imaginary], -1), x.shape)
    return ops.concat([real, imaginary], -1)


def _rotary(c: Call, x: Node, cos: Node, sin: Node, positions: Node | None) -> Node:
    """x [B, H, S, D] or [B, S, H*D]; cos, sin: tables [P, R/2] read at `positions`, or [B, S, R/2] without."""
    four = len(x.shape) == 4
    heads = c.int("num_heads", 0)
    width = c.int("rotary_embedding_dim", 0)
    if four:
        work = ops.transpose(x, (0, 2, 1, 3))
    else:
        if not heads:
            heads_found = _heads_of(x, cos, width)
            heads = heads_found
        work = ops.reshape(x, (*x.shape[:2], heads, -1))
    if positions is not None:
        cos, sin = (ops.Take(0)(t, positions) for t in (cos, sin))
    cos, sin = (ops.expand_dims(ops.cast(t, x.dtype), 2) for t in (cos, sin))
    size = work.shape[-1]
    width = width or int(ints_of((size,), "the head size")[0])
    rotated = rotate(ops.slice_axis(work, -1, 0, width), cos, sin, c.flag("interleaved"))
    if width != size:
        rotated = ops.concat([rotated, ops.slice_axis(work, -1, width, size)], -1)
    return ops.transpose(rotated, (0, 2, 1, 3)) if four else ops.reshape(rotated, x.shape)


def _heads_of(x: Node, cos: Node, width: int) -> int:
    if width:
        raise Unsupported("attribute 'num_heads' is missing")
    size, half = ints_of((x.shape[-1], cos.shape[-1]), "the head size")
    return size // (2 * half)


@onnx_op("RotaryEmbedding", since=23)
def rotary_embedding(c: Call) -> Result:
    return _rotary(c, c.x(0), c.x(1), c.x(2), c.opt(3))


@onnx_op("RotaryEmbedding", domain=MS)
def rotary_embedding_ms(c: Call) -> Result:
    x, positions, cos, sin = (c.x(i) for i in range(4))
    if c.rank(1) < 2:
        # a single offset: positions are offset, offset + 1, ...
        length = x.shape[2] if len(x.shape) == 4 else x.shape[1]
        line = ops.add(ops.expand_dims(ops.arange(length), 0), ops.reshape(ops.cast(positions, T.i64), (1, 1)))
        positions = line
    return _rotary(c, x, cos, sin, positions)


@onnx_op("MultiHeadAttention", domain=MS)
def multi_head_attention(c: Call) -> Result:
    """q [B, S, H*D], k, v likewise or [B, H, S, D]; bias for all three; key padding or additive mask; past k, v."""
    heads = c.int("num_heads")
    q, k, v = c.x(0), c.opt(1), c.opt(2)
    if v is None and k is None:
        # [B, S, H, 3, D]
        q, k, v = (ops.reshape(ops.index_axis(q, 3, i), (*q.shape[:2], -1)) for i in range(3))
    elif v is None:
        assert k is not None  # [B, S, H, 2, D]
        k, v = (ops.reshape(ops.index_axis(k, 3, i), (*k.shape[:2], -1)) for i in range(2))
    assert k is not None and v is not None
    widths = [t.shape[-1] if len(t.shape) == 3 else heads * t.shape[-1] for t in (q, k, v)]
    if c.has(3):
        parts = ops.split(c.x(3), widths, 0)
        q, k, v = (ops.add(t, p) if len(t.shape) == 3 else t for t, p in zip((q, k, v), parts, strict=True))
    q, k, v = (split_heads(t, heads) if len(t.shape) == 3 else t for t in (q, k, v))
    if c.has(6):
        k, v = ops.concat([c.x(6), k], 2), ops.concat([c.x(7), v], 2)
    mask: Node | None = c.opt(5)
    if c.has(4):
        keep = _padding(c.x(4), k)
        if mask is None:
            mask = keep
        else:
            low = ops.scalar(c.float("mask_filter_value", -10000.0), mask.dtype)
            mask = ops.add(mask, ops.where(keep, ops.scalar(0.0, mask.dtype), low))
    causal = "lower_right" if c.flag("unidirectional") else "none"
    y = scaled_attention(c, q, k, v, mask, causal)
    return [merge_heads(y), k, v]


def _padding(mask: Node, k: Node) -> Node:
    """A mask of the keys of k [B, H, K, D] that queries attend to: lengths [B], flags [B, K] or [B, S, K]   ->
    flags [B, 1, S or 1, K]"""
    batch, _, keys, _ = k.shape
    if mask.shape == (batch,):
        key_positions = ops.reshape(ops.arange(keys, mask.dtype), (1, 1, 1, keys))
        return ops.compare("LT", key_positions, ops.expand_dims(mask, (1, 2, 3)))
    rank = len(mask.shape)
    if rank not in (2, 3) or (isinstance(mask.shape[-1], Dim) and mask.shape[-1] != keys):
        shape = list(mask.shape)
        raise Unsupported(f"a mask of shape {shape} (expected [batch], [batch, keys] or [batch, queries, keys])")
    return ops.expand_dims(ops.compare("NE", mask, ops.scalar(0, mask.dtype)), (1, 2) if rank == 2 else (1,))


@onnx_op("GroupQueryAttention", domain=MS)
def group_query_attention(c: Call) -> Result:
    """q [B, S, H*D] (followed by k and v where these are not separate), k, v [B, S, K*D]; past k, v [B, K, P, D] and
    present ones [B, K, max(P, total), D], of which each sequence fills a leading part."""
    heads, groups = c.int("num_heads"), c.int("kv_num_heads")
    refused = {
        "quantized caches": c.has(12), "no causal mask": not c.flag("causal", 1),
        "a cache of a window": c.flag("sliding_window_cache"), "scores as a result": c.is_result_used(3),
    }  # fmt: skip
    if any(refused.values()):
        raise Unsupported(", ".join(name for name, used in refused.items() if used))
    q, k, v = c.x(0), c.opt(1), c.opt(2)
    if k is None or v is None:
        width = ints_of((q.shape[-1],), "the width of packed queries, keys and values")[0] // (heads + 2 * groups)
        q, k, v = ops.split(q, (heads * width, groups * width, groups * width), -1)
    q, k, v = split_heads(q, heads), split_heads(k, groups), split_heads(v, groups)
    if c.has(14):
        norm = ops.RMSNorm((3,), c.float("qk_norm_epsilon", 1e-6))
        q, k = norm(q, c.x(14)), norm(k, c.x(15))
    batch, length = q.shape[0], q.shape[2]
    (total,) = c.dims(6)
    filled = _filled(ops.cast(c.x(5), T.i64), length, total)
    rows = ops.add(ops.reshape(filled, (batch, 1)), ops.iota((1, length), 1))
    if c.flag("do_rotary"):
        positions = ops.cast(c.x(9), T.i64) if c.has(9) else rows
        q, k = (_rotated_at(c, x, positions) for x in (q, k))
    keys, values = (_cached(c.opt(i), x, filled, total) for i, x in ((3, k), (4, v)))
    key, row = ops.iota((1, 1, 1, keys.shape[2]), 3), ops.reshape(rows, (batch, 1, length, 1))
    keep = [ops.compare("LE", key, row)]
    window = c.int("local_window_size", -1)
    if window > 0:
        keep.append(ops.compare("LT", ops.sub(row, key), window))
    bias = _padded_mask(c.x(10), keys.shape[2]) if c.has(10) else None
    mask = _joined_mask(bias, keep, q.dtype)
    if not c.has(11) and not c.flag("smooth_softmax"):
        return [merge_heads(scaled_attention(c, q, keys, values, mask, "none")), keys, values]
    # one more key with score 0 and value 0; a head's sink logit is added by the mask
    sink = ops.cast(c.x(11), q.dtype) if c.has(11) else ops.full((heads,), 0.0, q.dtype)
    assert mask is not None
    if mask.dtype == T.boolean:
        mask = ops.where(mask, ops.scalar(0.0, q.dtype), ops.scalar(-np.inf, q.dtype))
    shape = (batch, heads, length)
    mask = ops.broadcast_to(mask, (*shape, keys.shape[2]))
    mask = ops.concat([mask, ops.broadcast_to(ops.reshape(sink, (1, heads, 1, 1)), (*shape, 1))], 3)
    longer, wider = (ops.pad(t, (0,) * 4, (0, 0, 1, 0)) for t in (keys, values))
    return [merge_heads(scaled_attention(c, q, longer, wider, mask, "none")), keys, values]


def _filled(last: Node, length: DimLike, total: DimLike) -> Node:
    """The number of keys that each sequence had before: its `last` position includes the keys of this call; a prompt
    had none."""
    if length == total:
        return ops.mul(last, 0)
    past_lengths = ops.sub(ops.add(last, 1), length)
    if isinstance(total, int) and isinstance(length, int):
        return past_lengths
    sizes = [ops.DimValue(d)() if isinstance(d, Dim) else ops.scalar(d, T.i64) for d in (length, total)]
    prompt = ops.compare("EQ", sizes[0], sizes[1])
    return ops.where(prompt, ops.scalar(0, T.i64), past_lengths)


def _cached(past: Node | None, new: Node, filled: Node, total: DimLike) -> Node:
    """The cache with the new keys [B, K, S, D] appended to the `filled` part of each sequence."""
    if past is None:
        return new
    _, heads, _, width = new.shape
    size = dim_max(past.shape[2], total)
    positions = ops.iota((1, size), 1)
    filled = ops.expand_dims(filled, 1)
    gathered = ops.Gather((1, 3), (2,), (0,), (0,), (2,), 2, (1, heads, 1, width))(new, ops.sub(positions, filled))
    padded_past = ops.pad(past, (0,) * 4, (0, 0, size - past.shape[2], 0))
    return ops.where(ops.expand_dims(ops.compare("LT", positions, filled), (1, 3)), padded_past, gathered)


def _rotated_at(c: Call, x: Node, positions: Node) -> Node:
    """x [B, H, S, D], whose leading features are rotated by the tables at inputs 7 and 8."""
    cos, sin = (ops.expand_dims(ops.cast(ops.Take(0)(c.x(i), positions), x.dtype), 1) for i in (7, 8))
    width = 2 * cos.shape[-1]
    rotated = rotate(ops.slice_axis(x, -1, 0, width), cos, sin, c.flag("rotary_interleaved"))
    return rotated if width == x.shape[-1] else ops.concat([rotated, ops.slice_axis(x, -1, width, None)], -1)


@onnx_op("Attention", domain=MS)
def attention_ms(c: Call) -> Result:
    """x [B, S, I] W [I, 3*H*D] + b, then self-attention."""
    if c.has(5):
        raise Unsupported("an additive mask")
    packed = ops.MatMul()(c.x(0), c.x(1))
    if c.has(2):
        packed = ops.add(packed, c.x(2))
    sizes = c.int_list("qkv_hidden_sizes") if c.has_attr("qkv_hidden_sizes") else None
    return self_attention(c, packed, sizes, c.opt(3), c.opt(4))


def self_attention(
    c: Call, packed: Node, sizes: Sequence[DimLike] | None, mask: Node | None, past: Node | None
) -> Result:
    """q, k and v concatenated, as thirds unless `sizes` are given; past and present [2, B, H, S, D]."""
    heads = c.int("num_heads")
    if sizes is None:
        sizes = (packed.shape[-1] // 3,) * 3
    q, k, v = (split_heads(t, heads) for t in ops.split(packed, sizes, -1))
    if past is not None:
        k, v = (ops.concat([ops.index_axis(past, 0, i), t], 2) for i, t in enumerate((k, v)))
    keep = None if mask is None else _padding(mask, k)
    y = merge_heads(scaled_attention(c, q, k, v, keep, "lower_right" if c.flag("unidirectional") else "none"))
    return [y, ops.stack([k, v], 0)] if c.is_result_used(1) else y
