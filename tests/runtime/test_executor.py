import copy
import dataclasses
import gc
import pickle
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, bf16
from ingot.pipeline.build import build_program
from ingot.runtime.cpu import memory
from ingot.runtime.cpu.run_context import MAX_INSTANCES
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Buffer, Program, Step, Symbol, TensorSpec
from ingot.runtime.tensors import host_array
from ingot.support.errors import ArtifactError, InputError
from ingot.support.native import Features
from ingot.targets.cpu.workers import host_features
from tests.runtime import models


def vector(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_static_program(threads: int):
    model = CompiledModel(models.static(), threads=threads)
    x = vector(1000)
    expected = (x + np.arange(1000, dtype=np.float32)) * 8
    first, second = model(x), model(x=x)
    assert isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    assert np.array_equal(first, expected) and np.array_equal(second, expected)
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize("threads", [1, 2])
def test_dynamic_program_at_many_sizes(threads: int):
    model = CompiledModel(models.dynamic(), threads=threads)
    for n in (5, 0, 1, 255, 256, 257, 100_000, 5, *range(40), 257):
        x, z = vector(n), vector(n, 1)
        y, d = model(x, z=z)  # type: ignore[misc]
        assert np.array_equal(y, x + z + np.float32(1) + np.float32(1)) and np.array_equal(d, x * 2)
    assert len(models.loaded(model)._contexts[0].instances) == MAX_INSTANCES


def test_strided_input_is_copied_and_special_values_pass():
    model = CompiledModel(models.static(4, 1), threads=2)
    x = np.array([[np.nan, 0], [np.inf, 0], [-np.inf, 0], [-0.0, 0]], np.float32)[:, 0]
    assert np.array_equal(model(x), (x + np.arange(4, dtype=np.float32)) * 2, equal_nan=True)  # type: ignore[arg-type]


def test_wrong_inputs_say_what_was_expected():
    model = CompiledModel(models.dynamic(), threads=1)
    x = vector(4)
    cases = [
        ((), {}, r"inputs: expected x: f32\[n\], z: f32\[n\], got none for x, z"),
        ((x, x, x), {}, "expected 2 .*, got 3 values"),
        ((x,), {"w": x}, "input 'w': expected one of x: "),
        ((x, x), {"x": x}, "a positional and a named one"),
        (
            (x, x.astype(np.float64)),
            {},
            r"input 'z': expected dtype f32 \[n\], got dtype float64; convert it: x.astype",
        ),
        (
            (x, vector(5)),
            {},
            r"input 'z', axis 0: expected n = 4, got 5 in \(5,\); n = 4 comes from axis 0 of input 'x'",
        ),
        ((x, x.reshape(2, 2)), {}, r"input 'z': expected 1 dims \[n\], got shape \(2, 2\)"),
        ((x, [1.0, 2.0]), {}, "input 'z': expected a numpy array, .* got list"),
        ((vector((1 << 20) + 1), x), {}, r"axis 0 of input 'x': expected n >= 0 and <= 1048576, got 1048577"),
    ]
    for args, kwargs, text in cases:
        with pytest.raises(InputError, match=text):
            model(*args, **kwargs)
    with pytest.raises(InputError, match="axis 0: expected 1000, got 4 in"):
        CompiledModel(models.static(), threads=1)(x)
    with pytest.raises(InputError, match=r"byte|dtype"):
        CompiledModel(models.static(), threads=1)(np.zeros(1000, ">f4"))
    for threads in (0, 1 << 30, "2"):
        with pytest.raises(InputError, match=f"threads: expected a whole number from 1 to 1024, got {threads}"):
            CompiledModel(models.static(), threads=threads)  # type: ignore[arg-type]


def test_dlpack_objects_are_read_in_place():
    class Foreign:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: object) -> object:
            return self.array.__dlpack__(**options)  # type: ignore[arg-type]

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()  # type: ignore[return-value]

    x = vector(1000)
    model = CompiledModel(models.static(), threads=1)
    assert np.array_equal(model(Foreign(x)), model(x))  # type: ignore[arg-type]


def test_arrays_of_types_that_numpy_does_not_have():
    """numpy reads none of them by DLPack: JAX's of bfloat16."""
    jnp, ml_dtypes = pytest.importorskip("jax.numpy"), pytest.importorskip("ml_dtypes")
    x = Input("x", TensorType(bf16, (3,)))()
    model = CompiledModel(build_program(Graph((x,), (ops.mul(x, 2.0),)), host_features(), 1))
    want = np.array([2, 4, -6], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.asarray(model(jnp.asarray([1, 2, -3], jnp.bfloat16))), want)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_large_results_use_the_memory_of_dropped_ones(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "MMAP_BYTES", 1)
    model = CompiledModel(models.dynamic(), threads=2)
    x, z = vector(1000), vector(1000, 1)
    inputs = (x, z) if kind == "numpy" else tuple(map(pytest.importorskip("torch").from_numpy, (x, z)))
    result = model(*inputs)
    part = model(*inputs)[0][10:20]  # type: ignore[index]
    places = set()
    for _ in range(4):
        y, d = model(*inputs)  # type: ignore[misc]
        np.testing.assert_array_equal(np.asarray(y), (x + z + 1) + 1)
        np.testing.assert_array_equal(np.asarray(d), x * 2)
        places |= {np.asarray(y).ctypes.data, np.asarray(d).ctypes.data}
    assert len(places) == 4  # two calls at a time are alive
    model(*(v * 0 for v in inputs))
    np.testing.assert_array_equal(np.asarray(part), ((x + z + 1) + 1)[10:20])
    np.testing.assert_array_equal(np.asarray(result[1]), x * 2)  # type: ignore[index]


def test_large_tensors_are_resized_and_held_by_any_means(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(memory, "MMAP_BYTES", 1)
    model = CompiledModel(models.dynamic(), threads=2)
    with torch.inference_mode():
        model(torch.ones(1000), torch.ones(1000))
    x, z = torch.randn(1000), torch.randn(1000)
    y, d = model(x, z)  # type: ignore[misc]
    y.resize_(2000)
    assert torch.equal(y[:1000], (x + z + 1) + 1)
    storage, array, twice = y.untyped_storage(), d.numpy(), d.requires_grad_() * 2
    del y, d
    for _ in range(4):
        assert not any(t.is_inference() for t in model(x * 0, z * 0))
    assert torch.equal(torch.empty(0).set_(storage)[:1000], (x + z + 1) + 1)
    np.testing.assert_array_equal(array, x * 2)
    assert torch.equal(twice, x * 4)


def test_torch_tensors_in_and_out():
    torch = pytest.importorskip("torch")
    model = CompiledModel(models.dynamic(), threads=2)
    x, z = torch.randn(1000, requires_grad=True), torch.randn(2000)[::2]
    y, d = model(x, z)  # type: ignore[misc]
    assert isinstance(y, torch.Tensor) and torch.equal(y, (x + z + 1) + 1) and torch.equal(d, x * 2)
    mixed = model(x, z.numpy())
    assert isinstance(mixed, tuple) and torch.equal(mixed[0], y)
    with pytest.raises(InputError, match=r"expected dtype f32 \[n\], got dtype torch.float64; convert it: x.to"):
        model(x.double(), z)
    with pytest.raises(InputError, match="expected a CPU tensor, got meta"):
        model(x.to("meta"), z)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_as_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    """Also of the types that numpy does not read from a tensor; of a view with strides."""
    torch = pytest.importorskip("torch")
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    tensor = (
        torch.from_numpy(values).mT.to(getattr(torch, dtype)).mT if shape else torch.tensor(0).to(getattr(torch, dtype))
    )
    array = host_array(tensor, "x")
    assert array.dtype.name == dtype and array.shape == shape
    np.testing.assert_array_equal(array.astype(np.int64), tensor.long().numpy())


def test_bfloat16():
    spec = TensorSpec("x", "bf16", (4,))
    copy = """
define void @copy(ptr %bases, ptr %args, i64 %chunk, ptr %scratch) nounwind {
  %from.at = getelementptr ptr, ptr %bases, i64 2
  %from = load ptr, ptr %from.at
  %to.at = getelementptr ptr, ptr %bases, i64 3
  %to = load ptr, ptr %to.at
  %v = load i64, ptr %from, align 1
  store i64 %v, ptr %to, align 1
  ret void
}"""
    program = dataclasses.replace(
        models.static(4),
        inputs=(spec,),
        outputs=(dataclasses.replace(spec, name="y"),),
        buffers=(Buffer(0, "input", 8), Buffer(1, "output", 8)),
        steps=(Step("copy", ((0, 0), (1, 0))),),
        code={"cpu": models.assemble([copy])},
    )
    model = CompiledModel(program, threads=1)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(4).astype(ml_dtypes.bfloat16)
    y = model(x)
    assert isinstance(y, np.ndarray) and y.dtype == x.dtype and np.array_equal(y, x)
    torch = pytest.importorskip("torch")
    t = torch.arange(4, dtype=torch.bfloat16)
    assert torch.equal(model(t), t)  # type: ignore[arg-type]


HALO = """
define void @inside(ptr %bases, ptr %args, i64 %chunk, ptr %scratch) nounwind {
entry:$ADDRESSES
  %n.at = getelementptr i64, ptr %args, i64 4
  %n = load i64, ptr %n.at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %from = getelementptr float, ptr %p0, i64 %i
  %v = load float, ptr %from
  %to = getelementptr float, ptr %p1, i64 %i
  store float %v, ptr %to
  %j = add i64 %i, 1
  %end = icmp eq i64 %j, %n
  br i1 %end, label %over, label %loop
over:
  ret void
}
""".replace("$ADDRESSES", models.address(0) + models.address(1))


def test_zeroed_halos_survive_other_shapes_in_the_same_arena():
    """y = pad(x + x, 16 each side): the halo is never written, and must be zero whatever ran before."""
    nbytes, padded = ("n", 4, "*"), ("n", 32, "+", 4, "*")
    program = Program(
        symbols=(Symbol("n", 1),),
        inputs=(TensorSpec("x", "f32", (("n",),)),),
        outputs=(TensorSpec("y", "f32", (("n", 32, "+"),)),),
        buffers=(
            Buffer(0, "input", nbytes),
            Buffer(1, "output", padded),
            Buffer(2, "arena", nbytes, first_step=0, last_step=1),
            Buffer(3, "arena", padded, first_step=0, last_step=2, halo="pad16"),
            Buffer(4, "arena", nbytes, first_step=0, last_step=2, alias=(3, 64)),
        ),
        steps=(
            Step("add", ((0, 0), (0, 0), (2, 0)), (("n",),), ("n", 255, "+", 256, "//")),
            Step("inside", ((2, 0), (4, 0)), (("n",),)),
            Step("inside", ((3, 0), (1, 0)), (("n", 32, "+"),)),
        ),
        code={"cpu": models.assemble([*models.KERNELS, HALO])},
        weights=np.zeros(0, np.uint8),
    )
    program.check()
    model = CompiledModel(program, threads=2)
    for n in (1000, 10, 1000, 300, 10, 5000, 10):
        for _ in range(2):
            x = vector(n)
            assert np.array_equal(model(x), np.pad(x + x, 16))  # type: ignore[arg-type]


def test_misaligned_weights_are_moved():
    program = models.static()
    shifted = np.empty(program.weights.nbytes + 65, np.uint8)
    start = -shifted.ctypes.data % 64 + 1
    view = shifted[start : start + program.weights.nbytes]
    view[:] = program.weights
    model = CompiledModel(dataclasses.replace(program, weights=view), threads=1)
    x = vector(1000)
    assert np.array_equal(model(x), (x + np.arange(1000, dtype=np.float32)) * 8)  # type: ignore[arg-type]


def test_code_for_another_machine_is_refused():
    foreign = "aarch64" if models.isa().arch == "x86_64" else "x86_64"
    program = models.made_for(Features(foreign))
    with pytest.raises(ArtifactError, match=f"another machine: expected {foreign}, got {models.isa().arch}"):
        CompiledModel(program)


def test_profile_explain_plan_and_dump():
    model = CompiledModel(models.static(), threads=2)
    rows = model.profile(vector(1000))
    assert [label for label, _ in rows] == ["add w", "double 0", "double 1", "double 2"]
    assert all(0 < seconds < 1 for _, seconds in rows)
    assert "4 steps, 2 kernels" in model.plan() and model.dump("model") == "x + w"
    assert model.dump("plan") == model.plan()
    with pytest.raises(InputError, match="dump: expected one of model, kernel, plan, got 'llvm'"):
        model.dump("llvm")
    total, _, head, *steps = model.explain(vector(1000)).splitlines()
    assert total.endswith(" ms in kernels on cpu") and head.split() == ["us", "share", "step", "kernel", "label"]
    assert sorted(int(line.split()[2]) for line in steps) == [0, 1, 2, 3]
    assert [float(line.split()[0]) for line in steps] == sorted((float(s.split()[0]) for s in steps), reverse=True)
    moving = CompiledModel(models.dynamic(), threads=1)
    assert "n * 4" in moving.plan() and "symbol n in [0, 1048576] = 64" in moving.plan((64,), (64,))
    assert "x: f32[n]" in repr(moving)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_says_what_to_do_instead(how: Callable[[object], object]):
    with pytest.raises(TypeError, match=r"m\.save\(path\)"):
        how(CompiledModel(models.static(), threads=1))


def test_models_are_freed():
    model = CompiledModel(models.static(), threads=2)
    model(vector(1000))
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
