"""Arguments that are like those of the last calls are taken at once, all others as if there had been none before."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

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
    same_shapes = [torch.randn(2, 4) for _ in range(4)]
    wide, line = torch.randn(2, 8), torch.randn(3, 4)
    minus = torch._neg_view(same_shapes[0])
    with torch.no_grad():
        for x in (
            *same_shapes,
            same_shapes[0].t().contiguous().t(),
            wide[:, ::2],
            line,
            minus,
            *same_shapes,
            same_shapes[0].requires_grad_(),
        ):
            torch.testing.assert_close(model(x), net(x))
        with torch.inference_mode():
            for x in (torch.randn(2, 4), *same_shapes, torch.randn(2, 4)):
                torch.testing.assert_close(model(x), net(x))
        np.testing.assert_allclose(np.asarray(model(same_shapes[1].numpy())), net(same_shapes[1]).numpy(), rtol=1e-5)
        for bad in (
            same_shapes[0].double(),
            same_shapes[0].to("meta"),
            same_shapes[0].to_sparse(),
            torch.randn(2, 5),
            3,
            None,
        ):
            for _ in range(2):
                with pytest.raises((InputError, TypeError)):
                    model(bad)
        with pytest.raises((InputError, TypeError)):
            model(same_shapes[0], same_shapes[1])
        torch.testing.assert_close(model(same_shapes[2]), net(same_shapes[2]))


def test_arrays_like_those_before_and_others_in_between() -> None:
    x = Input("x", TensorType(f32, (symbol("n"), 4)))()
    model = CompiledModel(build_program(Graph((x,), (ops.mul(x, 2.0),)), host_features(), 1))
    same_shapes = [np.random.default_rng(i).standard_normal((2, 4), np.float32) for i in range(3)]
    swapped = same_shapes[0].astype(same_shapes[0].dtype.newbyteorder())
    others = (np.asfortranarray(same_shapes[1]), same_shapes[0][::-1], np.ones((3, 4), np.float32))
    for value in (*same_shapes, *others, *same_shapes, torch.from_numpy(same_shapes[0]), *same_shapes):
        np.testing.assert_array_equal(np.asarray(model(value)), np.asarray(value) * 2)
    for bad in (same_shapes[0].astype(np.float64), swapped, np.ones((2, 5), np.float32), np.float32(1), None):
        for _ in range(2):
            model(same_shapes[0])
            with pytest.raises(InputError):
                model(bad)
    with pytest.raises(InputError):
        model(same_shapes[0], same_shapes[1])


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
    data = torch.zeros(2, 3).as_subclass(Elsewhere)
    for placement, message in (
        (cuda, "expected tensors on cuda:0, the model's device, got cuda:1"),
        (program, "a CPU tensor"),
    ):
        arguments = Arguments(placement)
        for _ in range(3):
            with pytest.raises(InputError, match=message):
                arguments.take([data])
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
    data = Array(np.zeros((3, 3), np.float32)[1:])
    references, pointers, buffers = arguments.take([data])
    assert pointers == [data.values.ctypes.data] and data.streams == [1] and len(references) == 1
    assert (buffers.shapes, buffers.tensors, buffers.device, buffers.resident) == (
        ((2, 3),),
        False,
        None,
        (True, False),
    )
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
    with pytest.raises(InputError, match="or of other libraries alone, got both"):
        arguments.take([first, data])


class Here(Elsewhere):
    device = torch.device("cuda", 0)


def freed(nbytes: int = 0, stride: int = 1) -> Any:
    x = torch.ones(9, 64 * stride)[:, ::stride]
    x.untyped_storage().resize_(nbytes)
    return x


class Dispatched(torch.Tensor):
    @staticmethod
    def __new__(cls, x: Any) -> Any:
        return torch.Tensor._make_subclass(cls, x)

    @classmethod
    def __torch_dispatch__(cls, *args: object) -> None: ...


class Named(torch.Tensor):
    """A subclass whose elements are a plain tensor's."""


def deleted() -> object:
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones((9, 64))
    x.delete()
    return x


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.ones(9, 64))


def unaligned() -> np.ndarray:
    x = np.zeros(9 * 64 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(9, 64)
    x[...] = 1
    return x


ONES = np.ones((9, 64), np.float32)
REFUSED = {
    "without memory": (freed, lambda: freed(stride=2), lambda: torch._to_functional_tensor(torch.ones(9, 64))),
    "ends at byte 100 of": (lambda: freed(100, 2),),
    "a nested one": (lambda: torch.nested.nested_tensor([torch.ones(3, 64)] * 3),),
    "torch.jagged": (lambda: torch.nested.nested_tensor([torch.ones(3, 64)] * 3, layout=torch.jagged),),
    "FakeTensor": (fake,),
    "Dispatched": (lambda: Dispatched(torch.ones(9, 64)),),
    "MaskedTensor": (lambda: torch.masked.masked_tensor(torch.ones(9, 64), torch.ones(9, 64) > 0),),
    "ninitialized": (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer),
    "got meta": (lambda: torch.ones(9, 64, device="meta"),),
    "torch.sparse": (lambda: torch.ones(9, 64).to_sparse(), lambda: torch.ones(9, 64).to_sparse_csr()),
    "masked elements": (lambda: np.ma.masked_array(ONES, ONES > 0),),
    "deleted": (deleted,),
    "memoryview": (lambda: memoryview(ONES.data),),
    "dtype >f4": (lambda: ONES.astype(">f4"),),
}
TAKEN = (
    lambda: torch.ones(9, 64).as_subclass(Named),
    lambda: torch._neg_view(-torch.ones(9, 64)),
    lambda: torch.complex(ONES_T, -ONES_T).conj().imag,
    lambda: torch.frombuffer(bytearray(1) + ONES.tobytes(), dtype=torch.float32, offset=1).reshape(9, 64),
    lambda: torch._efficientzerotensor((9, 64)) + 1,
    lambda: ONES_T[0].expand(9, 64),
    lambda: np.ma.masked_array(ONES),
    lambda: ONES[::-1, ::-1],
    lambda: np.broadcast_to(np.float32(1), (9, 64)),
    lambda: np.frombuffer(ONES.tobytes(), np.float32).reshape(9, 64),
    unaligned,
)
ONES_T = torch.ones(9, 64)


def model_of_rows() -> CompiledModel:
    x = Input("x", TensorType(f32, (symbol("n"), 64)))()
    return CompiledModel(build_program(Graph((x,), (ops.Reduce("sum", (1,))(x),)), host_features(), 1), threads=1)


@pytest.mark.parametrize("calls", [0, 3])
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_memory_is_refused_and_all_else_taken(calls: int) -> None:
    model = model_of_rows()
    for message, makers in REFUSED.items():
        for make in makers:
            value = make()
            for _ in range(calls):
                model(ONES_T)
            with pytest.raises(InputError, match=message):
                model(value)
    for make in TAKEN:
        value = make()
        for _ in range(calls):
            model(ONES_T)
        assert np.array_equal(np.asarray(model(value)), np.full(9, 64, np.float32))


def test_storage_that_was_made_shorter() -> None:
    with pytest.raises(InputError, match="ends at byte 100 of 2304"):
        model_of_rows()(freed(100))


def test_zeros_that_torch_has_not_written() -> None:
    assert not model_of_rows()(torch._efficientzerotensor((9, 64))).any()


@pytest.mark.parametrize("calls", [0, 3])
def test_derivatives_that_would_be_lost_are_refused(calls: int) -> None:
    model, forward_ad = model_of_rows(), torch.autograd.forward_ad
    for _ in range(calls):
        model(ONES_T)
    with forward_ad.dual_level():
        assert torch.equal(model(ONES_T), torch.full((9,), 64.0))
        with pytest.raises(InputError, match="dual tensor"):
            model(forward_ad.make_dual(ONES_T, ONES_T))
    for transform in (torch.func.vmap, torch.func.grad, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))):
        with pytest.raises(InputError, match=r"torch\.func"):
            transform(lambda x: model(x).sum())(torch.ones(2, 9, 64)[:1] if transform is torch.func.vmap else ONES_T)


@pytest.mark.parametrize("calls", [0, 4])
def test_inputs_that_require_a_gradient_are_told_of_once(calls: int) -> None:
    model, x = model_of_rows(), torch.ones(9, 64, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            for _ in range(calls):
                model(x)
        for _ in range(3):
            model(ONES_T)
        with pytest.raises(UserWarning, match="requires a gradient"):
            model(x)
        for _ in range(4):
            model(x)
