"""The program of a step of many sequences: rows through the network, then a token after each sampled row.

    x = network(ids of all rows);  logits = output(x of the sampled rows);  token = sample(logits), one by one

Matrices are read once for all rows. The bits of a row do not depend on the other rows.

`paged_step` is the same for targets whose attention reads pages and lengths by itself: all rows at once, with what the
host rarely sets or reads kept on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, TensorType, boolean, f32, i32, i64
from ingot.language.architecture import Architecture
from ingot.language.attention import PagedRows, Rows, loop
from ingot.language.cache import CacheForm
from ingot.language.engine.paging import FEW_ROWS, Steps, page_count
from ingot.language.layers import Network
from ingot.language.sampler import SETTINGS, Sampler, inputs_like
from ingot.support.errors import InputError

ROWS, SAMPLES, REPORTED = symbol("rows"), symbol("samples"), symbol("reported")
_CACHE_BYTES = 1 << 30  # the default
MAX_PAGED_SAMPLES = 64  # of a call: each has a bias and counts of the vocabulary on the device


def pool(steps: Steps, architecture: Architecture, context: int, dtype: DType) -> CacheForm:
    """The form of the pools. Raises InputError for a pool that is too small for one sequence."""
    min_pages = page_count(context)
    empty, one = (CacheForm.paged(architecture, steps.sequences, context, n, dtype).nbytes for n in (0, 1))
    page_bytes = max(one - empty, 1)
    if steps.cache_bytes is None:
        pages = max(min_pages, _CACHE_BYTES // page_bytes)
    elif (pages := (steps.cache_bytes - empty) // page_bytes) < min_pages:
        needed_bytes, fix = empty + min_pages * page_bytes, "or a smaller context"
        expected = f"{needed_bytes} or more, for a sequence of {context} tokens"
        raise InputError("cache_bytes", expected=expected, got=steps.cache_bytes, fix=fix)
    return CacheForm.paged(architecture, steps.sequences, context, min(pages, steps.sequences * min_pages), dtype)


def step(network: Network, form: CacheForm) -> Graph:
    """(ids, positions, sequences, slots: i64[rows]; tables: i64[sequences, pages]; singles, chunks: i64[]; starts,
    lengths: i64[sequences]; sampled: i64[samples]; is_weighed: bool[8]; bias: f32[8, vocabulary];
    counts: i32[8, 2, vocabulary]; SETTINGS...: [samples]) -> (tokens: i64[samples], logits: f32[samples,
    vocabulary], before sampling). State: the pools.

    sampled: the rows after which to draw a token. bias, counts: of each sample, as proposals that are checked together
    each depend on those before them. is_weighed: whether they have any effect. The rest is as
    in `Rows`.
    """
    sequences, pages = form.batch, page_count(form.context)

    def declare(name: str, dtype: DType, *shape: object) -> Node:
        return Input(name, TensorType(dtype, shape))()  # type: ignore[arg-type]

    ids, positions, owners, slots = (declare(name, i64, ROWS) for name in ("ids", "positions", "sequences", "slots"))
    tables = declare("tables", i64, sequences, pages)
    singles, chunks = declare("singles", i64), declare("chunks", i64)
    starts, lengths = declare("starts", i64, sequences), declare("lengths", i64, sequences)
    sampled = declare("sampled", i64, SAMPLES)
    bias = declare("bias", f32, FEW_ROWS, network.vocabulary)
    counts = declare("counts", i32, FEW_ROWS, 2, network.vocabulary)
    is_weighed = declare("is_weighed", boolean, FEW_ROWS)
    settings = tuple(declare(name, dtype, SAMPLES) for name, (dtype, _) in SETTINGS.items())
    caches = form.inputs()

    rows = Rows(positions, owners, slots, tables, singles, chunks, starts, lengths)
    x, after = network.hidden(ops.expand_dims(ids, 0), rows, form, caches)
    logits = network.logits(ops.Take(0)(ops.squeeze(x, 0), sampled))
    tokens = _sampled(
        logits,
        ops.add(ops.Take(0)(rows.positions, sampled), 1),
        is_weighed,
        bias,
        counts,
        settings,
        ops.scalar(SAMPLES, i64),
    )
    row_inputs = (ids, positions, owners, slots)
    inputs = (
        *row_inputs,
        tables,
        singles,
        chunks,
        starts,
        lengths,
        sampled,
        is_weighed,
        bias,
        counts,
        *settings,
        *caches,
    )
    return Graph(
        inputs,
        (*after, tokens, logits),
        (*(f"next {name}" for name in form.names), "tokens", "logits"),
        bounds=(("rows", 1, None), ("samples", 1, FEW_ROWS)),
        state=form.names,
    )


def paged_step(network: Network, form: CacheForm, samples: int) -> Graph:
    """(ids, positions, sequences, slots: i64[rows]; tables: i64[sequences, pages]; sampled: i64[samples]; count: i64[];
    is_weighed: bool[samples]; SETTINGS...: [samples]; reported: i64[reported]) -> (tokens: i64[samples], logits:
    f32[reported, vocabulary]). State: the pools; bias: f32[samples, vocabulary], counts: i32[samples, 2, vocabulary].

    count: the valid ones of `sampled`. reported: of which samples the logits are returned. The rest is as in `step`.
    """
    sequences, pages = form.batch, page_count(form.context)

    def declare(name: str, dtype: DType, *shape: object) -> Node:
        return Input(name, TensorType(dtype, shape))()  # type: ignore[arg-type]

    ids, positions, owners, slots = (declare(name, i64, ROWS) for name in ("ids", "positions", "sequences", "slots"))
    tables = declare("tables", i64, sequences, pages)
    sampled, count = declare("sampled", i64, samples), declare("count", i64)
    is_weighed = declare("is_weighed", boolean, samples)
    settings = tuple(declare(name, dtype, samples) for name, (dtype, _) in SETTINGS.items())
    reported = declare("reported", i64, REPORTED)
    bias = declare("bias", f32, samples, network.vocabulary)
    counts = declare("counts", i32, samples, 2, network.vocabulary)
    caches = form.inputs()

    rows = PagedRows(positions, slots, ops.Take(0)(tables, owners))
    x, after = network.hidden(ops.expand_dims(ids, 0), rows, form, caches)
    logits = network.logits(ops.Take(0)(ops.squeeze(x, 0), sampled))
    next_positions = ops.add(ops.Take(0)(positions, sampled), 1)
    operands = (logits, next_positions, is_weighed, bias, counts, *settings, count)
    is_plain = ops.and_(ops.Not()(is_weighed), ops.compare("LE", settings[[*SETTINGS].index("temperature")], 0.0))
    is_any_drawn = ops.cast(ops.Not()(ops.reduce("and", is_plain)), i64)
    tokens = ops.Case((_largest(operands), _drawn(operands)))(is_any_drawn, *operands)
    state = (*form.names, "bias", "counts")
    inputs = (ids, positions, owners, slots, tables, sampled, count, is_weighed, *settings, reported)
    return Graph(
        (*inputs, *caches, bias, counts),
        (*after, bias, counts, tokens, ops.Take(0)(logits, reported)),
        (*(f"next {name}" for name in state), "tokens", "logits"),
        bounds=(("rows", 1, None), ("reported", 1, samples)),
        state=state,
    )


def _largest(operands: Sequence[Node]) -> Graph:
    inputs = inputs_like(operands)
    return Graph(inputs, (ops.arg_reduce("max", inputs[0], 1),))


def _drawn(operands: Sequence[Node]) -> Graph:
    inputs = inputs_like(operands)
    logits, positions, is_weighed, bias, counts, *settings, count = inputs
    return Graph(inputs, (_sampled(logits, positions, is_weighed, bias, counts, settings, count),))


def _sampled(
    logits: Node,
    positions: Node,
    is_weighed: Node,
    bias: Node,
    counts: Node,
    settings: Sequence[Node],
    count: Node,
) -> Node:
    """The drawn tokens, i64[samples], of these positions, of which the first `count` are valid."""

    def body(
        i: Node, operand_nodes: Sequence[Node], values: Sequence[Node]
    ) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        logits, position, is_weighed, bias, counts, *settings = operand_nodes
        row_settings = tuple(_scalar(x, i) for x in settings)
        operands = (_row(logits, i), bias, counts, i, *row_settings)
        scores = ops.Case((_plain(operands), _weighed(operands)))(ops.cast(_scalar(is_weighed, i), i64), *operands)
        sampler = Sampler(row_settings, bias, counts)
        return (ops.DynamicUpdateSlice()(values[0], sampler.draw(scores, _scalar(position, i)), i),), ()

    shared = (logits, positions, is_weighed, bias, counts, *settings)
    (tokens,) = loop(count, shared, (ops.full(positions.shape, 0, i64),), body)
    return tokens


def _plain(operands: Sequence[Node]) -> Graph:
    inputs = inputs_like(operands)
    return Graph(inputs, (inputs[0],))


def _weighed(operands: Sequence[Node]) -> Graph:
    inputs = inputs_like(operands)
    logits, bias, counts, sample, *settings = inputs
    return Graph(inputs, (Sampler(tuple(settings), _row(bias, sample), _row(counts, sample)).weighed(logits),))


def _row(x: Node, at: Node) -> Node:
    """[rows, ...] -> [1, ...]."""
    rest = x.shape[1:]
    return ops.DynamicSlice((1, *rest))(x, at, *(ops.scalar(0, i64) for _ in rest))


def _scalar(x: Node, at: Node) -> Node:
    return ops.reshape(_row(x, at), ())
