"""Graphs whose products have formats: what they compute beside the float graph, and beside the simulation of them."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Const, Graph, Input, const
from ingot.ir.types import TensorType, f32
from ingot.ir.verify import verify
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel
from ingot.transform.quantize.bench import Bench
from ingot.transform.quantize.calibrate import Probe
from ingot.transform.quantize.formats import FORMATS, LEVELS, Recipe, apply_formats, candidate_formats
from ingot.transform.quantize.rounding import roundings, windows
from ingot.transform.quantize.simulate import Simulator
from ingot.transform.quantize.sites import find_groups, prepare
from tests.transform.quantize import nets

# of the largest output
BOUNDS = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2, "weight8": 1e-2}
BOUNDS |= dict.fromkeys(LEVELS, 3e-2)


def calls(graph: Graph, count: int = 4, rows: int = 3) -> list[tuple[np.ndarray, ...]]:
    shape = tuple(rows if not isinstance(d, int) else d for d in graph.inputs[0].shape)
    return [(nets.normal(90 + i, *shape),) for i in range(count)]


def recipe_of(graph: Graph, samples: list[tuple[np.ndarray, ...]]) -> Recipe:
    groups = find_groups(graph)
    ranges, _ = Probe(graph, groups, 1).calibrate(samples)
    return Recipe(ranges, roundings(groups, ranges, FORMATS))


@pytest.fixture(scope="module", params=["mlp", "cnn", "recurrent"])
def case(request: pytest.FixtureRequest):
    graph = prepare(getattr(nets, request.param)())
    samples = calls(graph)
    return graph, samples, recipe_of(graph, samples)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMATS)
def test_each_format_is_near_float32_and_as_simulated(case, form: str):
    graph, samples, recipe = case
    groups = find_groups(graph)
    formats = {g.name: form for g in groups if form in candidate_formats(g, recipe.stats[g.name], FORMATS)}
    quantized = apply_formats(graph, groups, recipe, formats)
    verify(quantized, form)
    (want,) = interpret(graph, samples[0])
    (got,) = interpret(quantized, samples[0])
    assert np.abs(got - want).max() <= BOUNDS.get(form, 0.2) * np.abs(want).max()
    assert (set(formats.values()) <= {"float32"}) == (quantized is graph)
    ((simulated,),) = Simulator(graph, groups, 1, narrow=True).run(samples[:1], recipe, formats)
    # a value next to where two levels meet may be at either
    assert np.abs(simulated - got).mean() <= 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("form", ["int8", "int8-shared", "int8-dynamic", "weight4", "bfloat16"])
def test_compiled_as_the_interpreter_computes_it(case, form: str):
    graph, samples, recipe = case
    groups = find_groups(graph)
    formats = {g.name: form for g in groups if form in candidate_formats(g, recipe.stats[g.name], FORMATS)}
    quantized = apply_formats(graph, groups, recipe, formats)
    (want,) = interpret(quantized, samples[0])
    got = np.asarray(CompiledModel(build_native(quantized, 1), threads=1)(*samples[0]))
    # as the simulation is, where the order of a sum decides on a level
    assert np.abs(got - want).mean() <= 2e-3 * np.abs(want).max()


def test_layers_of_one_location_are_timed_apart():
    graph = prepare(nets.recurrent())
    groups = find_groups(graph)
    assert [g.name for g in groups] == ["layers", "layers#2", "matrix"]
    assert [g.is_recurrent for g in groups] == [True, True, False]
    samples = calls(graph)
    bench = Bench(graph, groups, recipe_of(graph, samples), samples[0], 1)
    assert all(seconds > 0 for seconds in bench.group_seconds(bench.exact).values())


def test_weights_of_several_steps_are_stored_once():
    """Of an unrolled recurrence: no smoothing and no error feedback, which would make each its own."""
    x, w = Input("x", TensorType(f32, (3, 40)))(), const(nets.normal(1, 40, 40) * nets.normal(2, 40, 1) ** 3)
    h = ops.Relu()(ops.MatMul()(x, w, loc="first"))
    graph = prepare(Graph((x,), (ops.MatMul()(h, w, loc="second"),), ("y",)))
    groups, samples = find_groups(graph), calls(graph)
    ranges, moments = Probe(graph, groups, 1).calibrate(samples, feedback_seconds=60)
    recipe = Recipe(ranges, roundings(groups, ranges, FORMATS), moments)
    assert all(g.tied for g in groups) and not moments
    for form in ("int8", "int8-dynamic", "weight4"):
        quantized = apply_formats(graph, groups, recipe, dict.fromkeys(("first", "second"), form))
        assert sum(n.op.value.size >= 1600 for n in quantized.nodes() if isinstance(n.op, Const)) == 1


def test_what_else_reads_a_value_shares_its_levels():
    graph = prepare(nets.cnn())
    groups = find_groups(graph)
    assert [g.name for g in groups if g.is_shared] == ["matrix"]
    recipe = recipe_of(graph, calls(graph))
    quantized = apply_formats(graph, groups, recipe, {"matrix": "int8-shared"})
    (value,) = {n for n in quantized.nodes() if isinstance(n.op, ops.Dequantize) and n.inputs[0].op.name == "quantize"}
    assert {n.op.name for n in quantized.uses()[value]} == {"matmul", "slice"}


@pytest.mark.parametrize("padding", [((1, 2), (0, 1)), ((-1, 0), (2, -1))])
def test_windows_are_what_a_convolution_sums(padding: tuple[tuple[int, int], ...]):
    op = ops.Conv((2, 1), padding, (1, 2), 2)
    x, w = nets.normal(1, 2, 4, 9, 8), nets.normal(2, 6, 2, 3, 2)
    patches = windows(op, x, w.shape[2:]).reshape(-1, 2, 12)
    got = np.einsum("pgk,gok->pgo", patches, w.reshape(2, 3, 12)).reshape(2, -1, 6)
    want = op.reference(x, w)
    np.testing.assert_allclose(got.transpose(0, 2, 1).reshape(want.shape), want, atol=1e-4)


def test_products_of_one_value_share_its_levels():
    graph = prepare(nets.mlp())
    groups = find_groups(graph)
    assert [[s.name for s in g.sites] for g in groups] == [["first", "second"], ["last"]]
    samples = calls(graph)
    quantized = apply_formats(graph, groups, recipe_of(graph, samples), {"first": "int8"})
    assert sum(isinstance(n.op, ops.Quantize) for n in quantized.nodes()) == 1


def test_smoothing_rescues_a_channel_beside_a_large_one():
    graph = prepare(nets.mlp())
    groups = find_groups(graph)
    samples = calls(graph)
    for (x,) in samples:
        x[:, 3] *= 300
    recipe = recipe_of(graph, samples)
    rounding = recipe.rounding(groups[0], "int8")
    assert rounding.smoothing > 0 and rounding.factors is not None
    assert rounding.factors[3] < rounding.factors.min(initial=np.inf, where=np.arange(33) != 3)
    plain = Recipe(recipe.stats, roundings(groups, recipe.stats, ("int8",), methods=("minmax",)))
    (want,) = interpret(graph, samples[1])
    (got,) = interpret(apply_formats(graph, groups, plain, {"first": "int8"}), samples[1])
    assert np.abs(got - want).max() <= 2e-2 * np.abs(want).max()


def test_bias_correction_gives_back_the_mean():
    graph = prepare(nets.mlp())
    groups = find_groups(graph)
    samples = [(x + 2,) for (x,) in calls(graph, rows=200)]
    recipe = recipe_of(graph, samples)
    loose = Recipe(recipe.stats, recipe.roundings, corrected=False)
    errors = []
    for r in (recipe, loose):
        (want,), (got,) = (
            interpret(graph, samples[0]),
            interpret(apply_formats(graph, groups, r, {"last": "weight4"}), samples[0]),
        )
        errors.append(np.abs((got - want).mean(0)).max())
    assert errors[0] < 0.6 * errors[1]


def test_values_without_a_range_have_no_static_format():
    graph = prepare(nets.mlp())
    (first, _) = find_groups(graph)
    (x,) = calls(graph, 1)[0]
    x[0, 0] = np.inf
    ranges, _ = Probe(graph, (first,), 1).calibrate([(x,)])
    assert "int8" not in candidate_formats(first, ranges["first"], FORMATS)
    assert "int8-dynamic" in candidate_formats(first, ranges["first"], FORMATS)
    assert roundings((first,), ranges, FORMATS) == {}


def test_weights_that_float16_cannot_hold_have_no_such_format():
    w = np.ones((4, 3), np.float32)
    w[1, 2] = 1e5
    graph = prepare(Graph((x := Input("x", TensorType(f32, (3, 4)))(),), (ops.MatMul()(x, const(w)),)))
    (group,) = find_groups(graph)
    recipe = recipe_of(graph, calls(graph))
    offered = candidate_formats(group, recipe.stats[group.name], FORMATS)
    assert "float16" not in offered and "bfloat16" in offered
