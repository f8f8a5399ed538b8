"""The artifact: one file with a complete compiled program.

    [ prefix 64 B | header JSON | libingot | plan | stage texts ... | state | code ... | others ... | weights ]

The prefix holds magic, format version, header and file length, and a BLAKE2b digest of the header; the header holds
length and digest of every section. Weights start on a page and end the file; a gap in front of them is allowed.
Everything but the weights is checked by BLAKE2b. The weights are checked by BLAKE2b over the 64-bit sums of their 64
KiB blocks, which runs at memory speed (BLAKE2b's 1 GB/s would make loading slow) and finds truncation, torn writes,
zeroed pages and flipped bits. It is a guard against accidents: an artifact is native code, so load only files you trust
as you would a shared library.

The section libingot is the same for readers without JSON (`libingot.c`): where code, state and weights are, and the
plan as words (`libingot/words.py`). The prefix has its length and digest too. Code begins with two digests: of the
plan, and of its words with the weights' digest.

A program may come with others that read the same blob of weights (`with_others`). Each is a section, itself an artifact
without weights.

The file is mapped; weights are read in place and shared between processes. Replace a file that is in use (as
`save` does), never rewrite it in place.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ingot.runtime import plan_json
from ingot.runtime.libingot import words as plan_words
from ingot.runtime.plan_json import DIGEST_BYTES, Json
from ingot.runtime.program import WEIGHT_ALIGNMENT, Program
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError
from ingot.support.files import Part, atomic_write, open_regular

# As PNG's: it is not text, and a conversion of line ends changes it.
MAGIC = b"\x8eINGOT\r\n"
# Increment it with any change of this format, of the plan's JSON or of the driver's structures.
FORMAT_VERSION = 15
LANGUAGE = "language model"  # the entry of a program's meta that describes its text processing
_PREFIX = struct.Struct("<8sIIQ16sQ16s")
_DIRECTORY = struct.Struct("<qq16sqq16sqq16sq")
_PAGE = 4096
_BLOCK = 1 << 16
_MAX_HEADER = 64 << 20
_MAX_STAGE = 1 << 30
_OTHER_PREFIX = "other/"  # of the section names of other programs
_NO_WEIGHTS = np.empty(0, np.uint8)


@dataclass(frozen=True)
class _Section:
    offset: int
    length: int
    digest: str


def with_others(program: Program, others: Mapping[str, Program]) -> Program:
    """`program` together with others. Equal weights, such as most weights of the same model, are stored once. The
    others' notes and stage texts are omitted."""
    blobs, size = [program.weights], program.weights.nbytes
    parts_by_digest: dict[str, list[tuple[int, NDArray[np.uint8]]]] = {}
    for offset, nbytes in _weight_spans(program):
        part = program.weights[offset : offset + nbytes]
        parts_by_digest.setdefault(_weights_digest(part), []).append((offset, part))

    def place(part: NDArray[np.uint8]) -> int:
        nonlocal size
        candidates = parts_by_digest.setdefault(_weights_digest(part), [])
        for offset, other in candidates:
            if np.array_equal(part, other):
                return offset
        gap = -size % WEIGHT_ALIGNMENT
        blobs.extend((np.zeros(gap, np.uint8), part))
        candidates.append((size + gap, part))
        size += gap + part.nbytes
        return size - part.nbytes

    relocated: dict[str, Program] = {}
    for name, other in others.items():
        places = {span: place(other.weights[span[0] : sum(span)]) for span in _weight_spans(other)}
        buffers = tuple(
            replace(b, offset=places[b.offset, cast(int, b.nbytes)]) if b.kind == "weight" else b for b in other.buffers
        )
        relocated[name] = plan_json.sealed(replace(other, buffers=buffers, meta={}, stages={}))
    weights = program.weights if len(blobs) == 1 else np.concatenate(blobs)
    return replace(
        program, weights=weights, others={name: replace(other, weights=weights) for name, other in relocated.items()}
    )


def _weight_spans(program: Program) -> list[tuple[int, int]]:
    """(offset, bytes) of the weights that the program reads."""
    spans = ((b.offset, cast(int, b.nbytes)) for b in program.buffers if b.kind == "weight" and b.alias is None)
    return list(dict.fromkeys(spans))


def save(program: Program, path: Path, *, durable: bool = True) -> None:
    """Write the program to `path`, atomically. Raises ArtifactError (full disk, no permission)."""
    atomic_write(path, content(program), durable=durable)


def content(program: Program, min_head_bytes: int = 0) -> list[Part]:
    """The program as the parts of a file, the weights last. min_head_bytes: of what stands in front of them, whole
    pages."""
    # the weights of the others are part of the program's
    others = {
        f"{_OTHER_PREFIX}{n}": b"".join(content(replace(p, weights=_NO_WEIGHTS))) for n, p in program.others.items()
    }
    weights = np.ascontiguousarray(program.weights)
    plan = plan_json.to_json(program)
    words, weights_digest = plan_words.encode(program), _weights_digest(weights)
    stored_bytes = [s.initial.nbytes if s.initial.any() else 0 for s in program.state]
    parts: dict[str, bytes] = {"plan": json.dumps(plan, separators=(",", ":")).encode()}
    for stage, text in program.stages.items():
        parts[f"stage/{stage}"] = zlib.compress(text.encode(), 6)
    parts["state"] = b"".join(
        s.initial.tobytes() for s, nbytes in zip(program.state, stored_bytes, strict=True) if nbytes
    )
    own_digest = plan_json.digest(plan)
    for target, code in program.code.items():
        sealed_words = (words or b"") + bytes.fromhex(weights_digest)
        seal = hashlib.blake2b(sealed_words, digest_size=DIGEST_BYTES).digest()
        plan_digest = code.plan or own_digest
        seal = seal if plan_digest == own_digest else plan_digest  # code of another plan: readers reject it
        parts[f"code/{target}"] = plan_digest + seal + code.blob
    parts |= others
    if words is not None:
        library = _directory(parts, stored_bytes, weights.nbytes, weights_digest) + words
        parts = {"libingot": library, **parts}
    header: dict[str, Json] = {
        "sections": {name: [len(part), _digest(part)] for name, part in parts.items()},
        "weights": [weights.nbytes, weights_digest],
        "stages": {stage: len(text.encode()) for stage, text in program.stages.items()},
        "state": [*stored_bytes],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    body = _PREFIX.size + len(text) + sum(map(len, parts.values()))
    padding = max(-body % _PAGE, min_head_bytes - body)
    total = body + padding + weights.nbytes
    library = parts.get("libingot", b"")
    digests = (hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest() for data in (text, library))
    prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(text), total, next(digests), len(library), next(digests))
    return [prefix, text, *parts.values(), bytes(padding), weights.data]


def _directory(
    parts: Mapping[str, bytes], stored_bytes: Sequence[int], weights_bytes: int, weights_digest: str
) -> bytes:
    """(offset, bytes, digest) of the code, the state and the weights, with offsets from the end of this section; then
    the number of stored bytes of each tensor of the state (0: it is zeros)."""
    offset, rows = 0, dict[str, tuple[int, int, bytes]]()
    for name, part in parts.items():
        rows[name] = offset, len(part), bytes.fromhex(_digest(part))
        offset += len(part)
    weights = 0, weights_bytes, bytes.fromhex(weights_digest)
    fixed = _DIRECTORY.pack(*rows["code/cpu"], *rows["state"], *weights, len(stored_bytes))
    return fixed + struct.pack(f"<{len(stored_bytes)}q", *stored_bytes)


def load(path: Path) -> Program:
    """Read and check an artifact; its weights stay in the mapped file.

    Raises ArtifactError for a file that is missing, truncated, corrupted or of another format version. It does not
    check whether this machine can run it.
    """
    return read(_map(path), str(path))


def read(view: memoryview, path: str, shared: NDArray[np.uint8] | None = None) -> Program:
    """The program in a mapped file. path: for messages. shared: the weights that contain its own. Raises as `load`
    does."""
    length, digest = _check_prefix(path, view)
    text = bytes(view[_PREFIX.size : _PREFIX.size + length])
    if hashlib.blake2b(text, digest_size=16).digest() != digest:
        raise _corrupted(path, "header")
    sections, weights_section, header = _read_header(path, text, len(view))
    for name, section in sections.items():
        if not name.startswith("stage/") and _digest(_bytes(view, section)) != section.digest:
            raise _corrupted(path, name)
    weights = np.frombuffer(view, np.uint8, weights_section.length, weights_section.offset)
    if _weights_digest(weights) != weights_section.digest:
        raise _corrupted(path, "weights")
    weights = weights if shared is None else shared
    sizes = cast("dict[str, int]", header["stages"])
    stages = _Stages(path, view, {name: (sections[f"stage/{name}"], size) for name, size in sizes.items()})
    try:
        plan: Json = json.loads(_bytes(view, sections["plan"]))
    except (ValueError, RecursionError) as error:
        raise _corrupted(path, "plan") from error
    initial_state, stored_bytes = _bytes(view, sections["state"]), cast("list[int]", header["state"])
    code = {name.removeprefix("code/"): _bytes(view, s) for name, s in sections.items() if name.startswith("code/")}
    blobs = {target: part[2 * DIGEST_BYTES :] for target, part in code.items()}
    plans = {target: part[:DIGEST_BYTES] for target, part in code.items()}
    program = plan_json.from_json(
        plan, blobs=blobs, plans=plans, weights=weights, stages=stages, first=initial_state, stored=stored_bytes
    )
    if shared is not None:
        return program
    other_views = {
        n.removeprefix(_OTHER_PREFIX): view[s.offset :][: s.length]
        for n, s in sections.items()
        if n.startswith(_OTHER_PREFIX)
    }
    return replace(program, others={name: read(part, f"{path}: {name}", weights) for name, part in other_views.items()})


def _map(path: Path) -> memoryview:
    try:
        with open_regular(path) as file:
            if not os.fstat(file.fileno()).st_size:  # nothing to map
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
    except OSError as error:
        raise ArtifactError(f"cannot read {path}", got=error.strerror or str(error)) from error


_RESAVE_FIX = "save the model again"


def _corrupted(path: str, what: str) -> ArtifactError:
    return ArtifactError(
        f"{path} is corrupted", expected=f"a {what} section that matches its checksum", fix=_RESAVE_FIX
    )


def _check_prefix(path: str, view: memoryview) -> tuple[int, bytes]:
    if len(view) < _PREFIX.size:
        raise ArtifactError(f"{path} is not an Ingot artifact, or is truncated", fix=_RESAVE_FIX)
    magic, version, length, total, digest, *_ = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        fix = "compile a model first: ingot.compile(path).save(...)"
        raise ArtifactError(f"{path} is not an Ingot artifact", expected=f"magic {MAGIC!r}", got=repr(magic), fix=fix)
    if version != FORMAT_VERSION:
        fix = "compile the model again with this version, or load it with the one that saved it"
        raise ArtifactError(f"{path}", expected=f"format version {FORMAT_VERSION}", got=version, fix=fix)
    if len(view) != total:
        raise ArtifactError(f"{path} is truncated", expected=f"{total} bytes", got=len(view), fix=_RESAVE_FIX)
    if length > min(_MAX_HEADER, total - _PREFIX.size):
        raise _corrupted(path, "header")
    return length, digest


def _read_header(path: str, text: bytes, total: int) -> tuple[dict[str, _Section], _Section, dict[str, Json]]:
    """The sections by name, the weights' section, and the header. Every section is within the file."""
    try:
        header = cast("dict[str, Json]", json.loads(text))
        sections: dict[str, _Section] = {}
        offset = _PREFIX.size + len(text)
        for name, (length, digest) in cast("dict[str, tuple[int, str]]", header["sections"]).items():
            sections[name] = _Section(offset, _length(length), str(digest))
            offset += length
        length, digest = cast("tuple[int, str]", header["weights"])
        weights = _Section(total - _length(length), length, str(digest))
        if weights.offset < offset or weights.offset % _PAGE:
            raise ValueError("sections do not add up to the file")
        for name, size in cast("dict[str, int]", header["stages"]).items():
            if f"stage/{name}" not in sections or _length(size) > _MAX_STAGE:
                raise ValueError(f"stage {name}")
        if not sections.keys() >= {"plan", "state"}:
            raise ValueError("no plan or state")
        if sum(_length(n) for n in cast("list[int]", header["state"])) != sections["state"].length:
            raise ValueError("state of another size")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _corrupted(path, "header") from error
    return sections, weights, header


def _length(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"length {value!r}")
    return value


def _bytes(view: memoryview, section: _Section) -> bytes:
    return bytes(view[section.offset : section.offset + section.length])


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _inflated(path: str, view: memoryview, name: str, section: _Section, size: int) -> bytes:
    """Decompress a section of `size` bytes: a crafted section must not expand without limit."""
    try:
        data = zlib.decompressobj().decompress(_bytes(view, section), size + 1)
    except zlib.error as error:
        raise _corrupted(path, name) from error
    if len(data) != size:
        raise _corrupted(path, name)
    return data


def _weights_digest(weights: NDArray[np.uint8]) -> str:
    block_bytes = weights.nbytes // _BLOCK * _BLOCK
    sums = weights[:block_bytes].view(np.uint64).reshape(-1, _BLOCK // 8).sum(axis=1, dtype=np.uint64)
    digest = hashlib.blake2b(sums.tobytes(), digest_size=16)
    digest.update(weights[block_bytes:].tobytes())
    return digest.hexdigest()


class _Stages(Mapping[str, str]):
    """The IR texts, decompressed on access."""

    def __init__(self, path: str, view: memoryview, sections: Mapping[str, tuple[_Section, int]]) -> None:
        self._path = path
        self._view = view
        self._sections = sections

    def __getitem__(self, stage: str) -> str:
        section, size = self._sections[stage]
        if _digest(_bytes(self._view, section)) != section.digest:
            raise _corrupted(self._path, f"stage {stage}")
        try:
            return _inflated(self._path, self._view, f"stage {stage}", section, size).decode()
        except UnicodeDecodeError as error:
            raise _corrupted(self._path, f"stage {stage}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)
