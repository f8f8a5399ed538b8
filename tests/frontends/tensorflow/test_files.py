"""Files that are damaged or want to lead elsewhere: a clear error, soon."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from ingot.driver.recognize import kind_of
from ingot.frontends.shared.wire import Source
from ingot.frontends.tensorflow import import_tensorflow
from ingot.frontends.tensorflow.bundle import Bundle, unsnappy
from ingot.support.errors import ImportModelError, IngotError
from ingot.support.limits import Limits, limited
from tests.frontends.tensorflow.fixtures import field, fixture, node

SOURCE = Source("TensorFlow", "a block", "somewhere")


def test_kinds_are_told_by_content(tmp_path: Path):
    saved, frozen = fixture("words", tmp_path / "a").path, fixture("ops", tmp_path / "b").path
    assert kind_of(saved) == kind_of(saved / "saved_model.pb") == kind_of(frozen) == "tensorflow"


def test_checkpoints_hold_what_was_saved(tmp_path: Path):
    path = fixture("words", tmp_path).path
    bundle = Bundle.open(path / "variables" / "variables", path)
    assert bundle.array("embedding/.ATTRIBUTES/VARIABLE_VALUE").shape == (4, 5)
    with pytest.raises(ImportModelError, match="lacks"):
        bundle.array("other")


def test_truncated_files(tmp_path: Path):
    path = fixture("words", tmp_path).path
    for file in ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"):
        content = (path / file).read_bytes()
        for part in (0, 1, len(content) // 2, len(content) - 1):
            (path / file).write_bytes(content[:part])
            with pytest.raises(IngotError):
                import_tensorflow(path, inputs=["x"], outputs=["twice"])
                import_tensorflow(path, inputs=["x", "StatefulPartitionedCall/None_Lookup/LookupTableFindV2:0"])
        (path / file).write_bytes(content)


def test_damaged_files_are_refused_or_read(tmp_path: Path):
    path = fixture("loop", tmp_path).path
    random.seed(5)
    for file in ("saved_model.pb", "variables/variables.index"):
        content = (path / file).read_bytes()
        for _ in range(12):
            damaged = bytearray(content)
            for _ in range(random.randint(1, 6)):
                damaged[random.randrange(len(damaged))] = random.randrange(256)
            (path / file).write_bytes(damaged)
            try:
                with limited(Limits(seconds=10)):
                    import_tensorflow(path, signature="loop")
            except IngotError:
                pass
        (path / file).write_bytes(content)


def test_shards_outside_the_folder_are_not_read(tmp_path: Path):
    path = fixture("words", tmp_path).path
    shard = path / "variables" / "variables.data-00000-of-00001"
    shutil.move(shard, tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    bundle = Bundle.open(path / "variables" / "variables", path)
    with pytest.raises(ImportModelError, match="outside the model's folder"):
        bundle.array("embedding/.ATTRIBUTES/VARIABLE_VALUE")


@pytest.mark.parametrize(
    "packed, plain",
    [
        (b"\x05\x10hello", b"hello"),
        # "ab" and a copy that overlaps itself: from 2 before, 8 bytes
        (b"\x0a\x04ab\x11\x02", b"ababababab"),
        (b"\x06\x08abc\x0a\x03\x00", b"abcabc"),
    ],
)
def test_snappy(packed: bytes, plain: bytes):
    assert unsnappy(memoryview(packed), SOURCE) == plain


@pytest.mark.parametrize("packed", [b"\x05\x10hell", b"\x05\x11\x09", b"\x02\x10hello", b"\xff\xff\xff\xff\x0f\x00a"])
def test_snappy_refuses(packed: bytes):
    with pytest.raises(ImportModelError):
        unsnappy(memoryview(packed), SOURCE)


def test_a_node_without_a_name_is_no_argument(tmp_path: Path):
    path = tmp_path / "graph.pb"
    path.write_bytes(node("", "Const") + node("y", "Identity", [":0"], {"T": field(6, 1)}))
    with pytest.raises(ImportModelError, match="nothing computes"):
        import_tensorflow(path, outputs=["y"])
