"""`ingot serve` as a process: from a file to an answer, and Triton's files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("uvicorn")

import ingot
from tests.cli.test_cli import call, refused
from tests.language import tiny
from tests.serving.models import compiled, pooled


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "ingot", "serve", *map(str, words)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    onnx.save(pooled(), folder / "pool.onnx")
    compiled(pooled()).save(folder / "other.ingot")
    return folder


def test_two_models_are_served_until_interrupted(files: Path):
    words = command(files / "pool.onnx", files / "other.ingot", "--port", 0, "--threads", 1, "--json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            message = json.loads(process.stdout.readline())
            assert message["models"] == [["pool", "1"], ["other", "1"]] and message["url"].startswith(
                "http://127.0.0.1:"
            )
            x, shift = np.ones((1, 2, 8), np.float32), np.zeros((1, 1), np.float32)
            tensors = [
                {"name": n, "shape": a.shape, "datatype": "FP32", "data": a.reshape(-1).tolist()}
                for n, a in (("x", x), ("shift", shift))
            ]
            expected = compiled(pooled())(x, shift)
            for name in ("pool", "other"):
                body = json.dumps({"inputs": tensors}).encode()
                with urllib.request.urlopen(f"{message['url']}/v2/models/{name}/infer", body, timeout=20) as response:
                    data = json.load(response)["outputs"][0]["data"]
                np.testing.assert_array_equal(np.array(data, np.float32), expected.reshape(-1))
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
    assert process.returncode in (0, 130) and "Traceback" not in errors


def test_a_repository_for_triton_is_written_and_served(files: Path, tmp_path: Path):
    for version in (1, 2):
        options = "--queue", 7, "--delay", 2, "--instances", 3, "--threads", 1, "--timeout", 5
        repository = "--to", f"triton:{tmp_path}", "--name", "net", "--version", version
        assert call("serve", files / "pool.onnx", *repository, *options).exit_code == 0
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.*") if p.is_file()) == [
        "net/1/model.ingot", "net/1/model.py", "net/2/model.ingot", "net/2/model.py", "net/config.pbtxt"
    ]  # fmt: skip
    text = (tmp_path / "net" / "config.pbtxt").read_text()
    for line in ('name: "net"', "max_batch_size: 16", "dims: [-1, 8]", "max_queue_size: 7", "count: 3",
                 "max_queue_delay_microseconds: 2000", "default_timeout_microseconds: 5000000"):  # fmt: skip
        assert line in text
    assert "expected one model, got 2" in refused(2, "serve", tmp_path, "--name", "x", "--port", 0)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--engine", "none"], "expected one of asgi, triton, ray"),
        (["--to", "folder"], "expected triton:FOLDER"),
        (["--name", "../x"], "letters, digits"),
        (["--batch", "length"], "'batch'"),
        (["--host", "256.1.1.1"], "cannot listen"),
    ],
)
def test_what_is_wrong_is_told(files: Path, words: list[str], message: str):
    result = call("serve", files / "other.ingot", "--port", 0, *words)
    assert result.exit_code == (4 if "Triton" in message else 2), result.output
    assert message in " ".join(result.output.split())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["triton", "ray"])
def test_other_engines_serve_the_same_answers(files: Path, engine: str):
    import socket

    from ingot.serving.engines import check_installed
    from ingot.serving.triton import find_triton
    from ingot.support.errors import DeviceError

    try:
        check_installed(engine)
        if engine == "triton":
            find_triton()
    except DeviceError as error:
        pytest.skip(str(error))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = command(files / "pool.onnx", "--engine", engine, "--port", port, "--threads", 1, "--json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            responses = {}
            while "url" not in responses:
                line = process.stdout.readline()
                assert line, process.stderr and process.stderr.read()[-3000:]
                responses = json.loads(line) if line.startswith("{") else {}
            tensors = [
                {"name": "x", "shape": [1, 1, 8], "datatype": "FP32", "data": [1.0] * 8},
                {"name": "shift", "shape": [1, 1], "datatype": "FP32", "data": [2.0]},
            ]
            body = json.dumps({"inputs": tensors}).encode()
            with urllib.request.urlopen(f"{responses['url']}/v2/models/pool/infer", body, timeout=30) as response:
                data = json.load(response)["outputs"][0]["data"]
            expected = compiled(pooled())(np.ones((1, 1, 8), np.float32), np.full((1, 1), 2, np.float32))
            np.testing.assert_array_equal(np.array(data, np.float32), expected.reshape(-1))
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def test_a_language_model_is_served_beside_another_and_asks_for_the_key_of_the_environment(files: Path):
    gguf = tiny.write(files / "tiny.gguf")
    words = command(gguf, files / "pool.onnx", "--port", 0, "--threads", 1, "--json")
    environment = {**os.environ, "INGOT_API_KEY": "s3cret"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            message = json.loads(process.stdout.readline())
            assert message["language_models"] == ["tiny"] and message["models"] == [["pool", "1"]]
            body = json.dumps({"model": "tiny", "prompt": "The", "max_tokens": 3, "temperature": 0}).encode()
            address = f"{message['url']}/v1/completions"
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(address, body, timeout=20)
            request = urllib.request.Request(address, body, {"Authorization": "Bearer s3cret"})
            with urllib.request.urlopen(request, timeout=20) as response:
                assert json.load(response)["choices"][0]["text"]
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
    assert process.returncode in (0, 130) and "Traceback" not in errors


def test_an_adapter_is_merged_into_the_one_model(files: Path, tmp_path: Path):
    gguf, adapter = tiny.write(tmp_path / "tiny.gguf"), tiny.write_adapter(tmp_path / "a=b.gguf")
    assert "expected one language model" in refused(2, "serve", gguf, files / "pool.onnx", "--adapter", adapter)
    lm = ingot.LanguageModel(gguf, adapters={adapter: 0.5}, sequences=8, threads=1)
    expected = lm.generate("The", max_tokens=3, temperature=0)
    assert expected != ingot.LanguageModel(gguf, sequences=8, threads=1).generate("The", max_tokens=3, temperature=0)
    words = command(gguf, "--adapter", f"{adapter}=0.5", "--port", 0, "--threads", 1, "--json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            body = json.dumps({"model": "tiny", "prompt": "The", "max_tokens": 3, "temperature": 0}).encode()
            with urllib.request.urlopen(f"{url}/v1/completions", body, timeout=20) as response:
                assert json.load(response)["choices"][0]["text"] == expected
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


def test_language_models_are_for_the_own_application_alone(files: Path, tmp_path: Path):
    gguf = tiny.write(tmp_path / "tiny.gguf")
    assert "no language models" in refused(2, "serve", gguf, "--to", f"triton:{tmp_path}")
