import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.runtime import artifact
from ingot.runtime.executor import CompiledModel
from ingot.runtime.plan_json import sealed, to_json
from ingot.support.errors import ArtifactError
from ingot.support.native import Features
from tests.runtime import models


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "model.ingot"
    CompiledModel(models.static(70_000), threads=1).save(target)
    return target


def test_round_trip(path: Path):
    program = artifact.load(path)
    original = models.static(70_000)
    assert dict(program.stages) == dict(original.stages) and program.meta == original.meta
    assert np.array_equal(program.weights, original.weights) and not program.weights.flags.writeable
    assert program.weights.ctypes.data % 4096 == 0
    x = np.ones(70_000, np.float32)
    assert np.array_equal(CompiledModel(program)(x), CompiledModel(original)(x))  # type: ignore[arg-type]
    CompiledModel(program).save(path)  # over the file that is mapped
    assert np.array_equal(artifact.load(path).weights, original.weights)
    assert os.listdir(path.parent) == ["model.ingot"]


def test_no_weights_and_dynamic(tmp_path: Path):
    target = tmp_path / "m"
    artifact.save(models.dynamic(), target)
    model = CompiledModel(artifact.load(target), threads=2)
    x = np.ones(10, np.float32)
    assert np.array_equal(model(x, x)[0], x * 4)  # type: ignore[index]


def test_every_truncation_is_refused(path: Path):
    data = path.read_bytes()
    for length in [*range(0, 200, 7), 1000, 4095, 4096, len(data) // 2, len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(ArtifactError, match=r"truncated|not an Ingot artifact"):
            artifact.load(path)
    path.write_bytes(data + b"x")
    with pytest.raises(ArtifactError, match="truncated"):
        artifact.load(path)


def test_flipped_bits_are_found(path: Path):
    data = path.read_bytes()
    original = sealed(models.static(70_000))
    rng = np.random.default_rng(0)
    for at in [*range(0, 400, 3), *(int(i) for i in rng.integers(0, len(data), 150)), len(data) - 1]:
        broken = bytearray(data)
        broken[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        try:
            program = artifact.load(path)
            stages = dict(program.stages)
        except ArtifactError:
            continue
        # Loaded after all: the bit was in padding.
        assert stages == dict(original.stages) and to_json(program) == to_json(original)
        assert np.array_equal(program.weights, original.weights) and program.code == original.code
    path.write_bytes(data)


def rewrite_header(path: Path, change: Callable[[dict], object]) -> None:
    """Change the header and fix every checksum, as an attacker would."""
    import hashlib

    data = path.read_bytes()
    magic, version, length, _, _, *library = artifact._PREFIX.unpack_from(data)
    header = json.loads(data[64 : 64 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    body = data[64 + length :]
    total = 64 + len(text) + len(body)
    digest = hashlib.blake2b(text, digest_size=16).digest()
    path.write_bytes(artifact._PREFIX.pack(magic, version, len(text), total, digest, *library) + text + body)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["sections"].update({"code/cpu": [1 << 60, "00"]}),
        lambda h: h["sections"].update({"code/cpu": [-5, "00"]}),
        lambda h: h.update(weights=[1 << 50, "00"]),
        lambda h: h.update(weights=None),
        lambda h: h.update(stages={"gone": 5}),
        lambda h: h.update(stages={"model": 1 << 62}),
        lambda h: h.update(sections=[]),
        lambda h: h["sections"].pop("plan"),
        lambda h: h["sections"].pop("code/cpu"),
    ],
)
def test_crafted_headers_are_refused(path: Path, change: Callable[[dict], object]):
    rewrite_header(path, change)
    with pytest.raises(ArtifactError):
        artifact.load(path)


def test_a_plan_nested_without_end_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch):
    program = artifact.load(path)
    with monkeypatch.context() as patched:
        patched.setattr(json, "dumps", lambda value, dumps=json.dumps, **how: (
            "[" * 100_000 if "steps" in value else dumps(value, **how)
        ))  # fmt: skip
        artifact.save(program, path)
    with pytest.raises(ArtifactError, match="plan"):
        artifact.load(path)


def test_huge_header_length_allocates_nothing(path: Path):
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 12, 0xFFFFFFFF)
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="corrupted: expected a header"):
        artifact.load(path)


def test_other_files_versions_and_machines(path: Path, tmp_path: Path):
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 8, artifact.FORMAT_VERSION + 1)
    path.write_bytes(data)
    version, newer_version = artifact.FORMAT_VERSION, artifact.FORMAT_VERSION + 1
    with pytest.raises(
        ArtifactError, match=f"expected format version {version}, got {newer_version}; compile the model again"
    ):
        artifact.load(path)
    path.write_bytes(b"PK\3\4" + bytes(5000))
    with pytest.raises(ArtifactError, match="not an Ingot artifact"):
        artifact.load(path)
    with pytest.raises(ArtifactError, match=r"cannot read .*: got No such file"):
        artifact.load(tmp_path / "gone")
    foreign = models.made_for(Features("riscv64", ("v",)))
    artifact.save(foreign, path)
    with pytest.raises(ArtifactError, match="compiled for another machine: expected riscv64"):
        ingot.load(path)
    newer = models.made_for(Features(models.isa().arch, ("avx999",)))
    artifact.save(newer, path)
    with pytest.raises(ArtifactError, match=r"another machine: expected .* with avx999"):
        ingot.load(path)


def test_a_full_disk_leaves_the_old_file(path: Path):
    """A limit on file size makes write fail half-way, as a full disk does."""
    before = path.read_bytes()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            artifact.save(models.static(500_000), path)
        except ArtifactError as error:
            os._exit(0 if "nothing was written" in str(error) else 4)
        os._exit(5)
    assert os.waitpid(child, 0)[1] == 0
    assert path.read_bytes() == before and os.listdir(path.parent) == ["model.ingot"]


def test_loading_needs_numpy_alone(path: Path):
    code = """
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("llvmlite", "ml_dtypes", "torch", "onnx"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from dataclasses import replace
from pathlib import Path
import numpy as np
from ingot.runtime import artifact
from ingot.runtime.executor import CompiledModel
CompiledModel(artifact.load(Path(sys.argv[1])), threads=2)(np.ones(70_000, np.float32))
light = ("api", "integrations", "runtime", "support")
others = [m for m in sys.modules if m.startswith("ingot.") and m.split(".")[1] not in light]
assert not others, others
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60, env=models.environment())


def test_programs_that_share_weights(tmp_path: Path):
    main, twin, other = models.static(70_000), models.static(70_000), models.static(500)
    other = sealed(replace(other, weights=other.weights + 1))
    bundle = artifact.with_others(main, {"alike": twin, "other": other})
    assert main.weights.nbytes < bundle.weights.nbytes < main.weights.nbytes + 2 * other.weights.nbytes + 128
    artifact.save(bundle, tmp_path / "m.ingot")
    loaded = artifact.load(tmp_path / "m.ingot")
    assert [*loaded.others] == ["alike", "other"]
    for program, expected, n in ((loaded.others["alike"], twin, 70_000), (loaded.others["other"], other, 500)):
        assert np.shares_memory(program.weights, loaded.weights) and not program.stages
        x = np.ones(n, np.float32)
        assert np.array_equal(CompiledModel(program)(x), CompiledModel(expected)(x))  # type: ignore[arg-type]
    data = bytearray((tmp_path / "m.ingot").read_bytes())
    at = bytes(data).rindex(artifact.MAGIC)  # of the last program that is within
    data[at + 70] ^= 1
    (tmp_path / "m.ingot").write_bytes(data)
    with pytest.raises(ArtifactError, match="corrupted"):
        artifact.load(tmp_path / "m.ingot")
