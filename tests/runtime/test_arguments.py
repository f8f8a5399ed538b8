"""Arguments that are like those of the last calls are taken at once, all others as if there had been none before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime.arguments import Arguments
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import InputError
from ingot.targets.cpu.workers import host_features

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


def test_arrays_like_those_before_and_others_in_between() -> None:
    x = Input("x", TensorType(f32, (symbol("n"), 4)))()
    model = CompiledModel(build_program(Graph((x,), (ops.mul(x, 2.0),)), host_features(), 1))
    alike = [np.random.default_rng(i).standard_normal((2, 4), np.float32) for i in range(3)]
    swapped = alike[0].astype(alike[0].dtype.newbyteorder())
    others = (np.asfortranarray(alike[1]), alike[0][::-1], np.ones((3, 4), np.float32))
    for value in (*alike, *others, *alike, torch.from_numpy(alike[0]), *alike):
        np.testing.assert_array_equal(np.asarray(model(value)), np.asarray(value) * 2)
    for bad in (alike[0].astype(np.float64), swapped, np.ones((2, 5), np.float32), np.float32(1), None):
        for _ in range(2):
            model(alike[0])
            with pytest.raises(InputError):
                model(bad)
    with pytest.raises(InputError):
        model(alike[0], alike[1])


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cuda, is_cpu, device = True, False, torch.device("cuda", 1)


def test_places_where_the_model_is_not() -> None:
    """A model for GPUs lies on the first one; one for the host takes no tensors of GPUs; wrong types are told first."""
    x = Input("x", TensorType(f32, (2, 3)))()
    program = build_program(Graph((x,), (ops.Tanh()(x),)), features_of("null:cuda:sm_90a"), 1)
    (code,) = program.code.values()
    cuda = replace(program, code={"cuda": replace(code, features=replace(code.features, target="cuda"))})
    given = torch.zeros(2, 3).as_subclass(Elsewhere)
    for made, told in ((cuda, "expected tensors on cuda:0, where the model is, got cuda:1"), (program, "a CPU tensor")):
        arguments = Arguments(made)
        for _ in range(3):
            with pytest.raises(InputError, match=told):
                arguments.take([given])
    with pytest.raises(InputError, match=r"input 'x': expected dtype f32 \[2, 3\], got dtype torch.float64"):
        Arguments(cuda).take([torch.zeros(2, 3).double().as_subclass(Elsewhere)])


class Array:
    """An array of others that says it lies on a GPU."""

    def __init__(self, values: np.ndarray, number: int = 0) -> None:
        self.values, self.number, self.streams = values, number, list[int]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.number

    def __dlpack__(self, *, stream: int) -> object:
        self.streams.append(stream)
        return self.values.__dlpack__()


def test_arrays_of_others_on_the_gpu_are_taken_where_they_lie() -> None:
    """By DLPack, which hears of the stream; results are arrays on the host."""
    x = Input("x", TensorType(f32, (2, 3)))()
    program = build_program(Graph((x,), (ops.Tanh()(x),)), features_of("null:cuda:sm_90a"), 1)
    (code,) = program.code.values()
    arguments = Arguments(
        replace(program, code={"cuda": replace(code, features=replace(code.features, target="cuda"))})
    )
    given = Array(np.zeros((3, 3), np.float32)[1:])
    held, pointers, told = arguments.take([given])
    assert pointers == [given.values.ctypes.data] and given.streams == [1] and len(held) == 1
    assert (told.shapes, told.tensors, told.place, told.resident) == (((2, 3),), False, None, (True, False))
    for wrong, text in (
        (Array(np.zeros((2, 3))), "expected dtype f32 .* got dtype f64"),
        (Array(np.zeros((3, 2), np.float32).T), "dense"),
        (Array(np.zeros((2, 3), np.float32), 1), "got one on GPU 1"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"input 'x': .*{text}"):
            arguments.take([wrong])
    with pytest.raises(InputError, match="in CPU memory"):
        Arguments(program).take([Array(np.zeros((2, 3), np.float32))])
    two = Input("y", TensorType(f32, (2, 3)))()
    program = build_program(Graph((x, two), (ops.Add()(x, two),)), features_of("null:cuda:sm_90a"), 1)
    arguments = Arguments(
        replace(program, code={"cuda": replace(code, features=replace(code.features, target="cuda"))})
    )
    first = torch.zeros(2, 3).as_subclass(Here)
    with pytest.raises(InputError, match="or arrays of others, got both"):
        arguments.take([first, given])


class Here(Elsewhere):
    device = torch.device("cuda", 0)
