"""What is written stays what it was: files are replaced, links followed, devices and pipes written through."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ingot.support.errors import ArtifactError, IngotError, printable
from ingot.support.files import atomic_write, open_regular


def test_a_device_stays_one() -> None:
    before = os.stat(os.devnull)
    atomic_write(Path(os.devnull), [b"x" * 100])
    after = os.stat(os.devnull)
    assert (before.st_mode, before.st_ino, before.st_rdev) == (after.st_mode, after.st_ino, after.st_rdev)


def test_a_link_to_a_device_stays_one(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(os.devnull)
    atomic_write(tmp_path / "out", [b"x"])
    assert (tmp_path / "out").is_symlink() and not list(tmp_path.glob(".*"))


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    atomic_write(tmp_path / "link", [b"new"])
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"
    (tmp_path / "dangling").symlink_to(tmp_path / "later")
    atomic_write(tmp_path / "dangling", [b"made"])
    assert (tmp_path / "later").read_bytes() == b"made"


def test_a_pipe_is_written_through(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    atomic_write(pipe, [b"a" * 1000, b"b"])
    reader.join(10)
    assert got == [b"a" * 1000 + b"b"] and pipe.is_fifo()


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666, 0o4755])
def test_a_file_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    path.chmod(mode)
    atomic_write(path, [b"x"])
    assert path.stat().st_mode & 0o7777 == mode & 0o777


def test_a_new_file_has_what_the_umask_leaves(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        atomic_write(tmp_path / "f", [b"x"])
    finally:
        os.umask(mask)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path: Path) -> None:
    path, children = tmp_path / "f", list[int]()
    for ready in (os.pipe(), os.pipe()):
        if not (child := os.fork()):

            def parts(size: int = ready[1]) -> Iterator[bytes]:
                yield b"half"
                os.write(size, b"x")
                signal.pause()

            atomic_write(path, parts())
            os._exit(1)
        os.read(ready[0], 1)
        children.append(child)
    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)
    (tmp_path / ".f.mine.tmp").touch()
    atomic_write(path, [b"whole"])
    files = sorted(p.name for p in tmp_path.iterdir() if p.name not in ("f", ".f.mine.tmp"))
    assert len(files) == 1 and files[0].startswith(f".f.{children[1]}."), files
    os.kill(children[1], signal.SIGKILL)
    os.waitpid(children[1], 0)
    atomic_write(path, [b"whole"])
    assert sorted(os.listdir(tmp_path)) == [".f.mine.tmp", "f"] and path.read_bytes() == b"whole"


def test_folders_and_pipes_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="neither"):
        atomic_write(tmp_path, [b"x"])
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError):
            open_regular(path)


def test_external_weights_in_a_pipe_are_refused(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    import ingot

    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    node = helper.make_node("Add", ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(n, 1, [2, 2]) for n in "xy")
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], [weight]))
    onnx.external_data_helper.convert_model_to_external_data(model, location="w.bin", size_threshold=0)
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "w.bin").unlink()
    os.mkfifo(tmp_path / "w.bin")
    with pytest.raises(IngotError, match="pipe"):
        ingot.compile(tmp_path / "m.onnx", cache=False)


def test_messages_hold_no_commands_to_terminals() -> None:
    assert str(IngotError("input 'a\x1b[2Jb\r'", got="\u202ex")) == r"input 'a\x1b[2Jb\r': got \u202ex"
    assert printable("plain\ntext") == "plain\ntext"
