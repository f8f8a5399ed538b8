"""TorchScript: scripted and traced modules with branches, loops, lists and attributes that they set."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.driver.recognize import kind_of
from ingot.driver.script_states import script_model
from ingot.frontends.torch import export_module, import_exported
from ingot.frontends.torch.script import Evaluator, extract, load
from ingot.frontends.torch.script.graph import read, write
from ingot.support.errors import ImportModelError, InputError, UnsupportedOpError
from tests.frontends.torch.agree import close, run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm1d(3)
        self.wide: bool = True

    def forward(self, x: Tensor, mode: str = "relu") -> Tensor:
        if x.dim() == 2:
            x = x.unsqueeze(0)
        y = self.norm(self.conv(x))
        if mode == "relu" and self.wide:
            y = torch.relu(y)
        elif mode in ["tanh", "none"]:
            y = torch.tanh(y) if mode == "tanh" else y
        else:
            raise ValueError(f"no such mode: {mode}")
        return y.mean(dim=[0, 2])


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        chunks: list[Tensor] = []
        sizes: dict[str, int] = {"rows": x.size(0)}
        for i, layer in enumerate(self.layers):
            x = torch.sigmoid(layer(x)) * float(i + 1)
            chunks.append(x[:, : 4 - i])
        chunks.pop(0)
        return torch.cat(chunks, 1) / sizes["rows"], chunks


class Loops(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        total = torch.zeros_like(x[0])
        i = 0
        while i < n * 2:
            if i % 3 == 2:
                i += 1
                continue
            total = total * 0.5 + x[i % x.size(0)]
            i += 1
        for j in range(x.size(0)):
            total[j % 4] += float(j)
        return total


class OnValues(nn.Module):
    """Branches on what is in a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.isnan().any()):
            raise ValueError("NaN")
        if x.sum() > 0 and x.max() < 100:
            y = x * 2
        else:
            y = -x
        return y


class Until(nn.Module):
    """Loops, one in another, until values say so; numbers that are counted there are places and factors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        i, total = 0, torch.zeros_like(x[0])
        pair: list[Tensor] = [x, x * 2]
        while bool(total.sum() < 3.0) and i < 20:
            total = total + x[i % x.size(0)].abs()
            while bool(pair[1].max() > i + 0.5):
                pair = [torch.tanh(self.layer(pair[0])), pair[1] * 0.7]
            i += 1
        for step in range(50):
            new = 0.5 * (total + x.abs().sum() / total)
            if bool((new - total).abs().max() < 1e-5):
                break
            total = new + step * 1e-3
        return total * i, pair[0] - pair[1]


class Rnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        h, c = torch.zeros(x.size(1), 5), torch.zeros(x.size(1), 5)
        results: list[Tensor] = []
        for t in range(x.size(0)):
            h, c = self.cell(x[t], (h, c))
            results.append(h)
        return torch.stack(results)


@torch.jit.script
class Window:
    """The last rows, and the sum of all."""

    def __init__(self, size: int, scale: float):
        self.size = size
        self.scale = scale
        self.rows: list[Tensor] = []
        self.total = torch.zeros(1)

    def push(self, x: Tensor):
        self.rows.append(x * self.scale)
        self.total = self.total + x.sum()
        if len(self.rows) > self.size:
            self.rows.pop(0)

    def mean(self) -> Tensor:
        return torch.stack(self.rows).mean(0) + self.total


class Objects(nn.Module):
    """Two objects of a class of the program's own, made in forward."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        narrow_window, wide_window = Window(2, 0.5), Window(99, 2.0)
        for i in range(x.size(0)):
            narrow_window.push(x[i])
            wide_window.push(x[i] * 2)
        return narrow_window.mean(), wide_window.mean()


class Holds(nn.Module):
    """An object that the module holds, whose attributes are read, in a task too, and set."""

    def __init__(self):
        super().__init__()
        self.window = Window(2, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        task = torch.jit.fork(self.scaled, x)
        self.window.total = self.window.total + x.sum()
        return torch.jit.wait(task) + self.window.total

    @torch.jit.export
    def scaled(self, x: Tensor) -> Tensor:
        return x * self.window.scale + self.window.size


class HoldsSome(nn.Module):
    def __init__(self):
        super().__init__()
        self.window = Window(2, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        for window in [self.window, Window(1, 1.0)]:
            x = x * window.scale
        return x


class Types(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.arange(x.size(1), dtype=torch.int64, device=x.device).to(x.dtype)
        z = torch.full([2, x.size(1)], 3, dtype=torch.float64) + torch.tensor([1.0, 2.0])[:, None]
        scale = (x.size(1) // 2) ** 2 / max(x.size(0), 3)
        return (x * y + z.sum(0)) * scale


class ScaledSizes(nn.Module):
    """A trace has sizes as tensors."""

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (n if isinstance(n, Tensor) else torch.tensor(n) for n in x.shape)
        less = torch.add(rows, 3, alpha=2) - torch.sub(columns, 1, alpha=2)
        return x * (torch.div(less, 4, rounding_mode="trunc") + 10 * torch.div(less, 4, rounding_mode="floor") + 7)


class AlphaOfSizes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (n if isinstance(n, Tensor) else torch.tensor(n) for n in x.shape)
        return x * torch.add(rows, 3, alpha=2) + torch.sub(columns, 1, alpha=2)


def _traced(net: nn.Module, *args: Tensor) -> torch.jit.ScriptModule:
    module = torch.jit.trace(net.eval(), args)
    assert isinstance(module, torch.jit.ScriptModule)
    return module


def _scripted(net: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.script(net.eval())


NET, IMAGE = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3)), torch.randn(1, 1, 6, 6)
X, ROWS = torch.randn(2, 7), torch.randn(5, 4)
CASES = {
    "branches": (lambda: _scripted(Branches()), (X,)),
    "branches of three": (lambda: _scripted(Branches()), (torch.randn(3, 2, 6), "tanh")),
    "lists": (lambda: _scripted(Lists()), (ROWS,)),
    "loops": (lambda: _scripted(Loops()), (ROWS, 3)),
    "values": (lambda: _scripted(OnValues()), (torch.rand(3, 3),)),
    "values, otherwise": (lambda: _scripted(OnValues()), (-torch.rand(3, 3),)),
    "until": (lambda: _scripted(Until()), (ROWS,)),
    "cells": (lambda: _scripted(Rnn()), (torch.randn(4, 2, 3),)),
    "objects": (lambda: _scripted(Objects()), (ROWS,)),
    "types": (lambda: _scripted(Types()), (torch.randn(2, 6),)),
    "traced net": (lambda: _traced(NET, IMAGE), (IMAGE,)),
    "traced sizes": (lambda: _traced(Types(), torch.randn(2, 6)), (torch.randn(2, 6),)),
    "traced sizes, scaled": (lambda: _traced(ScaledSizes(), torch.randn(2, 12)), (torch.randn(2, 12),)),
    "traced sizes, alpha": (lambda: _traced(AlphaOfSizes(), torch.randn(2, 12)), (torch.randn(2, 12),)),
    "traced lstm": (lambda: _traced(nn.LSTM(3, 4), torch.randn(5, 1, 3)), (torch.randn(5, 1, 3),)),
    "transformer": (
        lambda: _scripted(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)), (torch.randn(2, 5, 8),)
    ),
}  # fmt: skip


def _agree(module: nn.Module, expected: nn.Module, args: tuple[object, ...]) -> None:
    imported = import_exported(export_module(module, args))
    with torch.no_grad():
        close(run(imported, *args), expected(*args))


@pytest.mark.parametrize("name", CASES)
def test_modules(name: str):
    make, args = CASES[name]
    module = make()
    program = extract(module)
    _agree(Evaluator(program, program.attributes), module, args)


def test_an_archive_with_a_class_of_its_own(tmp_path: Path):
    module = _scripted(Objects())
    torch.jit.save(module, tmp_path / "model.pt")
    got, expected = ingot.compile(tmp_path / "model.pt", (ROWS,), cache=False, threads=1)(ROWS), module(ROWS)
    close(got, expected)


@pytest.mark.parametrize("saved", [False, True])
def test_an_object_that_the_module_holds(saved: bool, tmp_path: Path):
    """The process that reads the archive has no class of its kind."""
    module = _scripted(Holds())
    torch.jit.save(module, tmp_path / "model.pt")
    compiled = ingot.compile(tmp_path / "model.pt" if saved else module, (ROWS,), cache=False, threads=1)
    for _ in range(3):
        close(compiled(ROWS), module(ROWS))


def test_what_holds_an_object_that_a_module_holds_is_refused():
    with pytest.raises(UnsupportedOpError, match=r"ListConstruct.*of window, an object that a module holds"):
        extract(_scripted(HoldsSome()))


def test_other_layouts_are_refused():
    faster = torch.jit.optimize_for_inference(_scripted(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())))
    with pytest.raises(UnsupportedOpError, match=r"made by torch\.jit\.optimize_for_inference"):
        extract(faster)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    with pytest.raises(UnsupportedOpError, match="enable_nested_tensor=False"):
        ingot.compile(_scripted(encoder), (torch.randn(2, 5, 8), None, torch.zeros(2, 5, dtype=torch.bool)))


def test_sizes_stay_dynamic():
    module = _scripted(Branches())
    program = extract(module)
    evaluator = Evaluator(program, program.attributes)
    imported = import_exported(export_module(evaluator, (torch.randn(3, 2, 6),), {"x": {0: "batch", 2: "n"}}))
    assert [str(n.type) for n in imported.graph.inputs] == ["f32[batch,2,n]"]


def test_errors_of_the_model_are_told():
    program = extract(_scripted(Branches()))
    with pytest.raises((InputError, ImportModelError), match="no such mode: sine"):
        export_module(Evaluator(program, program.attributes), (X, "sine"))


class Grows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while bool(x.sum() < 10):
            x = torch.cat([x, x])
        return x


def test_loops_on_values_that_change_types_are_refused():
    program = extract(_scripted(Grows()))
    with pytest.raises((UnsupportedOpError, ImportModelError), match="values change their form"):
        export_module(Evaluator(program, program.attributes), (X,))


class InPlace(nn.Module):
    def forward(self, x: Tensor, lists: bool) -> Tensor:
        y, parts = x * 2, [x]
        if bool(x.sum() > 0):
            if lists:
                parts.append(y)
            else:
                y.add_(1)
        return torch.cat([y, parts[-1]])


@pytest.mark.parametrize("lists", [False, True])
def test_branches_on_values_do_not_change_things(lists: bool):
    program = extract(_scripted(InPlace()))
    with pytest.raises((UnsupportedOpError, ImportModelError), match="changes a tensor or a list in place"):
        export_module(Evaluator(program, program.attributes), (X, lists))


class Stream(nn.Module):
    """Its state begins empty, and a number of its own is set."""

    def __init__(self) -> None:
        super().__init__()
        self.past = torch.zeros(0)
        self.chunk_count: int = 0

    def forward(self, x: Tensor) -> Tensor:
        if len(self.past) == 0:
            self.past = torch.zeros(x.size(0), 2)
        concatenated = torch.cat([self.past, x], 1)
        self.past = concatenated[:, -2:]
        self.chunk_count = min(self.chunk_count + 1, 2)
        return concatenated.sum(1) * self.chunk_count


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        before = self.total
        self.total = self.total * 0.5 + x
        return before + x


def test_a_state_of_one_type_is_the_program_s():
    module = _scripted(Counter())
    compiled = ingot.compile(module, (torch.randn(3),))
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), module(x))
    torch.testing.assert_close(compiled.state()["total"], module.total)


class Settles(nn.Module):
    """A state that a loop sets, as often as values say."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.ones(3))
        self.step_count: int = 0

    def forward(self, x: Tensor, has_count: bool = False) -> Tensor:
        y = x
        while bool(y.abs().sum() > 1):
            self.level = self.level * 0.5 + y
            if has_count:
                self.step_count += 1
            y = y * 0.5
        return y + self.level


@pytest.mark.parametrize("transform", [torch.jit.freeze, torch.jit.optimize_for_inference])
def test_frozen_modules(transform: Callable[[Any], Any]):
    layers = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5))
    module, x = transform(_scripted(layers.eval())), torch.randn(2, 3, 8)
    program = extract(module)
    exported = export_module(Evaluator(program, program.attributes), (x,))
    torch.testing.assert_close(exported.module()(x), module(x))


def test_a_loop_on_values_sets_tensors():
    module = _scripted(Settles())
    program = extract(module)
    compiled = script_model(program, lambda evaluator, inputs: export_module(evaluator, tuple(inputs)).module())
    for scale in (1.0, 30.0, 0.01):
        x = torch.randn(3) * scale
        torch.testing.assert_close(compiled(x), module(x))
        torch.testing.assert_close(compiled.state()["level"], module.level)
    with pytest.raises((UnsupportedOpError, ImportModelError), match="step_count is set, which is no tensor"):
        compiled(X[0, :3], True)


def test_a_state_that_changes_type_has_programs():
    module = _scripted(Stream())
    compiled = ingot.compile(module, (torch.randn(2, 4),))
    assert not compiled.is_one_program
    start = compiled.state()
    inputs = [torch.randn(2, 4) for _ in range(4)]
    results = [compiled(x) for x in inputs]
    for x, got in zip(inputs, results, strict=True):
        torch.testing.assert_close(got, module(x))
    assert compiled.state()["chunk_count"] == 2
    compiled.set_state(start)
    torch.testing.assert_close(compiled(inputs[0]), results[0])
    with pytest.raises(InputError, match="decide the program"):
        compiled.save("stream.ingot")


def test_programs_as_files(tmp_path: Path):
    module = _scripted(Lists())
    write(extract(module), tmp_path)
    program = read(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(Evaluator(program, program.attributes)(ROWS), module(ROWS))
    (tmp_path / "program.json").write_text('["x", [], {"nodes": 3}, {}, []]')
    with pytest.raises(ImportModelError, match="was not read"):
        read(tmp_path)


@pytest.mark.slow
def test_archives(tmp_path: Path):
    path = tmp_path / "net.pt"
    module = _scripted(Branches())
    module.save(str(path))
    assert kind_of(path) == "torchscript"
    torch.testing.assert_close(ingot.compile(path, (X,))(X), module(X))
    damaged = tmp_path / "damaged.pt"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(damaged, "w") as target:
        for name in source.namelist():
            target.writestr(name, b"def forward(" if name.endswith(".py") else source.read(name))
    with pytest.raises(ImportModelError, match="not a readable TorchScript archive"):
        load(damaged)


def test_an_archive_without_its_weights(tmp_path: Path):
    """That of torch.jit.optimize_for_inference, of which only the code is looked at."""
    path = tmp_path / "net.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/code/__torch__/net.py", "w = ops.prim.ConstantMKLDNNTensor()")
    with pytest.raises(ImportModelError, match="optimize_for_inference"):
        load(path)


@pytest.mark.slow
def test_what_is_refused_of_an_archive_that_is_read(tmp_path: Path):
    path = tmp_path / "net.pt"
    torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Dropout())).save(str(path))
    with pytest.raises(ImportModelError, match=r"^the model is in training mode"):
        load(path)
    torch.jit.script(nn.Sequential(nn.quantized.Linear(2, 2)).eval()).save(str(path))  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedOpError, match=r"^1 op is not supported in .*net\.pt:\n  prim::GetAttr \("):
        load(path)


class Sized(nn.Module):
    """Branches whose results differ in size."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x[:2] * 2 if bool(x.sum() > 0) else x + 1
        if bool(x.mean() > 3):
            y = y.repeat(1, 2)
        return torch.tanh(y) @ y.t(), y.sum(0)


@pytest.mark.parametrize("dynamic", [None, {"x": {0: "n", 1: "k"}}])
def test_branches_whose_results_differ_in_size(dynamic: dict[str, dict[int, str]] | None):
    module = torch.jit.script(Sized())
    compiled = ingot.compile(module, (torch.randn(5, 3),), dynamic=dynamic)
    for shape in [(5, 3), (4, 7), (2, 2)] if dynamic else [(5, 3)]:
        for scale in (1, -1, 10):
            x = torch.rand(shape) * scale
            for got, want in zip(compiled(x), module(x), strict=True):
                torch.testing.assert_close(got, want)


class Folded(nn.Module):
    """Sizes that a trace computes in tensors."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        x = x.reshape(b * c * (h // 2), 2, w // 2, 2).transpose(1, 2).reshape(b, c, h * w // 4, 4).transpose(1, 3)
        return x.reshape(b * 4, h * w // 4, -1)


def test_sizes_that_a_trace_computes_stay_open(tmp_path: Path):
    x = torch.randn(2, 3, 8, 8)
    path = str(tmp_path / "net.pt")
    torch.jit.save(torch.jit.trace(Folded().eval(), x), path)
    module: Any = torch.jit.load(path)  # where constants are tensors
    constants = [n.value for n in extract(module).body.nodes if n.kind == "prim::Constant"]
    assert 4 in constants  # a number, of which torch.export knows the product
    assert not any(isinstance(value, torch.Tensor) for value in constants)
    compiled = ingot.compile(module, (x,), dynamic={"x": {0: "n"}})
    for n in (1, 2, 5):
        torch.testing.assert_close(compiled(torch.ones(n, 3, 8, 8)), module(torch.ones(n, 3, 8, 8)))


class Ranked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum() if bool(x.sum() > 0) else x


def test_branches_whose_results_differ_in_rank():
    with pytest.raises(UnsupportedOpError, match=r"float32\[\] and float32\[5, 3\]"):
        ingot.compile(torch.jit.script(Ranked()), (torch.randn(5, 3),))


class Summed(nn.Module):
    """It adds to a buffer, and turns as often as an argument says."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(3))

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        self.sum += x.sum(0)
        y = x * self.sum
        for _ in range(int(n)):
            y = y * 0.5 + 1.0
        return y


def test_compiling_leaves_the_module_as_it_is():
    module, other = _scripted(Summed()), _scripted(Summed())
    x = torch.ones(2, 3)
    compiled = ingot.compile(module, (x, torch.tensor(2)))
    assert not module.sum.any()
    for n in (2, 0, 5):
        torch.testing.assert_close(compiled(x, torch.tensor(n)), other(x, torch.tensor(n)))
