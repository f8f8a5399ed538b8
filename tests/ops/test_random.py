"""Random bits are those of Threefry, and samples follow their distributions.

Keys are fixed, so that results are reproducible; bounds are those of statistical tests at a level of 1 in 1000.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, bf16, f16, f32, f64, i64
from ingot.ir.verify import verify
from ingot.ops import random, sampling
from ingot.ops.nn.terms import Term
from tests.conformance.checked import planned

N = 20_000
KEY = np.asarray([0x243F6A88, 0x85A308D3], np.uint32)


def run_sampler(sample: Callable[[Node], Node]) -> np.ndarray:
    return interpret(Graph((), (sample(const(KEY)),)), ())[0]


def distance(x: np.ndarray, cdf: Callable[[np.ndarray], np.ndarray]) -> float:
    """The Kolmogorov-Smirnov distance times sqrt(n): above 1.95 once in 1000 times."""
    x = np.sort(x.astype(np.float64).reshape(-1))
    f, n = cdf(x), x.size
    steps = np.arange(n + 1) / n
    return max(np.max(steps[1:] - f), np.max(f - steps[:-1])) * math.sqrt(n)


def chi_square(x: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's statistic as a standard normal number (Wilson-Hilferty): above 3.1 once in 1000 times."""
    expected = probabilities * x.size
    counts = np.bincount(x.reshape(-1), minlength=probabilities.size)
    assert counts.size == probabilities.size and not counts[probabilities == 0].any()
    is_possible = probabilities > 0
    k = int(is_possible.sum()) - 1
    statistic = float(((counts - expected)[is_possible] ** 2 / expected[is_possible]).sum())
    return ((statistic / k) ** (1 / 3) - 1 + 2 / (9 * k)) / math.sqrt(2 / (9 * k))


# from kat_vectors of Random123: Threefry 2x32 with 20 rounds
@pytest.mark.parametrize(
    ("count", "key", "block"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_known_answers(count: tuple[int, int], key: tuple[int, int], block: tuple[int, int]) -> None:
    arrays = [np.asarray([v], np.uint32) for v in (*key, *count)]
    assert tuple(int(v) for v in np.concatenate(ops.threefry((arrays[0], arrays[1]), (arrays[2], arrays[3])))) == block
    terms = [Term(const(a)) for a in arrays]
    words = ops.threefry((terms[0], terms[1]), (terms[2], terms[3]))
    got = interpret(Graph((), tuple(v.node for v in words)), ())
    assert tuple(int(v[0]) for v in got) == block


_normal = np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))
_CDF: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "uniform": lambda x: np.clip(x, 0, 1),
    "uniform_open": lambda x: np.clip(x, 0, 1),
    "normal": _normal,
    "exponential": lambda x: 1 - np.exp(-x),
    "cauchy": lambda x: 0.5 + np.arctan(x) / math.pi,
}


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", list(_CDF))
def test_distribution(name: str, dtype: DType) -> None:
    x = run_sampler(lambda key: getattr(sampling, name)(key, (N,), dtype))
    assert distance(x, _CDF[name]) < 1.95
    halves = x[: N // 2], x[N // 2 :]
    inside = [np.clip(h, -3, 3) for h in halves]
    assert abs(np.corrcoef(inside)[0, 1]) < 3.3 / math.sqrt(N / 2)
    assert abs(np.corrcoef(np.clip(x, -3, 3)[:-1], np.clip(x, -3, 3)[1:])[0, 1]) < 3.3 / math.sqrt(N)


@pytest.mark.parametrize(("dtype", "digits"), [(f16, 11), (bf16, 8), (f32, 24), (f64, 53)], ids=str)
def test_uniform_range_and_precision(dtype: DType, digits: int) -> None:
    x = run_sampler(lambda key: sampling.uniform(key, (N,), dtype)).astype(np.float64)
    assert x.min() >= 0 and x.max() < 1
    multiples = x * 2.0**digits
    assert (multiples == np.floor(multiples)).all() and (multiples % 2).any()


def test_narrow_normal_is_rounded() -> None:
    wide = run_sampler(lambda key: sampling.normal(key, (999,), f32))
    np.testing.assert_array_equal(run_sampler(lambda key: sampling.normal(key, (999,), f16)), wide.astype(np.float16))


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-3, 7), (5, 6), (0, 100)])
def test_integers(low: int, high: int) -> None:
    x = run_sampler(lambda key: sampling.integers(key, (N,), low, high))
    assert x.dtype == np.int64 and x.min() >= low and x.max() < high
    if high - low > 1:
        assert chi_square(x - low, np.full(high - low, 1 / (high - low))) < 3.1


@pytest.mark.parametrize(("low", "high"), [(0, 1 << 40), (-(1 << 63), 1 << 63), (0, 1 << 63), (-5, (1 << 33) + 1)])
def test_integers_of_wide_spans(low: int, high: int) -> None:
    x = run_sampler(lambda key: sampling.integers(key, (N,), low, high)).astype(np.float64)
    assert distance((x - low) / (high - low), _CDF["uniform"]) < 1.95


@pytest.mark.parametrize("p", [0.0, 0.25, 0.999, 1.0])
def test_bernoulli(p: float) -> None:
    x = run_sampler(lambda key: sampling.bernoulli(key, (N,), p))
    assert x.dtype == bool and abs(x.mean() - p) <= 3.3 * math.sqrt(p * (1 - p) / N)


def test_geometric() -> None:
    p = 0.3
    x = run_sampler(lambda key: sampling.geometric(key, (N,), ops.full((N,), p))).astype(np.int64)
    probabilities = np.concatenate([[0], p * (1 - p) ** np.arange(14)])
    assert chi_square(np.minimum(x, 15), np.append(probabilities, 1 - probabilities.sum())) < 3.1
    assert (run_sampler(lambda key: sampling.geometric(key, (9,), ops.full((9,), 1.0))) == 1).all()


def test_permutations_are_equally_likely() -> None:
    x = run_sampler(lambda key: sampling.permutation(key, 1000))
    np.testing.assert_array_equal(np.sort(x), np.arange(1000))
    permutations = [run_sampler(lambda key, i=i: sampling.permutation(ops.fold_in(key, i), 3)) for i in range(240)]
    codes = np.asarray([int(p @ [1, 3, 9]) for p in permutations])
    _, classes = np.unique(codes, return_inverse=True)
    assert chi_square(classes, np.full(6, 1 / 6)) < 3.1


WEIGHTS = np.asarray([0.5, 0.0, 2.0, 1.0, 0.0, 0.5], np.float32)


def test_categorical_proportions() -> None:
    x = run_sampler(lambda key: sampling.categorical(key, const(np.tile(WEIGHTS, (2, 1))), N))
    assert x.shape == (2, N)
    for row in x:
        assert chi_square(row, WEIGHTS / WEIGHTS.sum()) < 3.1
    assert (x[0] != x[1]).any()


def test_without_replacement() -> None:
    x = run_sampler(lambda key: sampling.without_replacement(key, const(np.tile(WEIGHTS, (N // 4, 1))), 4))
    assert all(len(set(row.tolist())) == 4 for row in x[:100])
    assert chi_square(x[:, 0], WEIGHTS / WEIGHTS.sum()) < 3.1
    assert set(x.reshape(-1).tolist()) == {0, 2, 3, 5}


def test_dropout_scales_kept_elements() -> None:
    x = const(np.arange(1, N + 1, dtype=np.float32))
    y = run_sampler(lambda key: sampling.dropout(key, x, 0.25)[0])
    is_kept = y != 0
    assert abs(is_kept.mean() - 0.75) < 3.3 * math.sqrt(0.75 * 0.25 / N)
    np.testing.assert_allclose(y[is_kept], np.arange(1, N + 1)[is_kept] / 0.75, rtol=1e-6)
    assert not run_sampler(lambda key: sampling.dropout(key, x, 1.0)[0]).any()
    rate = const(np.asarray(0.25, np.float32))
    np.testing.assert_array_equal(run_sampler(lambda key: sampling.dropout(key, x, rate)[0]), y)


def test_symbolic_shape_matches_static() -> None:
    from ingot.ir.dims import symbol

    n = symbol("n")
    x = Input("x", TensorType(f32, (n, 3)))()
    graph = Graph((x,), ops.RandomBits((n, 3))(const(KEY)).results)
    lowered = Graph((x,), tuple(ops.RandomBits((n, 3)).lower(const(KEY))))
    static = ops.RandomBits((7, 3)).reference(KEY)
    for g in (graph, lowered):
        for got, want in zip(interpret(g, (np.zeros((7, 3), np.float32),)), static, strict=True):
            np.testing.assert_array_equal(got, want)


# --- the random state of a graph


def keys_of(seed: int, calls: int, graph: Graph) -> tuple[np.ndarray, ...]:
    return interpret(graph, (np.asarray([seed, calls]),))


def test_random_state_of_a_graph() -> None:
    keys = ops.RandomKey(0)(), ops.RandomKey(1)(), ops.RandomKey(0, seed=9)()
    graph = ops.with_random_state(Graph((), keys, ("a", "b", "c")), "random numbers")
    verify(graph)
    next_state, *first_keys = keys_of(0, 0, graph)
    assert next_state.tolist() == [0, 1] and not ops.draws_random(graph)
    for got, key in zip(first_keys, keys, strict=True):
        np.testing.assert_array_equal(got, key.op.reference())  # the keys of a first call
    states = [(seed, calls) for seed in (0, 1, -1, 1 << 40) for calls in (0, 1)]
    all_keys = [tuple(key.tolist()) for state in states for key in keys_of(*state, graph)[1:3]]
    assert len(set(all_keys)) == len(all_keys)
    # a key with its own seed depends only on the number of calls
    assert keys_of(0, 4, graph)[3].tolist() == keys_of(5, 4, graph)[3].tolist() != keys_of(0, 5, graph)[3].tolist()


def test_graph_without_draws_is_unchanged() -> None:
    x = Input("x", TensorType(f32, (3,)))()
    graph = Graph((x,), (ops.add(x, 1.0),))
    assert ops.with_random_state(graph, "random numbers") is graph


def test_loop_iterations_draw_different_numbers() -> None:
    step, rows = Input("turn", TensorType(i64))(), Input("rows", TensorType(f32, (5, 4)))()
    fresh = ops.expand_dims(sampling.uniform(ops.RandomKey(0)(), (4,)), 0)
    updated = ops.DynamicUpdateSlice()(rows, fresh, step, const(0))
    cond = Graph((step, rows), (ops.compare("LT", step, 5),))
    body = Graph((step, rows), (ops.add(step, 1), updated))
    last = ops.While(cond, body)(const(0), const(np.zeros((5, 4), np.float32))).results[1]
    graph = ops.with_random_state(Graph((), (last,)), "random numbers")
    verify(graph)
    x = interpret(graph, (np.asarray([0, 0]),))[1]
    assert len(np.unique(x)) == x.size


def test_branches_draw_different_numbers() -> None:
    index = Input("which", TensorType(i64))()
    branches = tuple(Graph((), (sampling.uniform(ops.RandomKey(i)(), (4,)),)) for i in (0, 1))
    graph = ops.with_random_state(Graph((index,), (ops.Case(branches)(index),)), "random numbers")
    verify(graph)
    a, b = (interpret(graph, (np.asarray(i), np.asarray([0, 0])))[1] for i in (0, 1))
    assert (a != b).all()


def test_philox_pairs_are_those_of_the_paper() -> None:
    """The known answers that the authors publish (kat_vectors), for 7 rounds."""
    answers = {0x00000000: (0x257A3673, 0xCD26BE2A), 0xFFFFFFFF: (0xAB302C4D, 0x3DC9D239)}
    for word, want in answers.items():
        x = np.asarray([word], np.uint32)
        assert tuple(int(v[0]) for v in random.philox_pair(x, (x, x))) == want


@pytest.mark.parametrize("rate", [1e-4, 0.1, 0.5, 0.9])
def test_dropout_of_scores_keeps_the_share_and_is_uncorrelated(rate: float) -> None:
    head, row, column = (np.arange(n, dtype=np.uint32).reshape(-1, *(1,) * i) for n, i in ((6, 2), (300, 1), (500, 0)))
    keys = random.score_keys(np.asarray([1 << 33 | 5]), head)
    kept = random.kept_scores(keys, random.without_bit_3(row), random.without_bit_3(column), rate)
    assert kept.shape == (6, 300, 500)
    deviation = np.sqrt(rate * (1 - rate))
    centred = (kept - (1 - rate)) / deviation
    for axes in ((0, 1, 2), (1, 2), (0, 2), (0, 1)):  # of all, of heads, rows and columns
        sums = centred.mean(axes) * np.sqrt(np.prod([kept.shape[a] for a in axes]))
        assert np.abs(sums).max() < 5.5
    for h, r, c in (
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        (0, 8, 0),
        (0, 0, 8),
        (0, 8, 8),
        (0, 16, 0),
        (0, 0, 16),
        (1, 8, 8),
    ):
        product = centred[h:, r:, c:] * centred[: 6 - h, : 300 - r, : 500 - c]
        assert abs(product.mean()) * np.sqrt(product.size) < 5


def test_dropout_of_scores_never_or_always() -> None:
    word = np.arange(64, dtype=np.uint32)
    for rate, share in ((1.0, 0.0), (0.0, 1.0)):
        kept = random.kept_scores((word[:1], word[:1]), random.without_bit_3(word), random.without_bit_3(word), rate)
        assert kept.mean() == share


@pytest.mark.parametrize("target", ["native", "cuda:sm_90a"])
@pytest.mark.parametrize("draws", [1, 2, 5])
def test_a_mask_is_drawn_in_one_kernel(draws: int, target: str) -> None:
    """No words of all elements are stored between Threefry's rounds, and no round of the keys is a kernel."""
    keys = [random.RandomKey(i)() for i in range(draws)]
    masks = [sampling.bernoulli(key, (512, 96 + i), 0.9) for i, key in enumerate(keys)]
    program, _ = planned(Graph((), tuple(masks)), target)
    assert len(program.steps) <= draws + 4
