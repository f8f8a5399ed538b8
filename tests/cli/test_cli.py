"""The command line as a user meets it: exit codes, messages, JSON, files."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

import ingot
from ingot import cli
from ingot.cli.console import print_json
from ingot.cli.look import bench as look_bench
from tests.debug import models

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return models.save(models.classifier(), folder / "m.onnx")


def call(*args: object) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in args])


def parse_output(result: Result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(code: int, *args: object) -> str:
    """The error's text; asserts the exit code, and one message without a traceback."""
    result = call(*args)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


# --- help and usage


@pytest.mark.parametrize("command", ["compile", "run", "bench", "dump", "compare", "explain", "tune"])
def test_help_teaches_with_examples(command: str):
    result = call(command, "--help")
    assert result.exit_code == 0
    assert f"ingot {command} model" in result.output


def test_help_tells_the_exit_codes_and_version_is_one_word():
    assert "130 interrupted" in " ".join(call("--help").output.split())
    assert call("--version").output.strip() == ingot.__version__


def test_the_version_imports_nothing_beside_the_package():
    script = (
        "import sys, ingot; before = {*sys.modules}; from ingot.cli import main; sys.argv = ['ingot', '--version']; "
        "main(); print(sorted({*sys.modules} - before))"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split("\n")[:2] == [ingot.__version__, "['ingot.cli']"]


def test_wrong_usage():
    assert call("compile").exit_code == 2
    assert call("frobnicate").exit_code == 2
    assert call("run", "m.onnx", "--threads", "0").exit_code == 2


# --- compile


def test_values_that_decide_the_program_are_inputs_or_constants(tmp_path: Path):
    text = '<ir_version: 9, opset_import: ["": 18]> m (float[n,4] x, int64[1] axes) => (float[] y) '
    code = "{ y = ReduceSum <keepdims = 0> (x, axes) }"
    path = models.save(onnx.parser.parse_model(text + code), tmp_path / "m.onnx")
    np.save(tmp_path / "axes.npy", np.array([1]))
    np.save(tmp_path / "x.npy", np.ones((3, 4), np.float32))
    inputs = ["--input", f"axes={tmp_path / 'axes.npy'}"]
    facts = parse_output(call("run", path, *inputs, "--input", f"x={tmp_path / 'x.npy'}", "--json"))
    assert facts["outputs"][0]["shape"] == [3] and facts["outputs"][0]["max"] == 4
    assert parse_output(call("run", path, *inputs, "--random", "--size", "n=5", "--json"))["outputs"][0]["shape"] == [5]
    assert "--constant axes=VALUE" in refused(2, "compile", path)
    assert parse_output(call("compile", path, "--constant", "axes=[0]", "--json"))["outputs"] == ["y: f32[4]"]


def test_strings_run_from_the_command_line(tmp_path: Path):
    text = '<ir_version: 9, opset_import: ["": 18]> m (string[n] x) => (string[n] y) '
    code = '{ y = StringNormalizer <case_change_action = "UPPER"> (x) }'
    path = models.save(onnx.parser.parse_model(text + code), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array(["a", "bc"]))
    parse_output(call("run", path, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out", "--json"))
    assert np.load(tmp_path / "out" / "y.npy").tolist() == ["A", "BC"]


def test_compile_writes_a_program_that_loads(model: Path):
    facts = parse_output(call("compile", model, "--json"))
    output_path = Path(facts["output"])
    assert output_path == model.with_suffix(".ingot") and facts["file_bytes"] == output_path.stat().st_size
    assert facts["inputs"] == ["image: f32[batch, 1, 8, 8]"]
    x = np.random.default_rng(0).standard_normal((3, 1, 8, 8)).astype(np.float32)
    assert np.asarray(ingot.load(output_path)(x)).shape == (3, 5)


def test_compile_fixes_sizes(model: Path, tmp_path: Path):
    facts = parse_output(
        call("compile", model, "-o", tmp_path / "one.ingot", "--dim", "batch=1", "--threads", 1, "--json")
    )
    assert facts["inputs"] == ["image: f32[1, 1, 8, 8]"] and facts["threads"] == 1


def test_compile_tells_people(model: Path):
    result = call("compile", model)
    assert result.exit_code == 0
    assert "m.ingot" in result.output and "image: f32[batch, 1, 8, 8]" in result.output


def test_compile_writes_a_folder_for_the_web(model: Path):
    facts = parse_output(call("compile", model, "--target", "wasm", "--json"))
    folder = model.with_suffix(".wasm-package")
    assert facts["output"] == str(folder) and (folder / "model.wasm").is_file()
    assert facts["file_bytes"] == sum(p.stat().st_size for p in folder.iterdir())
    call("compile", model, "--target", "wasm", "-o", folder)  # over itself
    assert "a folder for wasm" in refused(2, "compile", model, "--target", "wasm", "-o", model)


def test_nothing_is_written_where_the_folder_is_missing(model: Path, tmp_path: Path):
    assert "an existing folder" in refused(2, "compile", model, "-o", tmp_path / "none" / "m.ingot")


@pytest.mark.parametrize(
    ("name", "fix"), [("m.tflite", "ingot export"), ("m.mlir", "ingot export"), ("m.c", "--target c")]
)
def test_a_program_is_not_written_under_another_formats_name(name: str, fix: str, model: Path, tmp_path: Path):
    assert fix in refused(2, "compile", model, "-o", tmp_path / name) and not (tmp_path / name).exists()


def test_a_model_is_not_written_over(model: Path):
    before = model.read_bytes()
    for command in ("compile", "export"):
        assert "got a file that is read" in refused(2, command, model, "-o", model)
    assert model.read_bytes() == before


def test_a_fault_of_ingots_own_is_told_as_such(model: Path, monkeypatch: pytest.MonkeyPatch):
    def failing(*_: object) -> None:
        raise AssertionError("an invariant [of ours]")

    monkeypatch.setattr("ingot.cli.compile.open_source", failing)
    result = call("compile", model, "--json")
    assert result.exit_code == 4 and json.loads(result.stdout)["kind"] == "AssertionError"
    assert "an invariant [of ours]" in result.stderr and "please report" in result.stderr


def test_a_refused_model_leaves_an_old_program_alone(tmp_path: Path):
    bad = models.save(models.unknown_ops(), tmp_path / "bad.onnx")
    old = tmp_path / "bad.ingot"
    old.write_bytes(b"precious")
    refused(3, "compile", bad)
    assert old.read_bytes() == b"precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.ingot", "bad.onnx"]


def test_every_unsupported_op_is_told_at_once(tmp_path: Path):
    bad = models.save(models.unknown_ops(), tmp_path / "bad.onnx")
    text = refused(3, "compile", bad)
    assert "Frobnicate" in text and "Defenestrate" in text
    result = call("compile", bad, "--json")
    error = json.loads(result.stdout)
    assert result.exit_code == 3 and error["code"] == 3 and error["kind"] == "UnsupportedOpError"
    assert len(error["unsupported"]) == 2


# --- bad input: each a clear message, exit code 2, nothing written


def test_files_that_cannot_be_used(model: Path, tmp_path: Path):
    assert "No such file" in refused(2, "compile", tmp_path / "none.onnx")
    empty = tmp_path / "empty.onnx"
    empty.touch()
    assert "empty" in refused(2, "compile", empty)
    content = model.read_bytes()
    for share in (0.2, 0.5, 0.99):
        cut = tmp_path / "cut.onnx"
        cut.write_bytes(content[: int(len(content) * share)])
        assert "error:" in refused(2, "compile", cut)
    assert not list(tmp_path.glob("*.ingot"))


def test_external_data_outside_the_folder_is_refused(tmp_path: Path):
    (tmp_path / "secret.bin").write_bytes(b"0" * 16)
    folder = tmp_path / "model"
    folder.mkdir()
    text = refused(2, "compile", models.save(models.escaping_data(), folder / "m.onnx"))
    assert "secret.bin" in text


def test_wrong_dims(model: Path):
    assert "NAME=SIZE" in refused(2, "compile", model, "--dim", "batch")
    text = refused(2, "compile", model, "--dim", "batsh=1")
    assert "--dim" in text and "['batch']" in text


@pytest.mark.parametrize(
    "options",
    [
        ["-i", "image=a.npy", "-i", "image=b.npy"],
        ["--random", "--size", "batch=1", "--size", "batch=2"],
        ["--random", "--dim", "batch=1", "--dim", "batch=2"],
        ["--random", "--limit", "nodes=5", "--limit", "nodes=6"],
        ["--random", "--constant", "image=a.npy", "--constant", "image=b.npy"],
    ],
)
def test_what_is_said_twice_is_refused(model: Path, options: list[str]):
    assert "more than once" in refused(2, "run", model, *options)


def test_limits_hold_for_what_was_compiled_before(tmp_path: Path):
    """A function's nodes are written out, which a budget counts; one of more room has a program of its own."""
    node = onnx.helper.make_node
    twice = onnx.helper.make_function("own", "Twice", ["x"], ["z"], [node("Add", ["x", "x"], ["z"])],
                                      [onnx.helper.make_opsetid("", 18)])  # fmt: skip
    x, z = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in "xz")
    calls = [node("Twice", ["x"], ["y"], domain="own"), node("Twice", ["y"], ["z"], domain="own")]
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("own", 1)]
    graph = onnx.helper.make_graph(calls, "g", [x], [z])
    model = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, functions=[twice], opset_imports=opsets, ir_version=10), model)
    assert call("run", model, "--random").exit_code == 0
    assert "--limit nodes=10" in refused(2, "run", model, "--random", "--limit", "nodes=1")
    assert call("run", model, "--random", "--limit", "nodes=50").exit_code == 0


def test_values_that_decide_are_given_ahead(tmp_path: Path):
    """Axes that are an input, and sizes by input and axis, as the file has no names for them."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, None, 4])
    axes = onnx.helper.make_tensor_value_info("axes", onnx.TensorProto.INT64, [1])
    z = onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)
    node = onnx.helper.make_node("ReduceSum", ["x", "axes"], ["z"], keepdims=0)
    graph = onnx.helper.make_graph([node], "g", [x, axes], [z])
    model = tmp_path / "sum.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10), model)
    assert "--constant axes=VALUE" in refused(2, "compile", model)
    facts = parse_output(call("compile", model, "--constant", "axes=[1]", "--dim", "x:0=2:9", "--json"))
    assert facts["inputs"] == ["x: f32[x_0, x_1, 4]"] and facts["outputs"] == ["z: f32[x_0, 4]"]
    outcome = parse_output(call("run", facts["output"], "--random", "--size", "x:0=3,x:1=5", "--json"))
    assert outcome["outputs"][0]["shape"] == [3, 4]
    assert "<= 9, got 10" in refused(2, "run", facts["output"], "--random", "--size", "x:0=10")
    assert "an open axis" in refused(2, "run", facts["output"], "--random", "--size", "x:2=4")
    np.save(tmp_path / "axes.npy", np.array([0]))
    facts = parse_output(call("compare", model, "--constant", f"axes={tmp_path / 'axes.npy'}", "--json"))
    assert facts["ok"]
    assert "what int64 holds" in refused(2, "compile", model, "--constant", "axes=[0.5]")
    assert "['x', 'axes']" in refused(2, "compile", model, "--constant", "axis=[0]")
    assert "nested lists" in refused(2, "compile", model, "--constant", "axes=one")


def test_a_full_disk_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    text = refused(2, "compile", model, "-o", tmp_path / "m.ingot", "--no-cache")
    assert "No space left on device" in text
    assert not [p for p in tmp_path.iterdir() if p.is_file()]


def test_a_damaged_program_is_refused(model: Path):
    output_path = Path(parse_output(call("compile", model, "--json"))["output"])
    data = bytearray(output_path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    output_path.write_bytes(data)
    assert "error:" in refused(2, "run", output_path, "--random")
    output_path.write_bytes(data[: len(data) // 3])
    assert "error:" in refused(2, "run", output_path, "--random")


# --- run


def test_run_reads_and_writes_arrays(model: Path, tmp_path: Path):
    x = np.random.default_rng(0).standard_normal((2, 1, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    facts = parse_output(
        call("run", model, "-i", f"image={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out", "--json")
    )
    (output,) = facts["outputs"]
    assert output["shape"] == [2, 5] and output["dtype"] == "float32"
    y = np.load(output["file"])
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-5)
    assert (tmp_path / "out" / "probability.npy").exists()


def test_run_on_random_inputs_is_repeatable(model: Path):
    outputs = [
        parse_output(call("run", model, "--random", "--size", "batch=4", "--json"))["outputs"][0] for _ in range(2)
    ]
    assert outputs[0] == outputs[1] and outputs[0]["shape"] == [4, 5]
    assert "probability" in call("run", model, "--random").output


def test_what_a_program_has_settled_is_not_asked_of_it(model: Path):
    output_path = parse_output(call("compile", model, "--json"))["output"]
    for option in (["--target", "c"], ["--precision", "bfloat16"], ["--fast-math"]):
        assert "settled" in refused(2, "run", output_path, "--random", *option)
    assert call("run", output_path, "--random", "--target", "cpu").exit_code == 0


def test_run_refuses_inputs_that_do_not_fit(model: Path, tmp_path: Path):
    assert "image" in refused(2, "run", model)
    for name, array in (("rank", np.zeros(3, np.float32)), ("dtype", np.zeros((1, 1, 8, 8))),
                        ("size", np.zeros((1, 1, 8, 9), np.float32))):  # fmt: skip
        np.save(tmp_path / f"{name}.npy", array)
        assert "expected" in refused(2, "run", model, "-i", f"image={tmp_path / name}.npy")
    assert "cannot read" in refused(2, "run", model, "-i", f"image={tmp_path / 'none.npy'}")
    for size in (10**16, 10**18, 10**30):
        assert "not enough memory" in refused(2, "run", model, "--random", "--size", f"batch={size}")


# --- dump


def test_dump_lists_passes_and_kernels(model: Path):
    facts = parse_output(call("dump", model, "--json"))
    names = [p["name"] for p in facts["passes"]]
    assert "lower" in names and "fuse" in names and facts["kernels"]
    for name in ("model", "lower", "fuse"):
        assert call("dump", model, "--after", name).output.startswith("graph(")
    assert "fuse" in refused(2, "dump", model, "--after", "refuse")


def test_dump_shows_kernels_in_three_forms(model: Path):
    kernel = next(k for k in parse_output(call("dump", model, "--json"))["kernels"] if k.startswith("contraction"))
    assert kernel in call("dump", model, "--kernel", kernel).output
    assert f"define void @{kernel}" in call("dump", model, "--kernel", kernel, "--llvm").output
    assert f"{kernel}:" in call("dump", model, "--kernel", kernel.rpartition("_")[2], "--asm").output
    assert kernel in refused(2, "dump", model, "--kernel", "none")
    assert "--kernel" in refused(2, "dump", model, "--asm")
    assert "--llvm and --asm" in refused(2, "dump", model, "--kernel", kernel, "--llvm", "--asm")
    assert "--after and --plan" in refused(2, "dump", model, "--after", "fuse", "--plan")


def test_dump_shows_the_plan_of_models_and_programs(model: Path):
    output_path = parse_output(call("compile", model, "--json"))["output"]
    for path in (model, output_path):
        assert "symbol batch" in call("dump", path, "--plan").output
        assert "arena" in call("dump", path, "--plan", "--size", "batch=2").output
    assert call("dump", output_path, "--after", "fused").output.startswith("graph(")


def test_dump_shows_what_this_machine_cannot_run(model: Path, tmp_path: Path):
    other = tmp_path / "other.ingot"
    call("compile", model, "--target", "null:cuda", "-o", other)
    for arguments in ((other,), (model, "--target", "null:cuda")):
        assert "symbol batch" in call("dump", *arguments, "--plan").output
    assert "triton" in refused(2, "dump", model, "--kernel", "0", "--triton")


# --- compare and explain


def test_compare_agrees(model: Path):
    facts = parse_output(call("compare", model, "--size", "batch=2", "--json"))
    assert facts["ok"] and facts["blame"] is None
    assert {c["output"] for c in facts["checks"]} == {"probability"}
    result = call("compare", model, "--size", "batch=2")
    assert result.exit_code == 0 and "interpreter" in result.output


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_precision(model: Path, precision: str):
    assert parse_output(call("compile", model, "--precision", precision, "--json"))["output"]
    assert parse_output(call("compare", model, "--precision", precision, "--size", "batch=2", "--json"))["ok"]
    assert (
        parse_output(call("run", model, "--precision", precision, "--random", "--json"))["outputs"][0]["dtype"]
        == "float32"
    )
    assert "convert" in call("dump", model, "--precision", precision, "--after", "precision").output
    assert "float32 or bfloat16 or float16" in refused(2, "compile", model, "--precision", "int8")


def test_words_of_other_projects_lead_to_the_right_one(model: Path):
    words = {"fp16": "it is called float16", "BF16": "it is called bfloat16", "int8": "ingot quantize", "q4": "ingot q"}
    for word, told_word in words.items():
        assert told_word in refused(2, "compile", model, "--precision", word)
    targets = {"gpu": "write cuda", "arm64": "cpu:aarch64", "znver4": "write cpu:znver4", "tpu": "ingot export"}
    for word, told_word in targets.items():
        assert told_word in refused(2, "compile", model, "--target", word)
    assert ";" not in refused(2, "compile", model, "--target", "abacus")


def test_inspect_compiles_nothing(model: Path, tmp_path: Path):
    file = tmp_path / "g.svg"
    facts = parse_output(call("inspect", model, "--svg", file, "--json"))
    assert facts["inputs"] == ["image: f32[batch,1,8,8]"] and facts["outputs"] == ["probability: f32[batch,5]"]
    assert facts["file_ops"]["Conv"] == 1 and facts["ops"]["conv"] == 1 and not facts["unsupported"]
    assert facts["parameters"] == 12 * 9 + 12 + 5 * 192 + 5
    assert {layer["name"]: layer["count"] for layer in facts["layers"]} == {"conv": 120, "dense": 965}
    texts = {e.text for e in ElementTree.fromstring(file.read_text()).iter("{http://www.w3.org/2000/svg}text")}
    assert {"image", "conv", "softmax"} <= texts
    assert not (tmp_path / "cache").exists()
    result = call("inspect", models.save(models.tokens(), tmp_path / "t.onnx"))
    assert "66 parameters" in result.output and "1 Gather, 1 ReduceMean" in result.output


def test_sizes_that_decide_the_program(tmp_path: Path):
    """A rank that n == 1 decides: inspect tells it, and run takes sizes for one program."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[b,n] x) => (float[c] y)
        <int64[1] axis = {1}, int64 one = {1}> { s = Shape(x) n = Gather(s, one) p = Equal(n, one)
        y = If(p) <then_branch = t () => (float[d] u) {u = Squeeze(x, axis)}, else_branch = e () => (float[d,f] v)
        {v = Neg(x)}> }"""
    file = models.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    assert parse_output(call("inspect", file, "--json"))["deciders"] == ["sizes"]
    assert "--dim NAME=SIZE" in call("inspect", file).output
    assert "--dim" in refused(2, "run", file, "--random")
    for n, shape in ((1, [3]), (2, [3, 2])):
        facts = parse_output(call("run", file, "--random", "--size", f"b=3,n={n}", "--json"))
        assert facts["outputs"][0]["shape"] == shape


def test_inspect_tells_what_is_not_supported(tmp_path: Path):
    node = onnx.helper.make_node("Mystery", ["x"], ["y"], "odd", domain="example")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [info("x", 1, [2])], [info("y", 1, [2])])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("example", 1)]
    file = models.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "odd.onnx")
    result = call("inspect", file, "--json")
    facts = json.loads(result.stdout)
    assert (
        result.exit_code == 3 and facts["file_ops"] == {"example::Mystery": 1} and "Mystery" in facts["unsupported"][0]
    )
    assert facts["inputs"] and "Mystery" in refused(3, "inspect", file)


def test_the_cache_is_listed_and_cleared(model: Path, tmp_path: Path):
    parse_output(call("run", model, "--random", "--json"))
    entries = parse_output(call("cache", "list", "--json"))["entries"]
    assert {"program"} <= {e["kind"] for e in entries}
    used = [e["used"] for e in entries]
    assert used == sorted(used, reverse=True)
    facts = parse_output(call("cache", "size", "--json"))
    assert facts["entries"] == len(entries) and facts["bytes"] == sum(e["bytes"] for e in entries)
    assert facts["folder"] == str(tmp_path / "cache")
    assert parse_output(call("cache", "list", "--json"))["entries"] == entries  # to look is no use
    assert parse_output(call("cache", "clear", "--older-than", 1, "--json"))["entries"] == 0
    assert parse_output(call("cache", "clear", "--json"))["bytes"] == facts["bytes"]
    assert parse_output(call("cache", "size", "--json"))["entries"] == 0
    assert "0 entries" in call("cache", "list").output


def test_prune_writes_a_program_with_zeros(model: Path, tmp_path: Path):
    path = tmp_path / "small.ingot"
    facts = parse_output(
        call("prune", model, "--sparsity", "0.2", "--sparsity", "den*=0.9", "--block", 1, "-o", path, "--json")
    )
    assert facts["sparsity"]["dense"] == pytest.approx(0.9, abs=0.01)
    assert facts["sparsity"]["conv"] == pytest.approx(0.2, abs=0.02)
    image = np.random.default_rng(0).standard_normal((2, 1, 8, 8)).astype(np.float32)
    pruned = ingot.prune(model, {"*": 0.2, "den*": 0.9}, block=1)
    np.testing.assert_array_equal(ingot.load(path)(image), pruned(image))
    assert "NAME=0.9" in refused(2, "prune", model, "--sparsity", "much")
    assert "names of products" in refused(2, "prune", model, "--sparsity", "none*=0.5")


def test_compare_with_an_impossible_tolerance_is_a_mismatch(model: Path):
    result = call("compare", model, "--size", "batch=2", "--tolerance", "0")
    assert result.exit_code == 1
    assert "nobody is to blame: the differences are of rounding size" in result.output
    checks = json.loads(call("compare", model, "--size", "batch=2", "--json").stdout)["checks"]
    assert {c["agreement"]["size"] for c in checks} <= {"none", "rounding"}


def picture(path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.arange(6 * 9 * 3, dtype=np.uint8).reshape(6, 9, 3)).save(path)
    return path


def test_own_data_decide_the_sizes(model: Path, tmp_path: Path):
    rows = np.random.default_rng(0).standard_normal((3, 1, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    np.savez(tmp_path / "all.npz", image=rows)
    np.savez(tmp_path / "one.npz", anything=rows)
    expected = ingot.compile(model)(rows)
    for data in ("x.npy", "all.npz", "image=one.npz"):
        name, _, file = data.rpartition("=")
        parse_output(
            call(
                "run",
                model,
                "--input",
                f"{name}{'=' * bool(name)}{tmp_path / file}",
                "--output-dir",
                tmp_path,
                "--json",
            )
        )
        np.testing.assert_array_equal(np.load(tmp_path / "probability.npy"), expected)
    argument = f"image={tmp_path / 'x.npy'}"
    assert {c["sizes"]["batch"] for c in parse_output(call("compare", model, "-i", argument, "--json"))["checks"]} == {
        3
    }
    assert parse_output(call("explain", model, "-i", argument, "--repeats", 1, "--json"))["sizes"] == {"batch": 3}
    bench = parse_output(
        call("bench", model, "-i", argument, "--against", "", "--rounds", 1, "--seconds", 0.01, "--json")
    )
    assert bench["inputs"] == {"image": [3, 1, 8, 8]}
    (tmp_path / "bad.npz").write_bytes(b"PK")
    np.savez(tmp_path / "other.npz", wrong=rows)
    for wrong in ("bad.npz", "other.npz"):
        assert "--input" in refused(2, "run", model, "-i", tmp_path / wrong) or wrong == "bad.npz"
    np.save(tmp_path / "flat.npy", rows.ravel())
    for command in ("run", "compare", "explain", "bench"):
        assert "image" in refused(2, command, model, "-i", f"image={tmp_path / 'flat.npy'}")


def test_pictures_are_inputs(model: Path, tmp_path: Path):
    file = picture(tmp_path / "dog.png")
    assert parse_output(call("run", model, "-i", f"image={file}", "--json"))["outputs"][0]["shape"] == [1, 5]
    assert parse_output(call("compare", model, "-i", file, "--json"))["ok"]
    (tmp_path / "no.png").write_bytes(b"none")
    assert "expected a picture" in refused(2, "run", model, "-i", tmp_path / "no.png")


def test_inner_values_of_onnx_models(model: Path, tmp_path: Path):
    values, all_values = tmp_path / "values.npz", tmp_path / "both.npz"
    facts = parse_output(call("run", model, "--random", "--outputs", "r", "--json"))["outputs"]
    assert [f["name"] for f in facts] == ["r"] and facts[0]["shape"] == [1, 12, 8, 8] and facts[0]["min"] == 0
    parse_output(call("run", model, "--random", "--all-values", values, "--json"))
    with np.load(values) as results:
        assert set(results.files) == {"c", "r", "p", "f", "l", "probability"}
        np.testing.assert_array_equal(results["r"], np.maximum(results["c"], 0))
    compared = parse_output(call("compare", model, "--all-values", all_values, "--size", "batch=2", "--json"))
    assert compared["ok"] and {c["output"] for c in compared["checks"]} == {"c", "r", "p", "f", "l", "probability"}
    with np.load(all_values) as results:
        np.testing.assert_allclose(results["r"], results["r (interpreter)"], atol=1e-5)
    assert "outputs" in refused(2, "run", model, "--random", "--outputs", "nothing")
    assert "--all-values" in refused(2, "run", model, "--random", "--outputs", "r", "--all-values", values)


def test_compare_says_that_all_is_nan(model: Path, tmp_path: Path):
    np.save(tmp_path / "nan.npy", np.full((1, 1, 8, 8), np.nan, np.float32))
    result = call("compare", model, "-i", tmp_path / "nan.npy")
    assert result.exit_code == 0 and "all 5 values are NaN, as expected" in " ".join(result.output.split())


def test_compare_checks_a_saved_program(model: Path, tmp_path: Path):
    other = models.save(models.classifier(), tmp_path / "other.onnx")
    output_path = parse_output(call("compile", other, "--json"))["output"]
    assert parse_output(call("compare", model, "--program", output_path, "--size", "batch=2", "--json"))["ok"]


def test_explain_writes_a_table_a_trace_and_a_page(model: Path, tmp_path: Path):
    page, trace = tmp_path / "r.html", tmp_path / "t.json"
    result = call("explain", model, "--repeats", 1, "--html", page, "--trace", trace, "--size", "batch=2")
    assert result.exit_code == 0, result.output
    assert "floor" in result.output and "relu" in result.output
    assert str(page) in result.output and str(trace) in result.output
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]
    facts = parse_output(call("explain", model, "--repeats", 1, "--json"))
    assert facts["sizes"] == {"batch": 1} and facts["rates"]["gflops"] > 0


def test_compare_refuses_a_program_of_another_model(model: Path, tmp_path: Path):
    other = models.save(models.tokens(), tmp_path / "other.onnx")
    output_path = parse_output(call("compile", other, "--json"))["output"]
    assert "is no program of" in refused(2, "compare", model, "--program", output_path)


def test_compare_tries_sizes_that_the_model_takes(tmp_path: Path):
    pytest.importorskip("onnxruntime")
    model = models.save(models.patches(), tmp_path / "m.onnx")  # a window of 8, which smaller images have no place for
    facts = parse_output(call("compare", model, "--json"))
    assert facts["ok"] and {c["sizes"]["w"] for c in facts["checks"]} == {128, 33, 8}
    assert not facts["refused"]
    assert "expected w >= 8, got 7" in refused(2, "compare", model, "--size", "w=7")


# --- bench and the process


def test_bench_runs_each_engine_in_its_process(model: Path):
    pytest.importorskip("onnxruntime")
    facts = parse_output(call("bench", model, "--against", "ort", "--rounds", 1, "--seconds", 0.01, "--json"))
    ours, theirs = facts["results"]
    assert ours["engine"] == "ingot" and ours["seconds"] > 0 and ours["ratio"] is None
    assert theirs["engine"] == "ort" and theirs["ratio"] > 0 and theirs["error"] < 1e-5


def test_bench_tells_percentiles_of_streams_and_writes_a_table(model: Path, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    file = tmp_path / "figures.csv"
    options = ("--streams", 2, "--rounds", 2, "--seconds", 0.01, "--warm-up", 0.01, "--dim", "batch=2", "--csv", file)
    facts = parse_output(call("bench", model, "--against", "ort", *options, "--json"))
    assert facts["inputs"] == {"image": [2, 1, 8, 8]} and facts["streams"] == 2
    for r in facts["results"]:
        assert r["best"] <= r["seconds"] and r["p50"] <= r["p90"] <= r["p99"] and r["calls_per_second"] > 0
    with file.open() as table:
        rows = [*csv.DictReader(table)]
    assert [row["engine"] for row in rows] == ["ingot", "ort"] and float(rows[1]["ratio"]) > 0


@pytest.mark.parametrize(
    "name, engine, package",
    [pytest.param("m.mlir", "jax", "jax", marks=pytest.mark.slow), ("m.tflite", "tflite", "ai_edge_litert")],
)
def test_bench_beside_the_engines_of_other_formats(model: Path, tmp_path: Path, name: str, engine: str, package: str):
    pytest.importorskip(package)
    pytest.importorskip("flatbuffers")
    file = tmp_path / name
    inline = ["--inline"] if engine == "jax" else []
    assert call("export", model, "-o", file, "--dim", "batch=2", *inline).exit_code == 0
    facts = parse_output(call("bench", file, "--rounds", 1, "--seconds", 0.01, "--json"))
    assert [r["engine"] for r in facts["results"]] == ["ingot", engine]
    assert facts["results"][1]["error"] < 1e-5


def test_bench_says_which_engine_cannot_run(model: Path):
    result = call("bench", model, "--against", "inductor", "--rounds", 1, "--seconds", 0.01)
    assert result.exit_code == 3
    assert "ingot" in result.stdout and "inductor" in result.stderr
    assert "engines of" in refused(2, "bench", model, "--against", "abacus")


def test_bench_goes_without_an_engine_that_nobody_asked_for(model: Path, monkeypatch: pytest.MonkeyPatch):
    """As after README's installation."""
    monkeypatch.setitem(look_bench.DEFAULT_ENGINES, "onnx", "eager")
    result = call("bench", model, "--rounds", 1, "--seconds", 0.01)
    assert result.exit_code == 0 and "eager" in result.stderr


def test_a_command_that_is_mistyped_is_guessed():
    assert "Did you mean 'tune'" in refused(2, "tun")


def test_an_output_that_is_not_there_is_refused_with_where_names_are(model: Path):
    assert "--all-values" in refused(2, "run", model, "--random", "--outputs", "nope")


def test_what_a_model_lacks_for_a_target_is_a_mistake_of_use(model: Path, tmp_path: Path):
    assert "--dim NAME=SIZE" in refused(2, "compile", model, "-o", tmp_path / "m.so")


def test_the_command_in_a_process_of_its_own(model: Path):
    """Standard output carries JSON alone, no progress is drawn where standard error is no terminal."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "ingot", "run", str(model), "--random", "--json"],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(done.stdout)["outputs"][0]["name"] == "probability"


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal")
@pytest.mark.parametrize("option", ["", pytest.param("--quiet", marks=pytest.mark.slow), "--json"])
def test_progress_is_shown_on_a_terminal_unless_asked_not_to(model: Path, tmp_path: Path, option: str):
    import pty

    terminal, other = pty.openpty()
    command = [sys.executable, "-m", "ingot", "prune", str(model), "--sparsity", "0.5", "-o", str(tmp_path / "p.ingot")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "TERM": "xterm"}
    done = subprocess.run(
        [*command, *filter(None, [option])], stdout=subprocess.PIPE, stderr=other, env=environment, timeout=120,
        check=True,
    )  # fmt: skip
    os.close(other)
    screen = b""
    with suppress(OSError):  # the end of a terminal
        while part := os.read(terminal, 1 << 16):
            screen += part
    os.close(terminal)
    assert done.stdout and (b"0:00:0" in screen) == (option == ""), screen


# --- tune


def test_tune_writes_a_database_that_compiling_reads(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "db.jsonl"
    results = parse_output(call("tune", model, "--budget", 1, "--threads", 2, "--database", path, "--json"))
    assert results["untuned_seconds"] > 0 and results["seconds"] > 0 and path.is_file()
    assert {"kernel", "result", "untuned_seconds", "seconds", "choice", "state"} <= set(results["rows"][0])
    monkeypatch.setenv("INGOT_TUNING", str(path))
    output = call("tune", model, "--budget", 1, "--threads", 2)
    assert output.exit_code == 0 and "untuned" in output.output


def test_tune_rewrites_tells_what_it_found(model: Path, tmp_path: Path):
    path = tmp_path / "own.jsonl"
    options = ["--rewrites", "--fast-math", "--budget", 2, "--threads", 1, "--database", path]
    results = parse_output(call("tune", model, *options, "--json"))
    assert {"machine", "rows", "rewrites", "gain"} <= set(results) and path.is_file()
    assert "kept; a call" in call("tune", model, *options).output
    assert "--rewrites: expected this machine's CPU alone" in refused(2, "tune", model, *options, "--workers", 2)


def test_tune_refuses_what_it_cannot_write_to(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    assert "not a database" in refused(2, "tune", model, "--budget", 1, "--database", other)
    assert other.read_text() == "mine"
    refused(2, "tune", model, "--database", tmp_path / "no folder" / "db.jsonl")
    monkeypatch.setenv("INGOT_TUNING", "0")
    assert "--database" in refused(2, "tune", model)


# --- train


@pytest.mark.slow
def test_train_goes_on_where_it_was_killed(tmp_path: Path):
    text = (
        '<ir_version: 10, opset_import: ["" : 18]> m (float[n,6] x) => (float[n,3] y)'
        "<float[6,8] a, float[8,3] b> { h = MatMul(x, a) r = Relu(h) y = MatMul(r, b) }"
    )
    net = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    net.graph.ClearField("initializer")
    weights = {"a": rng.standard_normal((6, 8)), "b": rng.standard_normal((8, 3))}
    net.graph.initializer.extend(onnx.numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items())
    onnx.save(net, tmp_path / "m.onnx")
    x = rng.standard_normal((50, 6)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, label=x[:, :3].argmax(1))
    common = (
        "train", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "--loss", "cross_entropy", "--lr", 0.05,
        "--batch", 8, "--metric", "accuracy", "--threads", 1, "--json",
    )  # fmt: skip
    uninterrupted = parse_output(
        call(*common, "--epochs", 6, "-o", tmp_path / "whole.onnx", "--curve", tmp_path / "loss.svg")
    )
    assert (
        uninterrupted["calls"] == 36
        and uninterrupted["loss"] < uninterrupted["first_loss"]
        and 0 <= uninterrupted["accuracy"] <= 1
    )
    assert (tmp_path / "loss.svg").read_text().startswith("<svg")
    checkpoint_options = ("--checkpoint", tmp_path / "c.safetensors", "--resume")
    parse_output(call(*common, *checkpoint_options, "--epochs", 2, "-o", tmp_path / "part.onnx"))
    rest = parse_output(call(*common, *checkpoint_options, "--epochs", 6, "-o", tmp_path / "part.onnx"))
    assert rest["calls"] == 36 and rest["loss"] == uninterrupted["loss"]
    assert (tmp_path / "part.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()
    assert "samples" in refused(2, *common, *checkpoint_options, "--seed", 7)
    assert "adamw" in refused(2, *common, "--optimizer", "sga")
    assert "NAME" in refused(2, *common, "--target", "gpu")
    assert "cannot run here" in refused(2, *common, "--target", "null")
    before = (tmp_path / "d.npz").read_bytes()
    for option in ("--checkpoint", "--curve", "-o"):
        assert "a file that is read" in refused(2, *common, option, tmp_path / "d.npz")
    assert "another result" in refused(
        2, *common, "--curve", tmp_path / "c", "--checkpoint", tmp_path / ".." / tmp_path.name / "c"
    )
    assert (tmp_path / "d.npz").read_bytes() == before
    for label, words in (
        (np.full(50, 3, np.int16), "0 to 2"),
        (np.full(50, -1, np.int32), "0 to 2"),
        (np.full(50, 0.5), "dtype i64"),
        (np.zeros(0, np.int64), "at least one"),
    ):
        np.savez(tmp_path / "d.npz", x=x[: len(label)], label=label)
        assert words in refused(2, *common)
    np.savez(tmp_path / "d.npz", x=x, a=label, b=label)
    assert "--labels a" in refused(2, *common)
    np.savez(tmp_path / "d.npz", x=x.astype(np.float64), label=(x[:, :3].argmax(1)).astype(np.uint8))
    report = parse_output(call(*common, "--epochs", 6, "-o", tmp_path / "same.onnx"))
    assert report["loss"] == uninterrupted["loss"]
    x[:, 2] = np.nan
    np.savez(tmp_path / "d.npz", x=x, label=np.zeros(50, np.int64))
    lost = parse_output(call(*common, "-o", tmp_path / "lost.onnx"))
    assert (lost["first_not_finite"], lost["first_loss"], lost["loss"]) == (1, None, None)
    assert uninterrupted["first_not_finite"] is None
    assert "not finite from call 1 on" in call(*common[:-1], "-o", tmp_path / "lost.onnx").output


def test_json_has_null_for_numbers_that_are_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [np.nan, 1.5, (np.float32(np.inf), np.int64(3))], "b": {"c": -np.inf, "d": True, "e": None}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5, [None, 3]], "b": {"c": None, "d": True, "e": None}}
