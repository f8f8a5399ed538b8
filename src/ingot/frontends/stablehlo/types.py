"""Types, read from their text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.types import DType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError


@dataclass(frozen=True)
class Quant:
    """!quant.uniform: real = (stored - zero) * scale, per tensor or along `axis`; stored values lie in low..high."""

    storage: DType
    expressed_dtype: DType
    low: int
    high: int
    scales: tuple[float, ...]
    zeros: tuple[int, ...]
    axis: int | None = None


@dataclass(frozen=True)
class Tensor:
    """shape: None for an open size. dtype: of a complex number's parts, of the stored integers of a quantized type."""

    shape: tuple[int | None, ...]
    dtype: DType
    complex: bool = False
    quant: Quant | None = None
    limits: tuple[int | None, ...] = ()


_DTYPES: dict[str, DType] = {
    "i1": T.boolean,
    **{t.name[:2] + t.name[2:].upper(): t for t in T.DTYPES.values() if t.name.startswith(("f4", "f8"))},
    **{f"ui{t.bits}": t for t in T.DTYPES.values() if t.kind == "u"},
    **{t.name: t for t in T.DTYPES.values() if t.kind in "fi"},
    **{f"si{t.bits}": t for t in T.DTYPES.values() if t.kind == "i"},
}
# each type's first name, which is printed; the others are only read
NAMES: dict[DType, str] = {}
for _name, _type in _DTYPES.items():
    NAMES.setdefault(_type, _name)
_DIM = re.compile(r"(\d+|\?)x")
_MAX_ELEMENTS = 1 << 44


@lru_cache(maxsize=4096)
def tensor_type(text: str) -> Tensor:
    """Raises Unsupported for element types that Ingot lacks, ImportModelError for text that is no tensor type."""
    if not text.startswith("tensor<"):
        raise ImportModelError("a type", expected="tensor<...>", got=text[:60])
    content, shape, at = text[len("tensor<") : -1], list[int | None](), 0
    while match := _DIM.match(content, at):
        shape.append(None if match[1] == "?" else int(match[1]))
        at = match.end()
    element, _, encoding = _split(content[at:])
    count = 1
    for d in shape:
        count *= d or 1
    if count > _MAX_ELEMENTS:
        raise ImportModelError("a tensor is too large", got=text[:60])
    dims, limits = tuple(shape), _limits(encoding)
    if element.startswith("complex<"):
        return Tensor(dims, _dtype(element[len("complex<") : -1]), True, limits=limits)
    if element.startswith("!quant.uniform<"):
        quant = _quant(element)
        return Tensor(dims, quant.storage, quant=quant, limits=limits)
    return Tensor(dims, _dtype(element), limits=limits)


def _split(text: str) -> tuple[str, str, str]:
    depth = 0
    for i, ch in enumerate(text):
        depth += (ch in "<{") - (ch in ">}")
        if ch == "," and depth == 0:
            return text[:i].strip(), ",", text[i + 1 :]
    return text.strip(), "", ""


def _dtype(name: str) -> DType:
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise Unsupported(f"element type {name}")
    return dtype


def _limits(encoding: str) -> tuple[int | None, ...]:
    """#stablehlo.bounds<3, ?>"""
    match = re.search(r"bounds(?:\s*=\s*\[|<)([\d?,\s-]*)", encoding)
    if match is None:
        return ()
    return tuple(int(v) if v.strip().isdigit() else None for v in match[1].split(","))


_QUANT = re.compile(r"!quant\.uniform<([iu]\d+)(?:<(-?\d+):(-?\d+)>)?:(\w+)(?::(\d+))?,\s*(.*)>$", re.DOTALL)
_STEP = re.compile(r"([-+\deE.]+)(?::(-?\d+))?")


def _quant(text: str) -> Quant:
    match = _QUANT.match(text)
    if match is None:
        raise Unsupported(f"element type {text[:60]}")
    name, low, high, expressed, axis, steps = match.groups()
    storage = _dtype("ui" + name[1:] if name[0] == "u" else name)
    try:
        pairs = [(float(s), int(z or 0)) for s, z in _STEP.findall(steps)]
    except ValueError:
        pairs = []
    if not pairs or (axis is None and len(pairs) > 1):
        raise Unsupported(f"element type {text[:60]}")
    min_level, max_level = storage.range
    scales, zeros = zip(*pairs, strict=True)
    return Quant(
        storage, _dtype(expressed), min_level if low is None else int(low), max_level if high is None else int(high),
        scales, zeros, None if axis is None else int(axis),
    )  # fmt: skip


def show(dtype: DType, shape: Sequence[object]) -> str:
    """`tensor<2x?xf32>`; a size that is no int is a question mark."""
    dims = "".join(f"{d if isinstance(d, int) else '?'}x" for d in shape)
    return f"tensor<{dims}{NAMES[dtype]}>"
