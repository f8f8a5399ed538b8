"""The tuning database: measured choices, which take precedence over the choices of the cost models, and rewrites.

A file has one JSON object per line, the first a header. An entry says that on this kind of core with this number of
threads, at this key, `choice` was faster than `baseline`, the cost model's choice; or that one form of a subgraph was
faster than another. Files are untrusted: an invalid line is ignored, a schedule accepts only choices that it could have
made itself, and a rewrite is proved again where it is used. See docs/reference/tuning.md and docs/inside/rewrites.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from ingot.passes.core.rewrites.rewrite import MAX_TEXT_CHARS, Rewrite
from ingot.schedule.choice import GENERATION, Choice, Measured, read_choice
from ingot.support import flags
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError
from ingot.support.files import atomic_write, locked
from ingot.support.log import Log
from ingot.support.native import Features

SHIPPED = Path(__file__).parent / "shipped.jsonl"
_HEADER = {"ingot": "tuned", "format": 1}
_MAX_FILE_BYTES = 64 << 20
_MAX_TEXT_CHARS = 4096  # of a machine's name or a key
_log = Log("ingot.pipeline.tuning")


@dataclass(frozen=True)
class Entry:
    """machine: see `machine_name`. key: of the site. seconds, over_seconds: of one launch with `choice` and with
    `baseline`, measured in alternation. generation: the version of the measured kernels."""

    machine: str
    key: str
    choice: Choice
    baseline: Choice
    seconds: float
    over_seconds: float
    generation: int = GENERATION

    def line(self) -> bytes:
        record = {
            "machine": self.machine,
            "key": self.key,
            "generation": self.generation,
            "us": round(self.seconds * 1e6, 3),
            "over_us": round(self.over_seconds * 1e6, 3),
            "choice": self.choice.record(),
            "over": self.baseline.record(),
        }
        return json.dumps(record).encode() + b"\n"

    @property
    def identity(self) -> tuple[str, str, int]:
        return self.machine, self.key, self.generation


@dataclass(frozen=True)
class Rewritten:
    """That the right side of a rewrite was faster than the left. seconds, over_seconds: of one run of each side."""

    machine: str
    rewrite: Rewrite
    seconds: float
    over_seconds: float
    generation: int = GENERATION

    def line(self) -> bytes:
        record = {
            "machine": self.machine,
            "generation": self.generation,
            "us": round(self.seconds * 1e6, 3),
            "over_us": round(self.over_seconds * 1e6, 3),
            "before": self.rewrite.before,
            "after": self.rewrite.after,
            "proof": EXACT if self.rewrite.exact else REAL,
        }
        return json.dumps(record).encode() + b"\n"

    @property
    def identity(self) -> tuple[str, str, int]:
        return self.machine, f"{self.rewrite.exact} {self.rewrite.before}", self.generation


# what `passes.core.rewrites.equality` has found; it looks again before the rewrite is used
EXACT, REAL = "equal sums of equal products, each rounded once", "equal polynomials over the reals"
StoredEntry = Entry | Rewritten


def machine_name(isa: Features, threads: int) -> str:
    """Return a name such as "x86_64 znver5 avx512, 2 threads" for a kind of core. A GPU is named by the architecture
    that schedules target, as one program runs on all GPUs of it: "cuda sm_90a"."""
    target = isa.target.removeprefix("null:").partition(":")[0]
    if target != "cpu":
        return f"{target} {isa.arch}"
    extensions = ("avx512f", "avx2", "neon")
    vectors = next((name.removesuffix("f") for name in extensions if name in isa), "baseline")
    return f"{isa.arch} {isa.cpu or 'generic'} {vectors}, {threads} thread{'s' * (threads > 1)}"


def measured(isa: Features, threads: int) -> dict[str, Measured]:
    """Return the choices for this kind of machine by key: the user's, else the shipped ones."""
    user_path = flags.tuning()
    if user_path is None:
        return {}
    machine = machine_name(isa, threads)
    return choices(SHIPPED, machine) | choices(user_path, machine)


def choices(path: Path, machine: str) -> dict[str, Measured]:
    """Return a file's choices for a machine and the current generation of kernels, by key."""
    entries = (e for e in read(path).values() if e.machine == machine and e.generation == GENERATION)
    return {e.key: Measured(e.choice, e.baseline) for e in entries if isinstance(e, Entry)}


def rewrites(isa: Features, threads: int) -> tuple[Rewrite, ...]:
    """Return the rewrites for this kind of machine that are faster, the user's alone."""
    user_path = flags.tuning()
    if user_path is None:
        return ()
    machine = machine_name(isa, threads)
    entries = (e for e in read(user_path).values() if e.machine == machine and e.generation == GENERATION)
    return tuple(e.rewrite for e in entries if isinstance(e, Rewritten) and e.seconds < e.over_seconds)


def digest() -> bytes:
    """Return a digest of the databases, part of the key of a compiled program."""
    user_path = flags.tuning()
    hasher = hashlib.blake2b(digest_size=16)
    for path in () if user_path is None else (SHIPPED, user_path):
        hasher.update(hashlib.blake2b(_read_bytes(path)).digest())
    return hasher.digest()


def read(path: Path) -> dict[tuple[str, str, int], StoredEntry]:
    """Return the entries of a file by identity. A file that is not a database has none and is logged."""
    lines = _read_bytes(path).splitlines()
    if not lines:
        return {}
    if _parse_object(lines[0]) != _HEADER:
        _log.warning("tuned: %s is not a database of this version; it is ignored", path)
        return {}
    entries: dict[tuple[str, str, int], StoredEntry] = {}
    for number, line in enumerate(lines[1:], 2):
        entry = _parse_entry(_parse_object(line))
        if entry is None:
            _log.warning("tuned: %s, line %d: not an entry; it is ignored", path, number)
        else:
            entries[entry.identity] = entry
    return entries


def add(path: Path, entries: Iterable[StoredEntry]) -> None:
    """Add entries to a file, replacing older entries of the same identity.

    The update is atomic: a killed or concurrent process leaves no partial entry. Raises ArtifactError, also for a file
    that is not a database.
    """
    with locked(path):
        data = _read_bytes(path)
        head = data.partition(b"\n")[0]
        if data and _parse_object(head) != _HEADER:
            raise ArtifactError(
                f"{path} is not a database of measured choices of this version",
                expected=json.dumps(_HEADER),
                got=repr(head[:80]),
                fix="name another file, or delete this one",
            )
        merged = read(path) | {e.identity: e for e in entries}
        lines = (e.line() for e in merged.values())
        atomic_write(path, [json.dumps(_HEADER).encode() + b"\n", *lines])


def _read_bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            _log.warning("tuned: %s is larger than %d bytes; it is ignored", path, _MAX_FILE_BYTES)
            return b""
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        _log.warning("tuned: cannot read %s: %s", path, error)
        return b""


def _parse_object(line: bytes) -> Mapping[str, object] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parse_entry(record: Mapping[str, object] | None) -> StoredEntry | None:
    if record is None:
        return None
    machine, generation = record.get("machine"), record.get("generation")
    seconds, over_seconds = _parse_seconds(record.get("us")), _parse_seconds(record.get("over_us"))
    if not isinstance(machine, str) or len(machine) > _MAX_TEXT_CHARS or type(generation) is not int:
        return None
    if seconds is None or over_seconds is None:
        return None
    if "before" in record:
        rewrite = _parse_rewrite(record)
        return rewrite and Rewritten(machine, rewrite, seconds, over_seconds, generation)
    key = record.get("key")
    choice, replaced = read_choice(record.get("choice")), read_choice(record.get("over"))
    if not isinstance(key, str) or len(key) > _MAX_TEXT_CHARS or choice is None or replaced is None:
        return None
    return Entry(machine, key, choice, replaced, seconds, over_seconds, generation)


def _parse_rewrite(record: Mapping[str, object]) -> Rewrite | None:
    before, after, proof = record.get("before"), record.get("after"), record.get("proof")
    if not isinstance(before, str) or not isinstance(after, str) or proof not in (EXACT, REAL):
        return None
    return None if max(len(before), len(after)) > MAX_TEXT_CHARS else Rewrite(before, after, proof == EXACT)


def _parse_seconds(us: object) -> float | None:
    if isinstance(us, bool) or not isinstance(us, int | float) or not 0 <= us < 1e12:
        return None
    return us / 1e6
