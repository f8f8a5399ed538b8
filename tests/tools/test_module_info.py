"""A part of PyTorch's own samples of modules, in either mode and with gradients; `tools/module_info.py` runs all."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ingot.integrations.torch_compile import ingot_backend  # noqa: E402
from tests.frontends.torch.agree import run  # noqa: E402
from tools import module_info  # noqa: E402


def entries() -> list[Any]:
    """What the slow tests alone ask for: it takes seconds to import."""
    pytest.importorskip("expecttest")  # ModuleInfo's own dependency
    return module_info.entries()


class Broken(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        torch._dynamo.graph_break()
        return x * 2


def test_what_does_not_agree_is_seen() -> None:
    linear = torch.nn.Linear(2, 2)

    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *args: tuple(2 * r for r in graph(*args))

    def refuses(graph: Any, inputs: Any) -> Any:
        raise ValueError("not this one")

    assert module_info.compare(linear, (torch.ones(1, 2),), {}, wrong, False).result == "differs"
    assert module_info.compare(linear, (torch.ones(1, 2),), {}, refuses, False).result == "error"
    assert module_info.compare(Broken(), (torch.ones(1, 2),), {}, "eager", False).result == "broken"
    assert module_info.compare(linear, (torch.ones(1, 2),), {}, "eager", False, True).result == "agrees"


@pytest.mark.slow
@pytest.mark.parametrize("mode", module_info.MODES)
def test_modules(mode: str) -> None:
    backend = partial(ingot_backend, compile_model=lambda model: partial(run, model))
    for entry in entries()[::25]:
        assert module_info.check(entry, mode, 1, backend).result in ("agrees", "skipped"), entry.name


@pytest.mark.slow
def test_gradients_in_training() -> None:
    backend = partial(ingot_backend, compile_model=lambda model: partial(run, model))
    for entry in entries()[3::30]:
        assert module_info.check(entry, "train", 1, backend, grad=True).result in ("agrees", "skipped"), entry.name
