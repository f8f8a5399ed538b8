"""Arguments that are like those of the last calls are taken at once, all others as if there had been none before."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot.support.errors import InputError

torch = pytest.importorskip("torch")


def test_calls_like_those_before_and_others_in_between() -> None:
    net = torch.nn.Linear(4, 3).eval()
    model = ingot.compile(net, (torch.randn(2, 4),), dynamic={"input": {0: "n"}}, threads=1)
    alike = [torch.randn(2, 4) for _ in range(4)]
    wide, line = torch.randn(2, 8), torch.randn(3, 4)
    minus = torch._neg_view(alike[0])
    with torch.no_grad():
        for x in (*alike, alike[0].t().contiguous().t(), wide[:, ::2], line, minus, *alike, alike[0].requires_grad_()):
            torch.testing.assert_close(model(x), net(x))
        with torch.inference_mode():
            for x in (torch.randn(2, 4), *alike, torch.randn(2, 4)):
                torch.testing.assert_close(model(x), net(x))
        np.testing.assert_allclose(np.asarray(model(alike[1].numpy())), net(alike[1]).numpy(), rtol=1e-5)
        for bad in (alike[0].double(), alike[0].to("meta"), alike[0].to_sparse(), torch.randn(2, 5), 3, None):
            for _ in range(2):
                with pytest.raises((InputError, TypeError)):
                    model(bad)
        with pytest.raises((InputError, TypeError)):
            model(alike[0], alike[1])
        torch.testing.assert_close(model(alike[2]), net(alike[2]))
