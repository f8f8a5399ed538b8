"""Steps of training for other machines: their kernels for a GPU by the interpreter, as C, as files."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of
from ingot.runtime.bind import Binding
from ingot.runtime.executable import UnloadedProgram
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.runtime.training import SECTIONS
from ingot.support.errors import ArtifactError, InputError
from ingot.targets.cuda.triton import print_kernel
from ingot.transform.train.sources import TrainRequest, read
from ingot.transform.train.step import Recipe, step_of
from tests.conformance.c import built, needs_gcc
from tests.conformance.checked import first_state, run_planned
from tests.conformance.targets import H100, HOST

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

FOREIGN = "cpu:aarch64" if HOST.arch == "x86_64" else "cpu:x86-64-v3"


class Tokens(nn.Module):
    """An embedding, a body, a score for each token."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embed, self.body, self.out = nn.Embedding(11, 16), body, nn.Linear(16, 11)

    def forward(self, ids: Tensor) -> Tensor:
        results = self.body(self.embed(ids))
        return self.out(results[0] if isinstance(results, tuple) else results).transpose(1, 2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.3), nn.Linear(9, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(3, 1, 1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip


def attention() -> nn.Module:
    return Tokens(nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True))


def lstm() -> nn.Module:
    return Tokens(nn.LSTM(16, 16, 2, batch_first=True))


def batch(net: nn.Module, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Inputs of that shape, letters where there are two sizes of 9, and targets."""
    x = torch.randint(0, 11, tuple(shape)) if isinstance(net, Tokens) else torch.randn(*shape)
    scores = copy.deepcopy(net)(x)
    return x, torch.randint(0, scores.shape[1], (scores.shape[0], *scores.shape[2:]))


class Interpreted:
    """A step for a GPU by the meaning of its kernels, each of which Triton's printer takes."""

    def __init__(self, net: nn.Module, x: Tensor, recipe: Recipe, memory: float | None = None) -> None:
        step, trace = step_of(read(net, TrainRequest(None, False, (x,), (), None, None)), recipe), Trace()
        program = build_program(step.graph, features_of(f"null:{H100}"), 1, memory=memory, trace=trace)
        self.program: Program = program.with_state({k.name: k.initial for k in step.state})
        self.kernels = {kernel.name: kernel for kernel in trace.kernels}
        self.state = first_state(self.program)
        assert all(print_kernel(kernel).text.startswith("@triton.jit") for kernel in trace.kernels)

    def __call__(self, x: Tensor, y: Tensor) -> float:
        rate = np.asarray(0.01, np.float32)
        return float(run_planned(self.program, self.kernels, [x.numpy(), y.numpy(), rate], self.state)[0])


SHAPES = ((cnn, (3, 2, 8, 8)), (attention, (3, 9)), (lstm, (3, 6)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("make", "shape"), SHAPES, ids=lambda v: getattr(v, "__name__", ""))
def test_steps_of_a_gpu_beside_eager(make: Any, shape: Sequence[int]) -> None:
    torch.manual_seed(0)
    net = make()
    x, y = batch(net, shape)
    ours = Interpreted(copy.deepcopy(net), x, Recipe(ingot.optim.AdamW(lr=0.01), "cross_entropy", clip_norm=1.0))
    other = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(3):
        other.zero_grad()
        want = F.cross_entropy(net(x), y)
        want.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        other.step()
        assert ours(x, y) == pytest.approx(want.item(), abs=2e-6)
    # parameters and moments lie where they lay; statistics are results of the kernel that sums them
    assert not [s.spec.name for s in ours.program.state if s.copy_reason and ".running_" not in s.spec.name]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_what_a_recipe_asks_of_a_gpu_is_what_a_cpu_does(precision: str) -> None:
    """Dropout of the same numbers, two calls an update, an overflow that makes none."""
    torch.manual_seed(0)
    net = mlp()
    x, y = batch(net, (5, 6))
    options: dict[str, Any] = {"accumulate": 2, "precision": precision, "skip_nonfinite": True, "clip_value": 0.1}
    step = ingot.train(copy.deepcopy(net), "cross_entropy", ingot.optim.AdamW(lr=0.01), (x,), threads=1, **options)
    ours = Interpreted(net, x, Recipe(ingot.optim.AdamW(lr=0.01), "cross_entropy", **options))
    for part in (x, x + 1, x * float("inf"), x, x + 1, x):
        assert ours(part, y) == pytest.approx(float(step(part, y)[0]), abs=1e-5, nan_ok=True)
    for (name, want), got in zip(step.state().items(), ours.state, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-3, err_msg=name)


@pytest.mark.slow
def test_less_memory_on_a_gpu_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32))])
    x, y = batch(net, (64, 32))
    recipe = Recipe(ingot.optim.AdamW(lr=0.01), "cross_entropy")
    unlimited, limited = (Interpreted(copy.deepcopy(net), x, recipe, memory) for memory in (None, 0.6))
    result = limited.program.meta["memory"]
    bound = Binding(limited.program, [*(t.shape for t in (x, y)), (), *(s.shape for s in limited.program.state)])
    assert "run again" in result and f"arena {bound.layout.nbytes / 1e6:.3f} of" in result
    assert [unlimited(x, y) for _ in range(2)] == [limited(x, y) for _ in range(2)]
    for a, b in zip(unlimited.state, limited.state, strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_program_for_another_machine_is_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = mlp()
    x, y = batch(net, (5, 6))
    for target in (FOREIGN, f"null:{H100}"):
        program = ingot.train(net, "cross_entropy", ingot.optim.AdamW(), (x,), target=target, seed=3)
        assert isinstance(program, CompiledModel) and program.refused
        assert len(program.program.meta[SECTIONS]) == len(program.program.steps)
        assert set(program.program.meta[SECTIONS]) == set("fbo")
        with pytest.raises(ArtifactError):
            program(x, y)
        program.save(tmp_path / "s.ingot")
        with pytest.raises(ArtifactError):
            ingot.load(tmp_path / "s.ingot")
    step = ingot.train(net, "cross_entropy", ingot.optim.AdamW(), (x,), target="cpu", seed=3)
    CompiledModel(UnloadedProgram(step.program)).save(tmp_path / "s.ingot")  # as if it had been made elsewhere
    loaded: Any = ingot.load(tmp_path / "s.ingot")
    assert [float(loaded(x, y)[0]) for _ in range(2)] == [float(step(x, y)[0]) for _ in range(2)]


def test_tf32_is_an_option_of_the_program() -> None:
    """It stores nothing in another type."""
    x = torch.zeros(5, 6)
    program: Any = ingot.train(
        mlp(), "cross_entropy", ingot.optim.SGD(0.1), (x,), target=f"null:{H100}", precision="tf32"
    )
    assert program.program.meta["precision"] == "tf32"


def test_a_target_that_is_none_is_told() -> None:
    x = torch.zeros(5, 6)
    with pytest.raises(InputError, match="NAME"):
        ingot.train(mlp(), "cross_entropy", ingot.optim.AdamW(), (x,), target="gpu")
    with pytest.raises(InputError, match="sm_90a"):
        ingot.train(mlp(), "cross_entropy", ingot.optim.AdamW(), (x,), target="cuda:sm_99")


class OnGpu(torch.Tensor):
    """A tensor that claims to be on a GPU."""

    is_cuda = True  # type: ignore[assignment]


def test_the_rate_lies_where_the_batch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tensor as long as it is the same; of a captured graph a new one, which the graph fills."""
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    x = torch.zeros(5, 6)
    step = ingot.train(mlp(), "cross_entropy", ingot.optim.AdamW(), (x,), threads=1)
    rate, other = np.asarray(0.1, np.float32), np.asarray(0.2, np.float32)
    assert step._device_rate([OnGpu()], rate) is rate  # a program for CPUs
    monkeypatch.setattr(type(step.program), "device", "cuda")
    assert step._device_rate([x], rate) is rate
    first, repeated, changed = (step._device_rate([x, OnGpu()], r) for r in (rate, rate, other))
    assert first is repeated and float(first) == rate and float(changed) == other and first.dtype == torch.float32
    capturing[0] = True
    assert step._device_rate([OnGpu()], other) is not changed


def test_kernels_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    ingot.train(mlp(), "cross_entropy", ingot.optim.AdamW(), (torch.zeros(5, 6),), threads=1)
    file_times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    ingot.train(mlp(), "cross_entropy", ingot.optim.AdamW(), (torch.zeros(5, 6),), threads=1)
    assert len(file_times) > 5 and file_times.keys() == {p for p in tmp_path.rglob("*") if p.is_file()}


def test_gradients_for_another_machine() -> None:
    program = ingot.value_and_grad(nn.MSELoss(), (torch.zeros(5), torch.ones(5)), target=FOREIGN)
    assert program.refused
    with pytest.raises(ArtifactError):
        program(torch.zeros(5), torch.ones(5))


@needs_gcc
def test_a_step_in_c(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4))
    x, y = batch(net, (5, 2, 5, 5))
    options = {"optimizer": ingot.optim.SGD(lr=0.1, momentum=0.9), "example_inputs": (x,)}
    program = ingot.train(copy.deepcopy(net), "cross_entropy", **options, target="c")
    step = ingot.train(net, "cross_entropy", **options, threads=1)
    program.save(tmp_path / "step.c")
    library, loss = built(tmp_path, tmp_path / "step.c"), np.zeros((), np.float32)
    values = (x.numpy(), y.numpy(), np.asarray(0.1, np.float32), loss)
    header = (tmp_path / "step.h").read_text()
    size = int(header.split("define STEP_STATE_BYTES ")[1].split()[0])
    state, arena = np.zeros(size // 8 + 1, np.int64), np.zeros(1 << 16, np.int64)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (arena, state)]
    assert library.step_reset(pointers[1]) == 0
    for _ in range(4):
        assert library.step_run_in(*pointers, *(ctypes.c_void_p(v.ctypes.data) for v in values)) == 0
        assert float(loss) == pytest.approx(float(step(x, y)[0]), rel=1e-5)
    # the header tells where what was learned lies
    line = next(line for line in header.splitlines() if "4.weight: f32[4, 27]" in line and ":4" not in line)
    at = int(line.split("byte ")[1].split()[0])
    learned = state.view(np.uint8)[at : at + 4 * 108].view(np.float32).reshape(4, 27)
    np.testing.assert_allclose(learned, np.asarray(step.state_dict()["4.weight"]), atol=1e-6)
