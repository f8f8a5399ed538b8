"""Inputs to run a model on: sizes for its symbols, random arrays that suit it, arrays from files."""

from __future__ import annotations

import io
import math
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Input, Node
from ingot.ops.core.base import Category, category
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.executor import CompiledModel
from ingot.runtime.expr import evaluate, linear_in, show
from ingot.runtime.program import Program, TensorSpec
from ingot.support.errors import InputError, check_once
from ingot.support.files import atomic_write, open_regular

Feeds = dict[str, np.ndarray]

BATCHES, LENGTHS = (1, 3, 2), (128, 33, 7)  # one common size, and odd ones that leave remainders in every tile
PIXELS = (224, 97, 64)  # of an image's height and width: networks halve them time and again

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # of pictures by their channels
# what numpy raises for a file that holds no arrays
_UNREADABLE = (OSError, ValueError, EOFError, BadZipFile, zlib.error)


def read_archive(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file. Raises InputError for one that is damaged or of another kind."""
    try:
        with open_regular(path) as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise InputError(f"arrays {path}", expected="an archive of named arrays (numpy.savez)", got="one array")
            return {name: archive[name] for name in archive.files}
    except _UNREADABLE as error:
        raise _unread(path, "arrays written by numpy.savez", error) from error


def write_archive(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An .npz file of named arrays; of types that numpy lacks as float32."""
    data = io.BytesIO()
    plain = {name: a if a.dtype.isbuiltin == 1 else a.astype(np.float32) for name, a in arrays.items()}
    np.savez(data, **plain)  # type: ignore[arg-type]
    atomic_write(path, [data.getbuffer()])


def _unread(path: Path, expected: str, error: Exception) -> InputError:
    """In words of our own: numpy takes any other file for a pickle, and says how to load it unsafely."""
    if isinstance(error, OSError):
        return InputError(f"cannot read {path}: {error.strerror or error}")
    return InputError(f"cannot read {path}", expected=expected, got="a file that is damaged or of another kind")


def parse_sizes(texts: Sequence[str]) -> list[dict[str, int]]:
    """["batch=1,length=128", "batch=4"] -> one mapping per text. Raises InputError."""
    choices: list[dict[str, int]] = []
    for text in texts:
        parts = [part.strip().partition("=") for part in text.split(",")]
        if not all(name and size.isdecimal() for name, _, size in parts):
            raise InputError("--size", expected="NAME=SIZE[,NAME=SIZE...]", got=repr(text))
        check_once("--size", [name for name, _, _ in parts])
        choices.append({name: int(size) for name, _, size in parts})
    return choices


def choose_sizes(program: Program, case: int = 0, requested: Mapping[str, int] | None = None) -> dict[str, int]:
    """A size for every symbol: as given, else for case 0, 1, 2 a common or an odd size within the symbol's bounds.

    Sizes are given as the inputs have them, by symbol or by input and axis ("x:2"): 320 where an input is 32*h high,
    for h = 10. A symbol that some input has as its first axis counts as a batch; others are lengths, or pixels where an
    input looks like an image. Raises InputError for a name that is no symbol, and for a size that its input cannot
    have.
    """
    names, steps = [s.name for s in program.symbols], _steps(program)
    requested = dict(_placed(program, name, size, steps) for name, size in (requested or {}).items())
    if unknown := [name for name in requested if name not in names]:
        raise InputError("--size", expected=f"one of the model's symbols {names}, or INPUT:AXIS", got=unknown)
    leading = [linear_in(spec.shape[0]) for spec in program.inputs if spec.shape]
    batch_symbols = {linear[0] for linear in leading if linear}
    pixels = _pixels(program)
    sizes: dict[str, int] = {}
    for s in program.symbols:
        step = steps[s.name]
        if s.name in requested:
            if requested[s.name] % step:
                raise InputError(f"--size {s.name}", expected=f"a multiple of {step}", got=requested[s.name])
            sizes[s.name] = requested[s.name] // step
            continue
        usual = (PIXELS if s.name in pixels else BATCHES if s.name in batch_symbols else LENGTHS)[case % 3]
        size = -(-usual // step)
        size = size if s.lo is None else max(size, s.lo)
        size = size if s.hi is None else min(size, s.hi)
        sizes[s.name] = size
    return _allowed(program, sizes, requested)


def _placed(program: Program, name: str, size: int, steps: Mapping[str, int]) -> tuple[str, int]:
    """The symbol that the axis INPUT:AXIS is made of, and what `choose_sizes` takes for it; others as they are."""
    label, colon, axis = name.rpartition(":")
    specs = [spec for spec in program.inputs if spec.name == label]
    if not colon or not specs or not re.fullmatch(r"-?\d+", axis):
        return name, size
    (spec,), index = specs, int(axis)
    line = linear_in(spec.shape[index]) if -len(spec.shape) <= index < len(spec.shape) else None
    if line is None:
        raise InputError(f"--size {name}", expected=f"an open axis of {spec}, of one symbol", got=axis)
    symbol, slope, offset = line
    if (size - offset) % slope:
        raise InputError(f"--size {name}", expected=f"{offset} and a multiple of {slope}", got=size)
    return symbol, (size - offset) // slope * steps[symbol]


def _steps(program: Program) -> dict[str, int]:
    """The factor of each symbol in the inputs: 32 if it occurs only as 32*h."""
    steps: dict[str, int] = {}
    for dim in (dim for spec in program.inputs for dim in spec.shape):
        line = linear_in(dim)
        if line is not None:
            name, slope, offset = line
            steps[name] = min(steps.get(name, slope), slope) if offset == 0 else 1
    return {s.name: steps.get(s.name, 1) for s in program.symbols}


def as_given(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of symbols as `choose_sizes` takes them and people read them: as the inputs have them."""
    steps = _steps(program)
    return {name: size * steps.get(name, 1) for name, size in sizes.items()}


def _pixels(program: Program) -> set[str]:
    """The symbols of the height and width of images: two open axes, next to one of 1, 3 or 4 channels."""
    symbols: set[str] = set()
    for spec in program.inputs:
        if len(spec.shape) != 4 or not (spec.dtype.startswith(("f", "bf")) or spec.dtype == "u8"):
            continue
        for channels, extents in ((1, spec.shape[2:]), (3, spec.shape[1:3])):
            lines = [linear_in(extent) for extent in extents]
            if spec.shape[channels] in (1, 3, 4) and all(lines):
                symbols.update(line[0] for line in lines if line is not None)
    return symbols


def _allowed(program: Program, preferred: dict[str, int], requested: Mapping[str, int]) -> dict[str, int]:
    """`preferred`, or small sizes where the program's conditions refuse it."""
    minima = {s.name: 1 if s.lo is None else s.lo for s in program.symbols}
    ranges = {name: range(low, low + 8) for name, low in minima.items()}
    options = [[n] if name in requested else [n, *ranges[name]] for name, n in preferred.items()]
    for sizes in islice(product(*options), 10_000):
        values = dict(zip(preferred, sizes, strict=True))
        if all(evaluate(condition, values) >= 0 for condition in program.conditions):
            return values
    conditions = " and ".join(f"{show(condition)} >= 0" for condition in program.conditions)
    raise InputError("--size", expected=f"sizes with {conditions}", got=preferred, fix="give a size for each symbol")


def cases(program: Program, requested: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """The sizes to try: those given, else up to three different ones; one if nothing is dynamic."""
    choices = [choose_sizes(program, 0, g) for g in requested] or [choose_sizes(program, i) for i in range(3)]
    return [sizes for i, sizes in enumerate(choices) if sizes not in choices[:i]]


def index_limits(graph: Graph) -> dict[str, int]:
    """Input label -> n for integer inputs that select one of n rows: token ids must be below the vocabulary's size."""
    limits: dict[str, int] = {}
    users = graph.uses()
    for node in graph.inputs:
        if not isinstance(node.op, Input) or not node.dtype.is_integer:
            continue
        sizes = _limits(node, users)
        if sizes:
            limits[node.op.label] = min(sizes)
    return limits


def _limits(node: Node, users: Mapping[Node, Sequence[Node]]) -> list[int]:
    """Static sizes of the axes that `node` indexes, itself or through views and conversions."""
    sizes: list[int] = []
    stack, visited = [node], {node}
    while stack:
        value = stack.pop()
        for user in users.get(value, ()):
            op = user.op
            if isinstance(op, ops.Take) and user.inputs[1] is value:
                size = user.inputs[0].shape[op.axis]
                sizes += [size] if isinstance(size, int) else []
            elif isinstance(op, ops.Gather) and user.inputs[1] is value:
                axes = [user.inputs[0].shape[axis] for axis in op.start_index_map]
                sizes += [size for size in axes if isinstance(size, int)]
            elif (isinstance(op, ops.Convert) or category(op) is Category.VIEW) and user not in visited:
                visited.add(user)
                stack.append(user)
    return sizes


def random_feeds(
    program: Program, sizes: Mapping[str, int], limits: Mapping[str, int] | None = None, seed: int = 0
) -> Feeds:
    """Arrays for every input: normal floats; integers below the input's limit, else as their name and type suggest:
    lengths up to the largest size, a sampling rate, pixels of bytes, all levels; else 0 and 1 as in a mask.

    The first of a row of integers from {0, 1} is 1, so that no row is masked as a whole. The same seed gives an input
    of the same name the same values. Raises MemoryError for more bytes than can be addressed.
    """
    feeds: Feeds = {}
    for spec in program.inputs:
        shape = tuple(evaluate(dim, sizes) for dim in spec.shape)
        if math.prod(shape) * numpy_dtype(spec.dtype).itemsize > sys.maxsize:
            raise MemoryError  # numpy has an error of its own for each way of being too large
        if spec.elements:
            elements = [evaluate(dim, sizes) for dim in spec.elements]
            feeds[spec.name] = np.array(elements, numpy_dtype(spec.dtype)).reshape(shape)
            continue
        random = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
        limit = (limits or {}).get(spec.name)
        suggested = _suggested(spec, shape, sizes) if limit is None else None
        if suggested is None:
            feeds[spec.name] = _random(random, spec, shape, limit)
        else:
            feeds[spec.name] = random.integers(*suggested, shape, endpoint=True).astype(numpy_dtype(spec.dtype))
    return feeds


_SAMPLES_PER_SECOND = 16000  # of speech, in samples a second


def _suggested(spec: TensorSpec, shape: tuple[int, ...], sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """The least and the largest number that an input of integers is likely to take."""
    words = set(re.split(r"[^a-z]+", spec.name.lower()))
    if spec.dtype in ("i32", "i64") and sizes and words & {"len", "lens", "length", "lengths"}:
        longest = max(sizes.values())
        return -(-longest // 2), longest
    if spec.dtype in ("i32", "i64") and words & {"sr", "rate"} and math.prod(shape) == 1:
        return _SAMPLES_PER_SECOND, _SAMPLES_PER_SECOND
    if spec.dtype == "i8":  # levels
        return -128, 127
    return (0, 255) if spec.dtype == "u8" and len(shape) >= 3 else None


def _random(random: np.random.Generator, spec: TensorSpec, shape: tuple[int, ...], limit: int | None) -> np.ndarray:
    dtype = numpy_dtype(spec.dtype)
    if spec.dtype[0] in "iu":
        top = np.iinfo(dtype).max
        array = random.integers(0, min(2 if limit is None else limit, int(top)), shape).astype(dtype)
        if limit is None and shape and shape[-1]:
            array[..., 0] = 1
        return array
    if spec.dtype == "bool":
        array = random.random(shape) < 0.5
        if shape and shape[-1]:
            array[..., 0] = True
        return array
    return random.standard_normal(shape).astype(dtype)


def axis_sizes(program: Program, feeds: Feeds) -> dict[str, int]:
    """The sizes of arrays along open axes of inputs, as `choose_sizes` takes them: {"x:0": 8}."""
    sizes: dict[str, int] = {}
    for spec in program.inputs:
        if spec.name not in feeds:
            continue
        array = feeds[spec.name]
        if array.ndim != len(spec.shape):
            raise InputError(f"--input {spec.name}", expected=str(spec), got=f"an array of shape {list(array.shape)}")
        for axis, (dim, size) in enumerate(zip(spec.shape, array.shape, strict=True)):
            if linear_in(dim) is not None:
                sizes[f"{spec.name}:{axis}"] = size
    return sizes


def read_feeds(model: Program | CompiledModel, texts: Sequence[str]) -> Feeds:
    """["x=x.npy", "image=dog.png", "all.npz"] -> arrays by input name. An archive has them by name; for one input it
    holds one array, or one of that name. Raises InputError for unknown names and files that hold no array."""
    specs = {spec.name: spec for spec in model.inputs}
    arrays: list[tuple[str, np.ndarray]] = []
    files: list[tuple[str, Path]] = []
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals and Path(text).suffix.lower() == ".npz":
            archive = read_archive(Path(text))
            unknown = [key for key in archive if key not in specs]
            if unknown or not archive:
                got = unknown or "none"
                raise InputError(f"--input {text}", expected=f"arrays by the names {[*specs]}", got=got)
            arrays += archive.items()
            continue
        if not equals and len(specs) == 1:
            name, path = next(iter(specs)), text
        if name not in specs:
            raise InputError("--input", expected=f"NAME=FILE with a name of {[*specs]}, or FILE.npz", got=repr(text))
        files.append((name, Path(path)))
    check_once("--input", [name for name, _ in (*arrays, *files)])
    return dict(arrays) | {name: _read_input(path, specs[name]) for name, path in files}


def _read_input(path: Path, spec: TensorSpec) -> np.ndarray:
    suffix = path.suffix.lower()
    if suffix in _IMAGES:
        return read_image(path, spec)
    if suffix != ".npz":
        return read_array(path)
    archive = read_archive(path)
    array = archive.get(spec.name, next(iter(archive.values())) if len(archive) == 1 else None)
    if array is None:
        raise InputError(f"--input {spec.name}", expected=f"an archive with {spec.name!r}", got=sorted(archive))
    return array


def read_image(path: Path, spec: TensorSpec) -> np.ndarray:
    """A picture as an input takes it: channels first or last, resized to its height and width where they are fixed,
    bytes as they are, floats from 0 to 1; the same for each of a fixed batch. Raises InputError."""
    try:
        from PIL import Image  # an extra
    except ImportError as error:
        raise InputError("pictures need the package pillow", fix="pip install 'ingot-compiler[images]'") from error
    shape, expected = spec.shape[-3:], "an input of bytes or floats with 1, 3 or 4 channels, first or last"
    is_first = len(shape) == 3 and shape[0] in _MODES
    channels = shape[0] if is_first else shape[-1] if len(shape) == 3 else None
    if len(spec.shape) not in (3, 4) or channels not in _MODES or spec.dtype not in ("u8", "f16", "bf16", "f32", "f64"):
        raise InputError(f"--input {spec.name}={path}", expected=expected, got=str(spec))
    extents = shape[1:] if is_first else shape[:2]
    try:
        with Image.open(path) as image:
            picture = image.convert(_MODES[channels])
            height, width = (d if isinstance(d, int) else n for d, n in zip(extents, picture.size[::-1], strict=True))
            if picture.size != (width, height):
                picture = picture.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture).reshape(height, width, channels)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"cannot read {path}", expected="a picture", got=str(error)) from error
    pixels = np.moveaxis(pixels, 2, 0) if is_first else pixels
    array = pixels if spec.dtype == "u8" else (pixels / 255).astype(numpy_dtype(spec.dtype))
    if len(spec.shape) == 3:
        return np.ascontiguousarray(array)
    batch = spec.shape[0] if isinstance(spec.shape[0], int) else 1
    return np.ascontiguousarray(np.broadcast_to(array, (batch, *array.shape)))


def read_array(path: Path) -> np.ndarray:
    """The array in a .npy file. Raises InputError."""
    try:
        with open_regular(path) as file:
            array = np.load(file, allow_pickle=False)
    except _UNREADABLE as error:
        raise _unread(path, "an array written by numpy.save", error) from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"cannot read {path}", expected="one array (.npy)", got="an archive of several")
    return array
