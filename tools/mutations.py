"""Small damages by a seeded generator: to bytes, to messages of protobuf, to what JSON holds."""

from __future__ import annotations

import random
import re
from collections.abc import MutableSequence


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, lost, repeated or moved, or the end cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(out) + 1)
        size = min(rng.choice((1, 1, 2, 8, 64)), len(out) - at)
        match rng.randrange(6):
            case 0 if size:
                out[at] = rng.randrange(256)
            case 1 if size:
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = out[at : at + size] * rng.choice((1, 2, 100))
            case 4:
                out[at : at + size] = rng.choice((b"\xff", b"\0", b"\x80", b"\x7f")) * size
            case _:
                del out[max(at, len(out) // 2) :]
    return bytes(out)


_NUMBERS = (0, 1, -1, 2, 3, 7, 64, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 62) + 1, -(1 << 63), (1 << 63) - 1)
_TEXTS = (
    "", "x", "?", "a-b", "n//0", "n%0", "((((n))))", "max(n,", "2*n+1", "\x1b[2J", "\0", "é" * 300, "../../w", "NOTSET",
    "SAME_UPPER", "linear", "ij,jk->ik",
)  # fmt: skip


def mutate_message(message: object, rng: random.Random, names: list[str]) -> None:
    """One field somewhere in a protobuf message changed to a value of its type that is hard to bear."""
    place = message
    while True:
        fields = [(f, v) for f, v in place.ListFields()]  # type: ignore[attr-defined]
        if not fields:
            return
        found, value = rng.choice(fields)
        many = isinstance(value, MutableSequence)
        if many and rng.random() < 0.15:
            _mutate_list(value, rng)
            return
        item = rng.choice(list(value)) if many and len(value) else value
        if hasattr(item, "ListFields"):
            place = item
            continue
        new = _value_like(item, rng, names)
        try:
            if many:
                value[rng.randrange(len(value))] = new
            else:
                setattr(place, found.name, new)
        except (TypeError, ValueError):
            return
        return


def _mutate_list(value: object, rng: random.Random) -> None:
    items = list(value)  # type: ignore[call-overload]
    if not items:
        return
    match rng.randrange(3):
        case 0:
            items.pop(rng.randrange(len(items)))
        case 1:
            items.append(rng.choice(items))
        case _:
            rng.shuffle(items)
    copies = [type(i).FromString(i.SerializeToString()) if hasattr(i, "SerializeToString") else i for i in items]
    del value[:]  # type: ignore[attr-defined]
    value.extend(copies)  # type: ignore[attr-defined]


def _value_like(item: object, rng: random.Random, names: list[str]) -> object:
    if isinstance(item, int):
        return rng.choice((*_NUMBERS, item + 1, item - 1, -item))
    if isinstance(item, float):
        return rng.choice((0.0, -0.0, float("nan"), float("inf"), -1e30, 1e-45, 0.5))
    if isinstance(item, bytes):
        return mutate_bytes(item, rng) if item else b"\0\1\2\3"
    return rng.choice((*_TEXTS, *names))


def mutate_json(value: object, rng: random.Random) -> None:
    """One value somewhere inside changed, lost or repeated."""
    place = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))  # type: ignore[arg-type]
        if not keys:
            return
        key = rng.choice(keys)
        item = place[key]  # type: ignore[index]
        if isinstance(item, dict | list) and item and rng.random() < 0.9:
            place = item
            continue
        if rng.random() < 0.2:
            del place[key]  # type: ignore[attr-defined]
        elif isinstance(item, bool) or item is None:
            place[key] = rng.choice((None, True, 0, [], "x"))  # type: ignore[index]
        elif isinstance(item, int | float):
            place[key] = rng.choice((*_NUMBERS, 0.5, None, "n", [], float("nan")))  # type: ignore[index]
        elif isinstance(item, str):
            place[key] = rng.choice((*_TEXTS, None, 3, []))  # type: ignore[index]
        else:
            place[key] = rng.choice((None, 0, [], {}, "x", [[]]))  # type: ignore[index]
        return


def mutate_text(data: bytes, rng: random.Random) -> bytes:
    """A few of the integers in a text changed."""
    places = [m.span() for m in re.finditer(rb"(?<![\w.])-?\d+(?![\w.])", data)]
    out = data
    for start, end in sorted(rng.sample(places, min(len(places), rng.choice((1, 1, 2, 3)))), reverse=True):
        out = out[:start] + str(_near(int(data[start:end]), rng)).encode() + out[end:]
    return out


def mutate_words(data: bytes, rng: random.Random) -> bytes:
    """A few of the small aligned 32-bit integers changed, as a FlatBuffer holds sizes, axes and strides."""
    out = bytearray(data)
    places = [i for i in range(8, len(data) - 3, 4) if 0 < int.from_bytes(data[i : i + 4], "little") < 32]
    for at in rng.sample(places, min(len(places), rng.choice((1, 1, 2, 3)))):
        new = _near(int.from_bytes(data[at : at + 4], "little"), rng)
        out[at : at + 4] = (new & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(out)


def mutate_wire(data: bytes, rng: random.Random) -> bytes:
    """One integer somewhere in a serialized protobuf message changed; the lengths around it fit again."""
    fields = _fields(data)
    chosen = [i for i, (_, kind, _) in enumerate(fields or ()) if kind in (0, 2)]
    if not fields or not chosen:
        return data
    at = rng.choice(chosen)
    tag, kind, value = fields[at]
    if isinstance(value, int):
        fields[at] = tag, kind, _near(value, rng) & (1 << 64) - 1
    else:
        fields[at] = tag, kind, mutate_wire(value, rng) if _fields(value) else mutate_bytes(value, rng)
    parts: list[bytes] = []
    for tag, kind, value in fields:
        parts.append(_varint(tag << 3 | kind))
        parts.append(_varint(value) if isinstance(value, int) else (_varint(len(value)) if kind == 2 else b"") + value)
    return b"".join(parts)


def _near(n: int, rng: random.Random) -> int:
    return rng.choice((n + 1, n - 1, -n, 2 * n, 0, 1, 2, rng.choice(_NUMBERS)))


def _fields(data: bytes) -> list[tuple[int, int, int | bytes]] | None:
    """(number, wire type, varint or content) of the fields of a message; None where it is none."""
    out: list[tuple[int, int, int | bytes]] = []
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        tag, kind = key >> 3, key & 7
        if tag == 0 or kind not in (0, 1, 2, 5):
            return None
        if kind == 0:
            value, at = _read_varint(data, at)
            out.append((tag, kind, value))
            continue
        size, at = _read_varint(data, at) if kind == 2 else (8 if kind == 1 else 4, at)
        if at + size > len(data):
            return None
        out.append((tag, kind, data[at : at + size]))
        at += size
    return out


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            break
    return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
