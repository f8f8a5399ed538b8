"""Files: weights by mapping, external data inside its folder only, damaged files refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ingot.frontends.onnx import import_onnx
from ingot.frontends.onnx.tensors import ExternalData, to_array
from ingot.ir.interp import interpret
from ingot.ir.node import Const
from ingot.support.errors import ImportModelError, LimitError
from ingot.support.limits import Limits, limited
from tests.runtime import models

WEIGHT = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)


def model(weight: onnx.TensorProto | None = None) -> onnx.ModelProto:
    """y = x @ w."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
        [weight if weight is not None else numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def external(location: str, offset: int = 0, length: int = WEIGHT.nbytes) -> onnx.ModelProto:
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=WEIGHT.shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        w.external_data.add(key=key, value=value)
    return model(w)


def save(m: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(m.SerializeToString())
    return path


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    graph = import_onnx(save(model(), tmp_path))
    (weight,) = [n.op.value for n in graph.nodes() if isinstance(n.op, Const)]
    np.testing.assert_array_equal(weight, WEIGHT)
    assert not weight.flags.owndata and not weight.flags.writeable


def test_file_and_proto_give_the_same_results(tmp_path: Path) -> None:
    x = np.ones((3, 64), np.float32)
    from_file, from_proto = (interpret(import_onnx(s), [x])[0] for s in (save(model(), tmp_path), model()))
    np.testing.assert_array_equal(from_file, from_proto)
    np.testing.assert_allclose(from_file, x @ WEIGHT)


@pytest.mark.parametrize("fraction", [0.02, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, fraction: float) -> None:
    path = save(model(), tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * fraction)])
    with pytest.raises(ImportModelError):
        import_onnx(path)


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"not a model", b"\x00" * 64])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ImportModelError):
        import_onnx(path)


@pytest.mark.parametrize("name", [b"MatMul", b"y", b"g"])
def test_a_name_that_is_no_text_is_refused(tmp_path: Path, name: bytes) -> None:
    path = save(model(), tmp_path)
    length = bytes([len(name)])
    path.write_bytes(path.read_bytes().replace(length + name, length + b"\xf6" + name[1:]))
    with pytest.raises(ImportModelError, match="expected names in UTF-8"):
        import_onnx(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match="cannot read the model"):
        import_onnx(tmp_path / "none.onnx")


def test_external_data_is_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"head" + WEIGHT.tobytes())
    graph = import_onnx(save(external("w.bin", offset=4), tmp_path))
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(interpret(graph, [x])[0], x @ WEIGHT)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "", "sub/../../w.bin", "..\\w.bin"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ImportModelError):
        import_onnx(save(external(location), folder))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(ImportModelError, match="outside the model's folder"):
        import_onnx(save(external("w.bin"), folder))


@pytest.mark.parametrize(
    "way", ["the snapshot's", "a link to the snapshot's", "blobs that are elsewhere", "another folder"]
)
def test_a_model_in_a_cache_of_links(tmp_path: Path, way: str) -> None:
    """As Hugging Face's hub keeps files: links to blobs, which are beside the snapshots."""
    cache = tmp_path / "models--a--b"
    blobs, snapshot = cache / "blobs", cache / "snapshots" / "1f2e" / "onnx"
    snapshot.mkdir(parents=True)
    real = tmp_path / "secrets" if way == "blobs that are elsewhere" else blobs
    real.mkdir()
    if real != blobs:
        blobs.symlink_to(real)
    (tmp_path / "w").write_bytes(WEIGHT.tobytes())
    (real / "9c0d").write_bytes(WEIGHT.tobytes())
    save(external("w.bin"), tmp_path).rename(real / "77aa")
    (snapshot / "w.bin").symlink_to("../../../../w" if way == "another folder" else "../../../blobs/9c0d")
    (snapshot / "m.onnx").symlink_to("../../../blobs/77aa")
    path = snapshot / "m.onnx"
    if way == "a link to the snapshot's":
        path = tmp_path / "mine.onnx"
        path.symlink_to(snapshot / "m.onnx")
    if "snapshot" not in way:
        with pytest.raises(ImportModelError, match="outside the model's folder"):
            import_onnx(path)
        return
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(interpret(import_onnx(path), [x])[0], x @ WEIGHT)


def test_truncated_external_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes()[:-1])
    with pytest.raises(ImportModelError, match="truncated"):
        import_onnx(save(external("w.bin"), tmp_path))


def test_missing_external_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match="cannot read the external data"):
        import_onnx(save(external("w.bin"), tmp_path))


def test_a_wrong_length_of_external_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    with pytest.raises(ImportModelError, match="wrong length"):
        import_onnx(save(external("w.bin", length=16), tmp_path))


def test_a_shape_larger_than_its_data_is_refused_before_allocation() -> None:
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(1 << 40, 1 << 20), raw_data=b"\0" * 16)
    with pytest.raises(ImportModelError, match="does not fit its shape"):
        import_onnx(model(w))


@pytest.mark.parametrize(
    "dtype",
    [np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.uint16, np.bool_, np.uint64, ml_dtypes.float8_e4m3fn],
)
def test_raw_data_of_each_type(dtype: type) -> None:
    want = np.array([[0, 1], [1, 0], [2, 3]]).astype(dtype)
    tensor = numpy_helper.from_array(want, "w")
    np.testing.assert_array_equal(to_array(tensor, ExternalData(None)), want)


def test_packed_four_bit_integers() -> None:
    values = [-8, -1, 0, 7, 3]
    tensor = helper.make_tensor("w", TensorProto.INT4, [5], values)
    np.testing.assert_array_equal(to_array(tensor, ExternalData(None)).astype(np.int8), values)
    tensor = helper.make_tensor("w", TensorProto.UINT4, [3], [0, 15, 9])
    np.testing.assert_array_equal(to_array(tensor, ExternalData(None)).astype(np.int8), [0, 15, 9])


@pytest.mark.parametrize(
    ("code", "values"),
    [
        (TensorProto.FLOAT16, [0.5, -2.0]),
        (TensorProto.BFLOAT16, [0.5, -2.0]),
        (TensorProto.INT32, [-5, 7]),
        (TensorProto.UINT32, [5, 2**32 - 1]),
        (TensorProto.DOUBLE, [0.1, 1e300]),
        (TensorProto.BOOL, [True, False]),
    ],
)
def test_typed_fields(code: int, values: list[int] | list[float]) -> None:
    tensor = helper.make_tensor("w", code, [2], values)
    np.testing.assert_array_equal(to_array(tensor, ExternalData(None)), numpy_helper.to_array(tensor))


@pytest.mark.parametrize("far", [1 << 31, 1 << 40, 1 << 62])
def test_windows_that_no_position_reaches(far: int) -> None:
    pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], dilations=[far, far], pads=[far] * 4)
    x = helper.make_tensor_value_info("x", 1, [1, 1, "h", 8])
    y = helper.make_tensor_value_info("y", 1, None)
    model = helper.make_model(helper.make_graph([pool], "g", [x], [y]))
    with pytest.raises(ImportModelError, match="numbers below"):
        import_onnx(model)


def _function(name: str, nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, ["x"], ["y"], nodes, opsets)


def test_functions_that_double_are_written_out_up_to_a_limit() -> None:
    functions = [_function("f0", [helper.make_node("Tanh", ["x"], ["y"])])]
    for i in range(1, 40):
        calls = [helper.make_node(f"f{i - 1}", [a], [b], domain="f") for a, b in (("x", "t"), ("t", "y"))]
        functions.append(_function(f"f{i}", calls))
    x, y = (helper.make_tensor_value_info(name, 1, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("f39", ["x"], ["y"], domain="f")], "g", [x], [y])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    model = helper.make_model(graph, functions=functions, opset_imports=opsets)
    with limited(Limits(nodes=500)), pytest.raises(LimitError, match="nodes=5000"):
        import_onnx(model)


def test_loops_that_double_what_they_carry_end() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["k"], ["go"]), helper.make_node("Concat", ["s", "s"], ["o"], axis=0)], "b",
        [helper.make_tensor_value_info(n, t, []) for n, t in (("i", 7), ("k", 9), ("s", 1))],
        [helper.make_tensor_value_info(n, t, []) for n, t in (("go", 9), ("o", 1))],
    )  # fmt: skip
    for count, is_valid in ((20, True), (60, False)):
        trips = onnx.numpy_helper.from_array(np.array(count, np.int64), "n")
        loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
        x, y = helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("y", 1, None)
        model = helper.make_model(helper.make_graph([loop], "g", [x], [y], [trips]))
        if is_valid:
            assert import_onnx(model).outputs[0].shape == (2 << count,)
        else:
            with pytest.raises(LimitError, match="elements"):
                import_onnx(model)


def test_sizes_whose_text_nests_are_symbols() -> None:
    x = helper.make_tensor_value_info("x", 1, ["(" * 3000 + "n" + ")" * 3000])
    y = helper.make_tensor_value_info("y", 1, None)
    model = helper.make_model(helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "g", [x], [y]))
    assert import_onnx(model).inputs[0].type.rank == 1


def test_a_model_is_read_without_the_package_around_its_messages(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from ingot.frontends.onnx import import_onnx
        from ingot.frontends.onnx.protos import ModelProto
        import_onnx(sys.argv[1])
        assert "onnx" not in sys.modules
        import onnx
        assert onnx.ModelProto is ModelProto
        import_onnx(onnx.load(sys.argv[1]))
    """
    path = save(model(), tmp_path)
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60, env=models.environment())
