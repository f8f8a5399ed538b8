"""The net over refactoring: what is recorded compares equal, and a kernel that has changed is named and shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingot.ir.kernel import Comment, Kernel
from tools import replay

pytest.importorskip("torch")  # the models that it records are PyTorch's

NARROW = ["--only", "op/popcnt", "--isa", "avx2", "neon", "--jobs", "1"]


def test_a_change_is_named_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*NARROW, "--store", str(tmp_path)]
    assert replay.main(["record", *options, "--code"]) == 0
    assert replay.main(["check", *options, "--code"]) == 0
    assert "all byte-identical" in capsys.readouterr().out

    add = replay.Recorder.add

    def commented(self: replay.Recorder, kernel: Kernel) -> None:
        add(self, replace(kernel, body=(Comment("new"), *kernel.body)))

    monkeypatch.setattr(replay.Recorder, "add", commented)
    assert replay.main(["check", *options]) == 1
    printed = capsys.readouterr().out
    assert "op/popcnt avx2 differs" in printed and "4 differ" in printed
    assert any(line.strip().startswith("+") and "new" in line for line in printed.splitlines())


def test_without_a_record_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="record"):
        replay.main(["check", *NARROW, "--store", str(tmp_path)])
