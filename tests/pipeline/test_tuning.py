"""The database of measured choices: what is written is read, and nothing else is believed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.passes.core.rewrites.rewrite import Rewrite
from ingot.pipeline import tuning
from ingot.pipeline.tuning import Entry
from ingot.schedule.choice import GENERATION, Direct, Measured, Winograd, read_choice
from ingot.support.errors import ArtifactError
from ingot.support.native import Features

TILE = Direct(1, 8, 3, 2, 4, 1, 1, 1)
FOUND = replace(TILE, panels=4)
ISA = Features("x86_64", ("avx2", "avx512f", "fma"), "znver5")
MACHINE = tuning.machine_name(ISA, 2)


def entry(key: str = "k", **changes: object) -> Entry:
    return replace(Entry(MACHINE, key, FOUND, TILE, 1e-4, 1.2e-4), **changes)


def text(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


HEADER = {"ingot": "tuned", "format": 1}
GOOD = json.loads(entry().line())


def test_what_is_written_is_read(tmp_path: Path):
    path = tmp_path / "new folder" / "db.jsonl"
    entries = [entry("a"), entry("b", choice=Winograd(4, 16, 64, 1)), entry("a", machine="another")]
    tuning.add(path, entries)
    assert list(tuning.read(path).values()) == entries
    later = entry("a", choice=TILE, seconds=1.2e-4)
    tuning.add(path, [later])
    assert tuning.read(path)[later.identity] == later and len(tuning.read(path)) == 3
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()[1:]] == ["a", "b", "a"]


def test_your_entries_go_before_the_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shipped, database = tmp_path / "shipped.jsonl", tmp_path / "own.jsonl"
    monkeypatch.setattr(tuning, "SHIPPED", shipped)
    monkeypatch.setenv("INGOT_TUNING", str(database))
    tuning.add(shipped, [entry("a"), entry("b")])
    tuning.add(
        database, [entry("b", choice=TILE), entry("c", generation=GENERATION + 1), entry("d", machine="another")]
    )
    assert tuning.measured(ISA, 2) == {"a": Measured(FOUND, TILE), "b": Measured(TILE, TILE)}
    assert tuning.measured(ISA, 1) == {} and tuning.measured(replace(ISA, cpu="znver4"), 2) == {}
    monkeypatch.setenv("INGOT_TUNING", "0")
    assert tuning.measured(ISA, 2) == {}


def test_the_shipped_file_is_whole():
    lines = tuning.SHIPPED.read_bytes().splitlines()
    assert json.loads(lines[0]) == HEADER and len(tuning.read(tuning.SHIPPED)) == len(lines) - 1
    entries = [e for e in tuning.read(tuning.SHIPPED).values() if isinstance(e, Entry)]
    assert len(entries) == len(lines) - 1
    assert all(e.choice == e.baseline or e.over_seconds >= 1.03 * e.seconds * 0.999 for e in entries)


def test_programs_are_cached_by_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    database = tmp_path / "own.jsonl"
    monkeypatch.setenv("INGOT_TUNING", str(database))
    states = [tuning.digest()]
    tuning.add(database, [entry()])
    states.append(tuning.digest())
    tuning.add(database, [entry(choice=TILE)])
    states.append(tuning.digest())
    monkeypatch.setenv("INGOT_TUNING", "0")
    states.append(tuning.digest())
    assert len(set(states)) == 4


@pytest.mark.parametrize(
    "line",
    [
        "not json", "[]", "null", "[" * 100_000, '{"key": 1e999}', "\x00\xff",
        GOOD | {"machine": 3}, GOOD | {"key": ["k"]}, GOOD | {"key": "k" * 5000}, GOOD | {"generation": True},
        GOOD | {"us": -1}, GOOD | {"us": "fast"}, GOOD | {"us": 1e300}, GOOD | {"choice": None},
        GOOD | {"choice": GOOD["choice"] | {"width": 1 << 40}},
        GOOD | {"choice": GOOD["choice"] | {"width": -1}},
        GOOD | {"choice": GOOD["choice"] | {"width": 7.5}},
        GOOD | {"choice": GOOD["choice"] | {"extra": 1}},
        GOOD | {"choice": GOOD["choice"] | {"way": "__class__"}},
        GOOD | {"over": {"way": "direct"}},
    ],
)  # fmt: skip
def test_a_line_that_is_no_entry_is_left_out(tmp_path: Path, line: object):
    path = text(tmp_path / "db", HEADER, GOOD, line, GOOD | {"key": "other"})
    assert [e.identity[1] for e in tuning.read(path).values()] == ["k", "other"]
    tuning.add(path, [entry("third")])
    assert [e.identity[1] for e in tuning.read(path).values()] == ["k", "other", "third"]


@pytest.mark.parametrize("head", ["", "junk", {"ingot": "tuned", "format": 2}, GOOD])
def test_a_file_that_is_something_else_is_neither_read_nor_overwritten(tmp_path: Path, head: object):
    path = text(tmp_path / "db", head, GOOD)
    assert tuning.read(path) == {}
    before = path.read_bytes()
    with pytest.raises(ArtifactError, match="not a database"):
        tuning.add(path, [entry()])
    assert path.read_bytes() == before


def test_what_cannot_be_read_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert tuning.read(tmp_path / "nothing") == {} and tuning.read(tmp_path) == {}
    path = text(tmp_path / "db", HEADER, GOOD)
    monkeypatch.setattr(tuning, "_MAX_FILE_BYTES", 10)
    assert tuning.read(path) == {}
    with pytest.raises(ArtifactError):
        tuning.add(tmp_path / "db" / "below a file", [entry()])


def test_choices_as_records():
    for choice in (TILE, Winograd(2, 6, 32, 1)):
        assert read_choice(json.loads(json.dumps(choice.record()))) == choice
    assert read_choice(TILE.record() | {"lines": True}) is None


def _add_many(path: Path, name: str, count: int) -> None:
    for i in range(count):
        tuning.add(path, [entry(f"{name} {i}")])


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path):
    path = tmp_path / "db.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(path, str(n), 12)) for n in range(4)]
    for w in writers:
        w.start()
    for w in writers:
        w.join(60)
    assert {e.identity[1] for e in tuning.read(path).values()} == {f"{n} {i}" for n in range(4) for i in range(12)}


def test_a_killed_writer_leaves_whole_entries(tmp_path: Path):
    path = tmp_path / "db.jsonl"
    context = multiprocessing.get_context("fork")
    for n in range(3):
        writer = context.Process(target=_add_many, args=(path, str(n), 1000))
        writer.start()
        while len(tuning.read(path)) < 5 * (n + 1):
            pass
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(60)
    lines = path.read_bytes().splitlines()
    assert len(tuning.read(path)) == len(lines) - 1 >= 15
    tuning.add(path, [entry("after")])  # its lock went with it


def test_rewrites_are_kept_beside_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "own.jsonl"
    monkeypatch.setenv("INGOT_TUNING", str(database))
    rewrite = Rewrite("graph(...", "graph(...", False)
    faster = tuning.Rewritten(MACHINE, rewrite, 1e-6, 2e-6)
    slower = tuning.Rewritten(MACHINE, Rewrite("another", "graph(...", True), 3e-6, 2e-6)
    elsewhere = tuning.Rewritten("another", rewrite, 1e-6, 2e-6)
    tuning.add(database, [entry(), faster, slower, elsewhere])
    assert list(tuning.read(database).values()) == [entry(), faster, slower, elsewhere]
    assert tuning.rewrites(ISA, 2) == (rewrite,)
    assert set(tuning.measured(ISA, 2)) >= {entry().key}
    tuning.add(database, [tuning.Rewritten(MACHINE, rewrite, 5e-6, 2e-6)])
    assert tuning.rewrites(ISA, 2) == ()
    monkeypatch.setenv("INGOT_TUNING", "0")
    assert tuning.rewrites(ISA, 2) == ()


@pytest.mark.parametrize(
    "change",
    [{"before": 1}, {"after": None}, {"proof": "trust me"}, {"proof": 1}, {"before": "x" * (1 << 15)}, {"us": -1}],
)
def test_malformed_rewrites_are_ignored(tmp_path: Path, change: dict[str, object]) -> None:
    database = tmp_path / "own.jsonl"
    tuning.add(database, [tuning.Rewritten(MACHINE, Rewrite("a", "b", True), 1e-6, 2e-6)])
    head, line = database.read_text().splitlines()
    database.write_text("\n".join([head, json.dumps(json.loads(line) | change)]) + "\n")
    assert tuning.read(database) == {}
