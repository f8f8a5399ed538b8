"""The program of a step of many sequences: rows through the network, then a token behind each row that is asked for.

    x = network(ids of all rows);  logits = output(x of the sampled rows);  token = sample(logits), one by one

Matrices are read once for all rows. A row's bits do not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, TensorType, boolean, f32, i32, i64
from ingot.language.architecture import Architecture
from ingot.language.attention import Rows, loop
from ingot.language.cache import CacheForm
from ingot.language.engine.paging import Steps, page_count
from ingot.language.layers import Network
from ingot.language.sampler import SETTINGS, Sampler
from ingot.support.errors import InputError

ROWS, SAMPLES = symbol("rows"), symbol("samples")
_CACHE_BYTES = 1 << 30  # unless asked otherwise


def pool(steps: Steps, architecture: Architecture, context: int, dtype: DType) -> CacheForm:
    """Raises InputError for a pool that has not room for one sequence."""
    least = page_count(context)
    empty, one = (CacheForm.paged(architecture, steps.sequences, context, n, dtype).nbytes for n in (0, 1))
    page_bytes = max(one - empty, 1)
    if steps.cache_bytes is None:
        pages = max(least, _CACHE_BYTES // page_bytes)
    elif (pages := (steps.cache_bytes - empty) // page_bytes) < least:
        needed, fix = empty + least * page_bytes, "or a smaller context"
        expected = f"{needed} or more, for a sequence of {context} tokens"
        raise InputError("cache_bytes", expected=expected, got=steps.cache_bytes, fix=fix)
    return CacheForm.paged(architecture, steps.sequences, context, min(pages, steps.sequences * least), dtype)


def step(network: Network, form: CacheForm) -> Graph:
    """(what each row is: ids, positions, sequences, slots: i64[rows]; the pages of each sequence: i64[sequences,
    pages]; singles, chunks: i64[]; starts, lengths: i64[sequences]: see `Rows`; sampled: i64[samples], rows;
    is_weighed: bool[sequences], whether bias, f32[sequences, vocabulary], and counts, i32[sequences, 2, vocabulary],
    change anything; SETTINGS...: [samples]) -> (tokens: i64[samples],
    logits: f32[samples, vocabulary], before the sampler). State: the pools.
    """
    sequences, pages = form.batch, page_count(form.context)

    def given(name: str, dtype: DType, *shape: object) -> Node:
        return Input(name, TensorType(dtype, shape))()  # type: ignore[arg-type]

    ids, positions, owners, slots = (given(name, i64, ROWS) for name in ("ids", "positions", "sequences", "slots"))
    tables = given("tables", i64, sequences, pages)
    singles, chunks = given("singles", i64), given("chunks", i64)
    starts, lengths = given("starts", i64, sequences), given("lengths", i64, sequences)
    sampled = given("sampled", i64, SAMPLES)
    bias = given("bias", f32, sequences, network.vocabulary)
    counts = given("counts", i32, sequences, 2, network.vocabulary)
    is_weighed = given("is_weighed", boolean, sequences)
    settings = tuple(given(name, dtype, SAMPLES) for name, (dtype, _) in SETTINGS.items())
    caches = form.inputs()

    rows = Rows(positions, owners, slots, tables, singles, chunks, starts, lengths)
    x, after = network.hidden(ops.expand_dims(ids, 0), rows, form, caches)
    logits = network.logits(ops.Take(0)(ops.squeeze(x, 0), sampled))
    places = (ops.add(ops.Take(0)(rows.positions, sampled), 1), ops.Take(0)(rows.sequences, sampled))
    tokens = _sampled(logits, places, is_weighed, bias, counts, settings)
    own = (ids, positions, owners, slots)
    inputs = (*own, tables, singles, chunks, starts, lengths, sampled, is_weighed, bias, counts, *settings, *caches)
    return Graph(
        inputs,
        (*after, tokens, logits),
        (*(f"next {name}" for name in form.names), "tokens", "logits"),
        bounds=(("rows", 1, None), ("samples", 1, None)),
        state=form.names,
    )


def _sampled(
    logits: Node,
    places: tuple[Node, Node],
    is_weighed: Node,
    bias: Node,
    counts: Node,
    settings: Sequence[Node],
) -> Node:
    """i64[samples]. places: the position of each token, and the sequence of which it is."""

    def turn(i: Node, read: Sequence[Node], values: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        logits, position, sequence, is_weighed, bias, counts, *settings = read
        owner = _scalar(sequence, i)
        own = tuple(_scalar(x, i) for x in settings)
        operands = (_row(logits, i), bias, counts, owner, *own)
        scores = ops.Case((_plain(operands), _weighed(operands)))(ops.cast(_scalar(is_weighed, owner), i64), *operands)
        sampler = Sampler(own, bias, counts)
        return (ops.DynamicUpdateSlice()(values[0], sampler.drawn(scores, _scalar(position, i)), i),), ()

    read = (logits, *places, is_weighed, bias, counts, *settings)
    (tokens,) = loop(ops.scalar(SAMPLES, i64), read, (ops.full((SAMPLES,), 0, i64),), turn)
    return tokens


def _plain(operands: Sequence[Node]) -> Graph:
    inputs = tuple(Input(f"operand {i}", n.type)() for i, n in enumerate(operands))
    return Graph(inputs, (inputs[0],))


def _weighed(operands: Sequence[Node]) -> Graph:
    inputs = tuple(Input(f"operand {i}", n.type)() for i, n in enumerate(operands))
    logits, bias, counts, owner, *settings = inputs
    return Graph(inputs, (Sampler(tuple(settings), _row(bias, owner), _row(counts, owner)).weighed(logits),))


def _row(x: Node, at: Node) -> Node:
    """[1, ...] of [rows, ...]."""
    rest = x.shape[1:]
    return ops.DynamicSlice((1, *rest))(x, at, *(ops.scalar(0, i64) for _ in rest))


def _scalar(x: Node, at: Node) -> Node:
    return ops.reshape(_row(x, at), ())
