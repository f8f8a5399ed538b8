"""`ingot.InferenceSession` beside ONNX Runtime's own."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

import ingot
import ingot.integrations.onnxruntime as ort
from ingot.support.errors import ArtifactError, ImportModelError, InputError
from tests.serving.models import pooled, proto, upper

MODULES = [onnxruntime, ort]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("session") / "pool.onnx"
    model = pooled()
    entry = model.metadata_props.add()
    entry.key, entry.value = "labels", "a b"
    model.producer_name, model.model_version = "test", 7
    onnx.save(model, file)
    return file


def two_outputs() -> onnx.ModelProto:
    """x[n, 2] -> sum[2], double[n, 2], nonzero[2, $n] of sizes that the run computes."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "zero"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "x"], ["double"]),
        helper.make_node("NonZero", ["x"], ["places"]),
    ]
    outputs = [("sum", T.FLOAT, [2]), ("double", T.FLOAT, ["n", 2]), ("places", T.INT64, [2, None])]
    return proto(nodes, [("x", T.FLOAT, ["n", 2])], outputs, [("zero", np.array([0]))])


FEEDS = {"x": np.arange(48, dtype=np.float32).reshape(2, 3, 8) / 10, "shift": np.ones((2, 1), np.float32)}
X = np.array([[0, 1], [2, 0], [3, 4]], np.float32)


def test_inputs_outputs_and_metadata_are_those_of_onnx_runtime(path: Path):
    sessions = [module.InferenceSession(str(path), providers=["CPUExecutionProvider"]) for module in MODULES]
    described = [[(a.name, a.type, a.shape) for a in (*s.get_inputs(), *s.get_outputs())] for s in sessions]
    assert described[0] == described[1]
    for name in ("producer_name", "version", "custom_metadata_map", "graph_name"):
        assert getattr(sessions[0].get_modelmeta(), name) == getattr(sessions[1].get_modelmeta(), name)
    assert sessions[0].get_providers() == sessions[1].get_providers()
    results = [s.run(None, FEEDS) for s in sessions]
    np.testing.assert_allclose(*(r[0] for r in results), rtol=1e-5, atol=1e-6)


def test_a_session_opens_paths_bytes_and_saved_programs(path: Path, tmp_path: Path):
    saved = tmp_path / "pool.ingot"
    ingot.compile(path).save(saved)
    expected = ingot.InferenceSession(path).run(None, FEEDS)[0]
    for source in (str(path), path.read_bytes(), saved, saved.read_bytes()):
        session = ingot.InferenceSession(source)
        assert [a.name for a in session.get_inputs()] == ["x", "shift"]
        np.testing.assert_array_equal(session.run(["y"], FEEDS)[0], expected)
    with pytest.raises(ImportModelError, match="cannot read"):
        ingot.InferenceSession(tmp_path / "none.onnx")
    with pytest.raises(ImportModelError):
        ingot.InferenceSession(b"\xff" * 100)
    with pytest.raises(ArtifactError):
        ingot.InferenceSession(saved.read_bytes()[:-1])
    with pytest.raises(InputError, match="no options but threads"):
        ingot.InferenceSession(saved, precision="bfloat16")


@pytest.mark.parametrize("module", MODULES)
def test_the_same_calls_run_on_both(module):
    """Each line is one that services have; its result is that of ONNX Runtime."""
    options = module.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = module.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = module.InferenceSession(two_outputs().SerializeToString(), options, providers=["CPUExecutionProvider"])
    total, double, places = session.run(None, {"x": X})
    assert (
        total.tolist() == [5, 5]
        and double.tolist() == (X + X).tolist()
        and places.tolist() == [*map(list, X.nonzero())]
    )
    assert [r.tolist() for r in session.run(["places", "sum"], {"x": X})] == [places.tolist(), total.tolist()]
    assert session.run(["double"], {"x": X.tolist()})[0].dtype == np.float32  # a list
    assert session.run(["double"], {"x": np.asfortranarray(X)})[0].tolist() == double.tolist()
    assert session.run([], {"x": X}, module.RunOptions())[1].shape == (3, 2)
    value = module.OrtValue.ortvalue_from_numpy(X)
    assert (value.shape(), value.data_type(), value.device_name(), value.is_tensor()) == (
        [3, 2],
        "tensor(float)",
        "cpu",
        True,
    )
    assert value.element_type() == 1 and value.has_value()
    assert session.run_with_ort_values(["sum"], {"x": value})[0].numpy().tolist() == [5, 5]
    empty = module.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32)
    empty.update_inplace(X)
    assert empty.numpy().tolist() == X.tolist()
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("double")
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].tolist() == double.tolist()
    target = np.empty((3, 2), np.float32)
    binding.clear_binding_outputs()
    binding.bind_output("double", "cpu", 0, np.float32, target.shape, target.ctypes.data)
    binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
    session.run_with_iobinding(binding)
    assert target.tolist() == double.tolist() and binding.get_outputs()[0].numpy().tolist() == double.tolist()
    for wrong in ({}, {"z": X}):
        with pytest.raises(ValueError):
            session.run(None, wrong)


@pytest.mark.parametrize("module", MODULES)
def test_asynchronous_runs_call_back_with_results_or_an_error(module):
    session = module.InferenceSession(two_outputs().SerializeToString(), providers=["CPUExecutionProvider"])
    done, calls = threading.Semaphore(0), []

    def callback(results, user_data, error):
        calls.append((user_data, [r.tolist() for r in results], error))
        done.release()

    for mark, x in (("good", X), ("bad", X[:, :1])):
        session.run_async(["sum"], {"x": x}, callback, mark)
        assert done.acquire(timeout=20)
    assert calls[0] == ("good", [[5, 5]], "")
    assert calls[1][0] == "bad" and calls[1][2]


def test_options_of_onnx_runtime_itself_are_read_and_the_rest_is_told_once(
    path: Path, caplog: pytest.LogCaptureFixture
):
    from ingot.integrations.onnxruntime.options import ignored

    ignored.cache_clear()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_mem_pattern = 1, False
    providers = [("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
    with caplog.at_level("INFO"):
        ingot.InferenceSession(path, options, providers)
        session = ingot.InferenceSession(path, options, providers)
    facts = [r.message for r in caplog.records if r.name == "ingot.onnxruntime"]
    assert len(facts) == 2 and "enable_mem_pattern" in facts[0] and "target='cuda:sm_90a'" in facts[1]
    assert [r.levelname for r in caplog.records if r.name == "ingot.onnxruntime"] == ["INFO", "WARNING"]
    assert session.model.threads == 1
    value = onnxruntime.OrtValue.ortvalue_from_numpy(FEEDS["x"])
    np.testing.assert_array_equal(
        session.run(None, {"x": value, "shift": FEEDS["shift"]})[0], session.run(None, FEEDS)[0]
    )
    ort_options = ort.SessionOptions()
    ort_options.add_free_dimension_override_by_name("batch", 2)
    assert ingot.InferenceSession(path, ort_options).get_outputs()[0].shape == [2, 4]


def test_strings_pass():
    """ONNX Runtime wants a locale for this op that not each machine has."""
    data = np.array(["a", "bc"], object)
    assert ort.InferenceSession(upper().SerializeToString()).run(None, {"t": data})[0].tolist() == ["A", "BC"]


def test_results_are_written_into_the_callers_arrays(path: Path):
    session = ingot.InferenceSession(path)
    expected = session.run(None, FEEDS)[0]
    y = np.full((2, 4), np.nan, np.float32)
    assert session.run(None, FEEDS, out=[y])[0] is y
    np.testing.assert_array_equal(y, expected)
    session = ingot.InferenceSession(two_outputs().SerializeToString())
    double, places = np.empty((3, 2), np.float32), np.empty((2, 4), np.int64)
    results = session.run(["double", "places", "sum"], {"x": X}, out=[double, places, None])
    assert results[0] is double and results[1] is places and results[2].tolist() == [5, 5]
    assert double.tolist() == (X + X).tolist() and places.tolist() == [*map(list, X.nonzero())]


@pytest.mark.parametrize(
    "outputs, message",
    [
        ([], "1 arrays"),
        ([np.empty((2, 4))], "float64"),
        ([np.empty((2, 3), np.float32)], r"\(2, 3\)"),
        ([np.empty((4, 2), np.float32).T], "C-contiguous"),
        ([np.frombuffer(bytes(32), np.float32).reshape(2, 4)], "writable"),
        ([np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float32).reshape(2, 4)], "aligned"),
        ([FEEDS["x"].reshape(-1)[:8].reshape(2, 4)], "shared memory"),
        (["text"], "str"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(path: Path, outputs, message: str):
    before = FEEDS["x"].copy()
    with pytest.raises(InputError, match=message):
        ingot.InferenceSession(path).run(None, FEEDS, out=outputs)
    np.testing.assert_array_equal(FEEDS["x"], before)


def test_what_cannot_be_asked_is_refused(path: Path):
    session = ingot.InferenceSession(path)
    with pytest.raises(InputError, match="names out of"):
        session.run(["z"], FEEDS)
    with pytest.raises(InputError, match="custom ops"):
        ort.SessionOptions().register_custom_ops_library("x.so")
    with pytest.raises(InputError, match="cpu"):
        ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    with pytest.raises(InputError, match="float32"):
        ort.OrtValue.ortvalue_from_numpy(X).update_inplace(X.astype(np.float64))


def counting_loop() -> onnx.ModelProto:
    """x, n -> x after n turns of a loop, each of which adds 1."""
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "one"], ["w"]), helper.make_node("Identity", ["go"], ["on"])],
        "turn",
        [helper.make_tensor_value_info(name, *kind) for name, kind in (("i", (T.INT64, [])), ("go", (T.BOOL, [])))]
        + [helper.make_tensor_value_info("v", T.FLOAT, [3])],
        [helper.make_tensor_value_info("on", T.BOOL, []), helper.make_tensor_value_info("w", T.FLOAT, [3])],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    return proto(
        [loop], [("x", T.FLOAT, [3]), ("n", T.INT64, [])], [("y", T.FLOAT, [3])], [("one", np.ones(1, np.float32))]
    )


@pytest.mark.parametrize("module", MODULES)
def test_terminate_ends_a_run_and_the_session_goes_on(module):
    session, options = module.InferenceSession(counting_loop().SerializeToString()), module.RunOptions()
    feed = {"x": np.zeros(3, np.float32), "n": np.array(1 << 40)}
    error = ort.RunTerminated if module is ort else Fail
    timer = threading.Timer(0.2, setattr, (options, "terminate", True))
    timer.start()
    with pytest.raises(error, match="terminate"):
        session.run(None, feed, options)
    short_feed = feed | {"n": np.array(5)}
    with pytest.raises(error, match="terminate"):
        session.run(None, short_feed, options)
    options.terminate = False
    for run_options in (options, None):
        assert session.run(None, short_feed, run_options)[0].tolist() == [5, 5, 5]


def test_terminate_ends_runs_of_other_threads_and_of_onnx_runtimes_options():
    session, options = ort.InferenceSession(counting_loop().SerializeToString()), onnxruntime.RunOptions()
    facts, done = [], threading.Event()

    def callback(results, data, error):
        facts.append((results, error))
        done.set()

    session.run_async(None, {"x": np.zeros(3, np.float32), "n": np.array(1 << 40)}, callback, None, options)
    options.terminate = True
    assert done.wait(30) and facts[0][0] == [] and "terminate" in facts[0][1]
