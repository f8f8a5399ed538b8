"""GGUF files: what is read, and what is refused before anything is allocated for it."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ingot.frontends.gguf import GGUFFile
from ingot.support.errors import ImportModelError
from tests.frontends.gguf import builder as b


def read(tmp_path: Path, data: bytes) -> GGUFFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return GGUFFile(path)


SCALARS = [
    (b.U8, 200), (b.I8, -3), (b.U16, 60000), (b.I16, -3), (b.U32, 1 << 31), (b.I32, -3), (b.F32, 0.5), (b.BOOL, True),
    (b.U64, 1 << 63), (b.I64, -(1 << 62)), (b.F64, 0.1),
]  # fmt: skip


def test_metadata_of_all_types(tmp_path: Path) -> None:
    keys = [b.key(f"k{kind}", kind, b.scalar(kind, value)) for kind, value in SCALARS]
    keys += [b.key(f"a{kind}", b.ARRAY, b.array(kind, [b.scalar(kind, value)] * 3)) for kind, value in SCALARS]
    keys.append(b.key("text", b.STRING, b.text("naïve")))
    keys.append(b.key("bytes", b.STRING, b.text(b"a\xff")))
    keys.append(b.key("texts", b.ARRAY, b.array(b.STRING, [b.text("a"), b.text("")])))
    nested = [b.array(b.I32, [b.scalar(b.I32, i) for i in range(n)]) for n in (2, 0, 1)]
    keys.append(b.key("nested", b.ARRAY, b.array(b.ARRAY, nested)))
    for version in (2, 3):
        file = read(tmp_path, b.file(keys, [], b"", version=version))
        assert file.version == version
        for kind, value in SCALARS:
            assert file.metadata[f"k{kind}"] == value and type(file.metadata[f"k{kind}"]) is type(value)
            array = file.metadata[f"a{kind}"]
            assert isinstance(array, np.ndarray) and array.tolist() == [value] * 3 and not array.flags.writeable
        assert file.metadata["text"] == "naïve" and file.metadata["texts"] == ("a", "")
        assert str(file.metadata["bytes"]).encode(errors="surrogateescape") == b"a\xff"
        assert [a.tolist() for a in file.metadata["nested"]] == [[0, 1], [], [0]]  # type: ignore[union-attr]


def test_tensors_are_views_of_the_map(tmp_path: Path) -> None:
    weight, bias = b.random_blocks("Q4_K", 6), np.arange(5, dtype=np.float32)
    file = read(tmp_path, b.of_tensors({"w": ("Q4_K", (3, 512), weight), "b": ("F32", (5,), bias)}))
    w = file.tensors["w"]
    assert (w.name, w.format.name, w.shape) == ("w", "Q4_K", (3, 512))
    np.testing.assert_array_equal(w.data, weight)
    assert not w.data.flags.writeable and not w.data.flags.owndata
    assert w.dequantized().shape == (3, 512)
    np.testing.assert_array_equal(file.tensors["b"].dequantized(), bias)


def test_what_the_reference_writes(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_token_list(["<s>", "▁a", "b"])
    writer.add_token_scores([0.0, -1.0, -2.0])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 64)).astype(np.float32)
    writer.add_tensor("f", x)
    writer.add_tensor("h", x.astype(np.float16)[0])
    writer.add_tensor("q", gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q5_0), raw_dtype=6)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    file = GGUFFile(path)
    assert file.metadata["tokenizer.ggml.tokens"] == ("<s>", "▁a", "b")
    np.testing.assert_array_equal(file.tensors["f"].dequantized(), x)
    np.testing.assert_array_equal(file.tensors["h"].dequantized(), x.astype(np.float16)[0].astype(np.float32))
    assert np.abs(file.tensors["q"].dequantized() - x).max() < 0.2


ONE = b.random_blocks("Q4_0", 1)
HUGE = (1 << 64) - 1


def _head(*, tensors: int = 0, keys: int = 0, version: int = 3, magic: bytes = b"GGUF", rest: bytes = b"") -> bytes:
    return struct.pack("<4sIQQ", magic, version, tensors, keys) + rest


def _tensor(shape: tuple[int, ...], code: int = 2, offset: int = 0, nbytes: int = 64) -> bytes:
    return b.file([], [b.entry("w", shape, code, offset)], bytes(nbytes))


def _nested(depth: int) -> bytes:
    value = b.array(b.U8, [])
    for _ in range(depth):
        value = b.array(b.ARRAY, [value])
    return b.file([b.key("k", b.ARRAY, value)], [], b"")


_U8 = b.scalar(b.U8, 1)
REFUSED = {
    "an empty file": (b"", "empty"),
    "another magic": (_head(magic=b"GGJT"), "expected b'GGUF'"),
    "version 1": (_head(version=1), "the version: expected 2 or 3, got 1"),
    "big-endian": (_head(version=3 << 24), "expected little-endian, got big-endian"),
    "a cut header": (_head()[:20], "number of metadata keys: expected 8 bytes"),
    "too many tensors": (_head(tensors=HUGE), "number of tensors: expected at most 0"),
    "too many keys": (_head(keys=HUGE), "number of metadata keys: expected at most 0"),
    "a long key": (_head(keys=1, rest=struct.pack("<Q", HUGE) + bytes(20)), "a name of 1 to 65535 bytes"),
    "a key beyond the end": (_head(keys=1, rest=struct.pack("<Q", 900) + bytes(20)), "expected 900 bytes at byte 32"),
    "a key not in UTF-8": (b.file([b.text(b"\xff") + bytes(20)], [], b""), "expected UTF-8"),
    "a key twice": (b.file([b.key("k", b.U8, _U8)] * 2, [], b""), "'k' twice"),
    "an unknown type": (b.file([b.key("k", 13, _U8 * 32)], [], b""), "a type from 0 to 12, got 13"),
    "a long string": (b.file([b.key("k", b.STRING, struct.pack("<Q", HUGE))], [], b""), "'k': expected a string"),
    "a long array": (b.file([b.key("k", b.ARRAY, struct.pack("<IQ", b.F64, HUGE))], [], bytes(80)), "at most"),
    "many strings": (b.file([b.key("k", b.ARRAY, struct.pack("<IQ", b.STRING, 1 << 40))], [], bytes(80)), "at most"),
    "more strings than any model": (
        b.file([b.key("k", b.ARRAY, struct.pack("<IQ", b.STRING, 3 << 20) + bytes(24 << 20))], [], b""),
        "at most 2097152",
    ),
    "more arrays than any model": (
        b.file([b.key("k", b.ARRAY, b.array(b.ARRAY, [b.array(b.U8, [])] * (1 << 17)))], [], b""), "at most 65536",
    ),
    "deep arrays": (_nested(40), "at most 4 arrays within each other"),
    "a boolean of 2": (b.file([b.key("k", b.BOOL, b"\2")], [], b""), "booleans of 0 and 1, got 2"),
    "an alignment of 0": (b.file([b.key("general.alignment", b.U32, bytes(4))], [], b""), "a power of two"),
    "an alignment of 48": (b.file([b.key("general.alignment", b.U32, b.scalar(b.U32, 48))], [], b""), "a power of two"),
    "a text as alignment": (b.file([b.key("general.alignment", b.STRING, b.text("32"))], [], b""), "a power of two"),
    "a part of a model": (b.file([b.key("split.count", b.U16, b.scalar(b.U16, 3))], [], b""), "got part 0 of 3"),
    "parts of an array": (b.file([b.key("split.count", b.ARRAY, b.array(b.U8, [_U8] * 2))], [], b""), "an integer"),
    "five dimensions": (_tensor((1, 1, 1, 1, 32)), "at most 4 dimensions, got 5"),
    "a rank beyond all": (_head(tensors=1, rest=b.text("w") + struct.pack("<I", 1 << 31) + bytes(40)), "4 dimensions"),
    "a size of 0": (_tensor((0, 32)), "positive sizes"),
    "a product beyond 64 bits": (_tensor((1 << 63, 1 << 63, 32)), "expected .* bytes at byte"),
    "a part of a block": (_tensor((1, 33)), "columns in blocks of 32 for Q4_0"),
    "a scalar in blocks": (_tensor(()), "columns in blocks of 32"),
    "a tensor beyond the end": (_tensor((1, 32), offset=64), "expected 18 bytes"),
    "an offset beyond all": (_tensor((1, 32), offset=HUGE - 31), "expected 18 bytes"),
    "an odd offset": (_tensor((1, 32), offset=8), "an offset that 32 divides, got 8"),
    "a tensor twice": (b.file([], [b.entry("w", (32,), 2, o) for o in (0, 32)], bytes(64)), "'w' twice"),
    "tensors in one place": (b.file([], [b.entry(n, (32,), 2, 0) for n in "ab"], bytes(64)), "'a' and 'b' in one"),
    "lookup tables": (
        b.file([], [b.entry(n, (256,), c, 0) for n, c in (("a", 20), ("b", 16))], bytes(999)), "got IQ2_XXS, IQ4_NL",
    ),
    "an unknown format": (_tensor((256,), 4), "got type 4"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path) -> None:
    data, match = REFUSED[case]
    tracemalloc.start()
    try:
        with pytest.raises(ImportModelError, match=match) as error:
            read(tmp_path, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert "model.gguf" in str(error.value)


def _part(number: int, count: int, name: str, total: int) -> bytes:
    keys = [b.key("split.no", b.U16, b.scalar(b.U16, number)), b.key("split.count", b.U16, b.scalar(b.U16, count))]
    keys.append(b.key("split.tensors.count", b.I32, b.scalar(b.I32, total)))
    return b.of_tensors({name: ("Q4_0", (1, 32), ONE)}, keys)


PARTS = {
    "another's part": ([(0, 2, "a", 2), (0, 2, "b", 2)], "expected part 1 of 2, got part 0 of 2"),
    "part of a model of more": ([(0, 2, "a", 2), (1, 3, "b", 2)], "expected part 1 of 2, got part 1 of 3"),
    "a missing part": ([(0, 2, "a", 2)], "No such file"),
    "a tensor in two": ([(0, 2, "a", 2), (1, 2, "a", 2)], "'a' in two"),
    "a missing tensor": ([(0, 2, "a", 3), (1, 2, "b", 3)], "expected 3 tensors, got 2"),
    "the second first": ([(1, 2, "a", 2), (0, 2, "b", 2)], "got part 1 of 2"),
    "very many": ([(0, 65535, "a", 2)], "got part 0 of 65535"),
}


def _parts(folder: Path, parts: Sequence[tuple[int, int, str, int]]) -> GGUFFile:
    count = len(parts) if len(parts) > 1 else parts[0][1]
    for i, part in enumerate(parts):
        (folder / f"m-{i + 1:05d}-of-{count:05d}.gguf").write_bytes(_part(*part))
    return GGUFFile(folder / f"m-00001-of-{count:05d}.gguf")


def test_parts_of_a_model(tmp_path: Path) -> None:
    file = _parts(tmp_path, [(0, 3, "a", 3), (1, 3, "b", 3), (2, 3, "c", 3)])
    assert list(file.tensors) == ["a", "b", "c"]
    with pytest.raises(ImportModelError, match="got part 1 of 3"):
        GGUFFile(tmp_path / "m-00002-of-00003.gguf")


@pytest.mark.parametrize("case", PARTS)
def test_parts_that_are_refused(case: str, tmp_path: Path) -> None:
    parts, match = PARTS[case]
    with pytest.raises(ImportModelError, match=match):
        _parts(tmp_path, parts)


def test_each_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    keys = [b.key("k", b.U8, _U8), b.key("t", b.ARRAY, b.array(b.STRING, [b.text("a")]))]
    data = b.of_tensors({"w": ("Q4_0", (1, 32), ONE)}, keys)
    last = data.rindex(ONE.tobytes()) + ONE.nbytes
    read(tmp_path, data[:last])
    for size in range(last):
        with pytest.raises(ImportModelError):
            read(tmp_path, data[:size])


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match="No such file"):
        GGUFFile(tmp_path / "none.gguf")
    with pytest.raises(ImportModelError, match="directory"):
        GGUFFile(tmp_path)
