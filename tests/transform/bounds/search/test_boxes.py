"""How boxes are halved, and bounds of many boxes at once."""

from __future__ import annotations

import numpy as np
import torch

from ingot.driver.compile import Options, compiled_program
from ingot.driver.open import Request, open_model
from ingot.runtime.executor import CompiledModel
from ingot.transform.bounds.graph import Question
from ingot.transform.bounds.rounding import Rounding
from ingot.transform.bounds.search.attack import Goal
from ingot.transform.bounds.search.boxes import Splits, batched, box_graph, can_improve
from tests.transform.bounds.test_bounds import net_of

GOAL = Goal(np.ones((1, 1)), np.zeros(1), ((0,),))


def _splits(widths: np.ndarray, count: int) -> Splits:
    return Splits(GOAL, np.zeros(1), widths, count)


def test_boxes_are_cut_by_turns() -> None:
    """Without probes a box is not halved along one element forever, however large its influence."""
    lower, upper = np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)
    splits, axes = _splits(np.ones(2), 0), []
    for _ in range(8):
        halves = splits.halves(lower, upper, np.array([[4.0, 2.0]]) * (upper - lower))
        assert halves is not None
        axes.append(int((halves[1][0] != upper[0]).argmax()))
        lower, upper = (v[:1] for v in halves)
    assert set(axes) == {0, 1}
    tiny = np.full((1, 2), np.nextafter(np.float32(1), np.float32(2)))
    assert splits.halves(np.ones((1, 2), np.float32), tiny, np.ones((1, 2))) is None


def test_probes_tell_which_element_gains() -> None:
    """A bound that falls with the width of element 1 alone, while influence points to element 0; element 2 is fixed."""
    lower, upper = np.zeros((3, 3), np.float32), np.tile(np.array([1, 1, 0], np.float32), (3, 1))
    box_counts: list[int] = []

    def bound(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        box_counts.append(len(low))
        return -(high - low)[:, 1:2].astype(np.float64)

    influence, splits = np.tile([9.0, 1.0, 0.0], (3, 1)), _splits(upper[0] - lower[0], 12)
    halves = splits.halves(lower, upper, influence)
    assert halves is not None and (halves[1][:3, 0] == 0.5).all()  # before a probe
    assert splits.learn(lower, upper, bound(lower, upper), bound) == 12 and box_counts == [3, 12]  # 3 boxes, 2 elements
    halves = splits.halves(lower, upper, influence)
    assert halves is not None and (halves[1][:3, 1] == 0.5).all() and (halves[1][:3, 0] == 1).all()
    (low, high), middles = halves, [0.5] * 3
    np.testing.assert_array_equal(low[3:, 1], middles)  # the upper halves begin where the lower ones end
    np.testing.assert_array_equal(high[:3, 1], middles)
    assert splits.learn(lower, upper, bound(lower, upper), bound) == 0  # not with each batch
    nan = _splits(upper[0] - lower[0], 12)
    nan.learn(lower, upper, np.full((3, 1), -np.inf), lambda low, high: np.full((len(low), 1), np.nan))
    assert nan.halves(lower, upper, influence) is not None


def test_improved_bounds_hold() -> None:
    """Of boxes of several sizes: no sample is below a bound, and none is worse than without steps of slopes."""
    net, x = net_of("relu")
    graph = open_model(net, Request((x,))).graph
    rows = np.array([[1.0, -1.0, 0.0]])
    bounded = Question((True,), "crown", rows, Rounding()).of(graph)
    assert can_improve(bounded)
    rng = np.random.default_rng(4)
    radius = np.array([0.01, 0.1, 0.3, 1.0, 3.0], np.float32)[:, None, None] * np.ones((1, *x.shape), np.float32)
    center = x.numpy() + rng.normal(size=radius.shape).astype(np.float32) * 0.1
    plain, improved = (
        CompiledModel(compiled_program(batched(box_graph(bounded, flag), 5), Options(threads=1)), threads=1).run(
            [center - radius, center + radius]
        )
        for flag in (False, True)
    )
    points = center + radius * rng.uniform(-1, 1, (2000, *radius.shape)).astype(np.float32)
    with torch.no_grad():
        y = net.double()(torch.from_numpy(points).double()).numpy()[..., 0, :] @ rows[0]
    net.float()
    assert (improved[0][:, 0] <= y.min(0)).all()
    assert (improved[0] >= plain[0]).all() and (improved[0] > plain[0] + 1e-6).any()
    assert improved[1].shape == plain[1].shape == radius.shape
