"""TorchScript: state that several modules share, and what of it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.frontends.torch import export_module
from ingot.frontends.torch.script import Evaluator, extract
from ingot.frontends.torch.script.graph import read, write
from ingot.support.errors import UnsupportedOpError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@torch.jit.script
class Window:
    def __init__(self, scale: float):
        self.scale = scale


def _scripted(net: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.script(net.eval())


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total * 0.5 + x
        return x * self.total


class Within(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) * 2


class Adds(nn.Module):
    def __init__(self, total: Tensor) -> None:
        super().__init__()
        self.register_buffer("total", total)

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)  # type: ignore[operator]
        return x * self.total  # type: ignore[operator]


def _one_module() -> nn.Module:
    part = _scripted(Counter())
    return nn.Sequential(Within(part), Within(part))


def _copies_of_one_module() -> nn.Module:
    """torch.jit copies what is not scripted; the copies' tensors are one at first."""
    part = Counter()
    return nn.Sequential(Within(part), Within(part))


def _one_memory() -> nn.Module:
    total = torch.zeros(5)
    return nn.Sequential(Adds(total[:3]), Adds(total[1:4]))


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("make", [_one_module, _copies_of_one_module, _one_memory])
def test_a_state_that_modules_share(make: Callable[[], nn.Module], saved: bool, tmp_path: Path):
    program, module = extract(_scripted(make())), _scripted(make())
    if saved:
        write(program, tmp_path)
        program = read(tmp_path)
    plain, x = Evaluator(program, program.attributes), torch.randn(3)
    if program.written_paths:
        assert plain.is_steady((x,))
        plain = Evaluator(program, program.attributes, buffers=True)
    compiled = export_module(plain, (x,)).module()
    for scale in (1.0, -3.0, 0.5):
        torch.testing.assert_close(compiled(x * scale), module(x * scale))


class Appends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = [torch.zeros(3)]
        self.last = [torch.zeros(3)]

    def forward(self, x: Tensor, appends: bool) -> Tensor:
        if appends:
            self.rows.append(x)
        else:
            self.last = [x]
        return torch.stack(self.rows).sum(0)


@pytest.mark.parametrize("appends", [False, True])
def test_lists_that_forward_changes_are_refused(appends: bool):
    with pytest.raises(UnsupportedOpError, match=r"(rows|last), a list or a dict that forward changes"):
        ingot.compile(_scripted(Appends()), (torch.ones(3), appends))


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        total = torch.zeros(3)
        self.register_buffer("total", total)
        self.register_buffer("seen", total)

    def forward(self, x: Tensor) -> Tensor:
        self.total += x
        return x * self.seen  # type: ignore[operator]


def test_memory_that_is_shared_and_set_is_refused():
    with pytest.raises(UnsupportedOpError, match="total, seen share memory that is changed in place"):
        ingot.compile(_scripted(Doubles()), (torch.ones(3),))


class Picks(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = Window(0.5), Window(1.0)

    def forward(self, x: Tensor, first: bool) -> Tensor:
        return x * (self.one if first else self.other).scale


def test_a_choice_of_objects_is_refused():
    with pytest.raises(UnsupportedOpError, match=r"Return.*of one, an object that a module holds"):
        extract(_scripted(Picks()))
