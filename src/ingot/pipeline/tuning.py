"""What tuning found: a database of measured choices, which compiling asks before it trusts its models.

A file of lines, each one JSON object, the first a header. An entry says: on this kind of core with so many threads, for
this key, `choice` was faster than `over`, the model's own choice. Files are untrusted: a line that is no entry is left
out, and a schedule builds kernels only from choices that it could have made itself. See docs/tuning.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from ingot.schedule.choice import GENERATION, Choice, Measured, read_choice
from ingot.support import flags
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError
from ingot.support.files import atomic_write, locked
from ingot.support.log import Log
from ingot.support.native import Features

SHIPPED = Path(__file__).parent / "shipped.jsonl"
_HEADER = {"ingot": "tuned", "format": 1}
_MOST_BYTES = 64 << 20
_MOST_TEXT = 4096  # characters of a name or key
_log = Log("ingot.pipeline.tuning")


@dataclass(frozen=True)
class Entry:
    """machine: as `machine_name`. key: of the site. seconds, over_seconds: of one launch with `choice` and with `over`,
    measured side by side. generation: of the kernels that were measured."""

    machine: str
    key: str
    choice: Choice
    over: Choice
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
            "over": self.over.record(),
        }
        return json.dumps(record).encode() + b"\n"

    @property
    def place(self) -> tuple[str, str, int]:
        return self.machine, self.key, self.generation


def machine_name(isa: Features, threads: int) -> str:
    """A kind of core with its vector extension, and how many run a model: x86_64 znver5 avx512, 2 threads. Of a GPU the
    architecture that schedules are made for, as programs are made ahead for all of its kind: cuda sm_90a."""
    target = isa.target.removeprefix("null:").partition(":")[0]
    if target != "cpu":
        return f"{target} {isa.arch}"
    known = ("avx512f", "avx2", "neon")
    vectors = next((name.removesuffix("f") for name in known if name in isa), "baseline")
    return f"{isa.arch} {isa.cpu or 'generic'} {vectors}, {threads} thread{'s' * (threads > 1)}"


def measured(isa: Features, threads: int) -> dict[str, Measured]:
    """Choices for this kind of machine by key: the user's, and the shipped ones where the user has none."""
    own = flags.tuning()
    if own is None:
        return {}
    machine = machine_name(isa, threads)
    return choices(SHIPPED, machine) | choices(own, machine)


def choices(path: Path, machine: str) -> dict[str, Measured]:
    """What a file says of a machine and of today's kernels, by key."""
    mine = (e for e in read(path).values() if e.machine == machine and e.generation == GENERATION)
    return {e.key: Measured(e.choice, e.over) for e in mine}


def digest() -> bytes:
    """Tells apart states of the databases: programs that were compiled with others are not the same programs."""
    own = flags.tuning()
    total = hashlib.blake2b(digest_size=16)
    for path in () if own is None else (SHIPPED, own):
        total.update(hashlib.blake2b(_bytes(path)).digest())
    return total.digest()


def read(path: Path) -> dict[tuple[str, str, int], Entry]:
    """The entries of a file by place; of none or of one that is not a database, no entries and a log record."""
    lines = _bytes(path).splitlines()
    if not lines:
        return {}
    if _object(lines[0]) != _HEADER:
        _log.warning("tuned: %s is no database of this version; it is left out", path)
        return {}
    found: dict[tuple[str, str, int], Entry] = {}
    for number, line in enumerate(lines[1:], 2):
        entry = _entry(_object(line))
        if entry is None:
            _log.warning("tuned: %s, line %d: not an entry; it is left out", path, number)
        else:
            found[entry.place] = entry
    return found


def add(path: Path, entries: Iterable[Entry]) -> None:
    """Put entries into a file, each in the place of an older one with the same key.

    Whoever is killed or adds at the same time, each entry is there whole or not at all. Raises ArtifactError, also for
    a file that is something else.
    """
    with locked(path):
        data = _bytes(path)
        head = data.partition(b"\n")[0]
        if data and _object(head) != _HEADER:
            raise ArtifactError(
                f"{path} is not a database of measured choices of this version",
                expected=json.dumps(_HEADER),
                got=repr(head[:80]),
                fix="name another file, or delete this one",
            )
        merged = read(path) | {e.place: e for e in entries}
        lines = (e.line() for e in merged.values())
        atomic_write(path, [json.dumps(_HEADER).encode() + b"\n", *lines])


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            _log.warning("tuned: %s is larger than %d bytes; it is left out", path, _MOST_BYTES)
            return b""
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        _log.warning("tuned: cannot read %s: %s", path, error)
        return b""


def _object(line: bytes) -> Mapping[str, object] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _entry(record: Mapping[str, object] | None) -> Entry | None:
    if record is None:
        return None
    machine, key, generation = record.get("machine"), record.get("key"), record.get("generation")
    choice, over = read_choice(record.get("choice")), read_choice(record.get("over"))
    seconds, over_seconds = _seconds(record.get("us")), _seconds(record.get("over_us"))
    if not (isinstance(machine, str) and isinstance(key, str) and type(generation) is int):
        return None
    if choice is None or over is None or seconds is None or over_seconds is None:
        return None
    if len(machine) > _MOST_TEXT or len(key) > _MOST_TEXT:
        return None
    return Entry(machine, key, choice, over, seconds, over_seconds, generation)


def _seconds(us: object) -> float | None:
    if isinstance(us, bool) or not isinstance(us, int | float) or not 0 <= us < 1e12:
        return None
    return us / 1e6
