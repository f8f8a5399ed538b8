"""Ops on strings, and the movement of tensors that hold them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as grammar  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from ingot.frontends.onnx.host.node import HostNode, Kind, host_op, strings
from ingot.frontends.onnx.movement import MOVEMENTS
from ingot.frontends.onnx.protos import TensorProto
from ingot.frontends.onnx.tensors import dtype_from_code

ML = "ai.onnx.ml"
_STRING = TensorProto.STRING


def _map_elements(fn: Callable[[Any], Any], x: np.ndarray, dtype: type | np.dtype = object) -> np.ndarray:
    mapped = np.empty(x.size, dtype)
    mapped[:] = [fn(v) for v in x.reshape(-1)]
    return mapped.reshape(x.shape)


@host_op("StringConcat", string_results={0})
def string_concat(n: HostNode, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = np.broadcast_arrays(a, b)
    texts = np.empty(a.shape, object)
    texts[...] = a + b if a.size else a
    return texts


@host_op("StringNormalizer", string_results={0})
def string_normalizer(n: HostNode, x: np.ndarray) -> np.ndarray:
    if not (x.ndim == 1 or (x.ndim == 2 and x.shape[0] == 1)):
        raise n.fail("strings of shape [C] or [1,C]", list(x.shape))
    fold = str if n.attr("is_case_sensitive", 0) else str.lower
    stop = {fold(v) for v in n.attr("stopwords", ())}
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(n.attr("case_change_action", "NONE"), str)
    kept_words = [change(v) for v in x.reshape(-1) if fold(v) not in stop]
    # ONNX: without any words left, the result is one empty string
    return strings(kept_words or [""], (*x.shape[:-1], max(len(kept_words), 1)))


@host_op("StringSplit", string_results={0})
def string_split(n: HostNode, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    delimiter, max_splits = n.attr("delimiter") or None, n.attr("maxsplit", -1)
    parts = [v.split(delimiter, max_splits) for v in x.reshape(-1)]
    if delimiter is None and max_splits >= 0:
        parts = [[p.rstrip() for p in v] for v in parts]
    longest = max(map(len, parts), default=0)
    padded = [v + [""] * (longest - len(v)) for v in parts]
    counts = np.array([len(v) for v in parts], np.int64).reshape(x.shape)
    return strings(np.array(padded, object).reshape(*x.shape, longest)), counts


@host_op("RegexFullMatch", string_results=set())
def regex_full_match(n: HostNode, x: np.ndarray) -> np.ndarray:
    pattern = n.attr("pattern", "")
    try:
        tree = grammar.parse(pattern)
        _check_linear(n, tree, False)
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as e:
        raise n.fail("a pattern of RE2", f"{pattern!r}: {e}") from e
    return _map_elements(lambda v: compiled.fullmatch(v) is not None, x, np.bool_)


_REPEAT_CODES = (codes.MAX_REPEAT, codes.MIN_REPEAT)
_CODES_BEYOND_RE2 = (codes.GROUPREF, codes.GROUPREF_EXISTS, codes.ASSERT, codes.ASSERT_NOT)


def _check_linear(n: HostNode, tree: Any, repeated: bool) -> None:
    """Refuse constructs that RE2 lacks, and repeats of repeats or of alternatives: a pattern is untrusted, and Python's
    matcher may take exponential time for those."""
    for op, shape in tree:
        choice = op is codes.BRANCH or (op in _REPEAT_CODES and shape[1] > 1)
        if op in _CODES_BEYOND_RE2 or (repeated and choice):
            raise n.fail("a pattern without references, lookaround, and repeats of repeats or choices", op)
        if op in _REPEAT_CODES:
            _check_linear(n, shape[2], repeated or shape[1] > 1)
        elif op is codes.SUBPATTERN:
            _check_linear(n, shape[-1], repeated)
        elif op is codes.BRANCH:
            for branch in shape[1]:
                _check_linear(n, branch, repeated)


@host_op("Equal", string_results=set())
def equal(n: HostNode, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.equal(a, b), np.bool_)


# numbers as strings and back


def _text_of(v: np.floating | np.integer | np.bool_) -> str:
    if isinstance(v, np.bool_):
        return str(int(v))
    if np.isnan(v):
        return "NaN"
    if np.isinf(v):
        return "INF" if v > 0 else "-INF"
    return np.format_float_positional(v, trim="-") if v.dtype.kind == "f" else str(int(v))


def _cast_gives(n: HostNode, of_strings: bool) -> set[int]:
    return {0} if n.attr("to") == _STRING else set()


@host_op("Cast", string_results=_cast_gives)
def cast(n: HostNode, x: np.ndarray) -> np.ndarray:
    code = n.attr("to")
    if code == _STRING:
        return x if x.dtype == object else _map_elements(_text_of, x)
    dtype = dtype_from_code(code).numpy
    try:
        if dtype.kind in "iu":
            return _map_elements(int, x, dtype)
        if dtype.kind == "b":
            return _map_elements(lambda v: float(v) != 0, x, dtype)
        return _map_elements(float, x, np.float64).astype(dtype)
    except (ValueError, OverflowError) as e:
        raise n.fail(f"strings that are numbers of {dtype}", e) from e


# labels


def _entries(n: HostNode, what: str) -> list[Any]:
    for kind in ("strings", "int64s", "floats"):
        entries = n.attr(f"{what}_{kind}")
        if entries is not None:
            return list(entries)
    entries = n.attr(f"{what}_tensor")
    return [] if entries is None else entries.reshape(-1).tolist()


def _value_type(n: HostNode) -> tuple[np.dtype, Any]:
    """The type of LabelEncoder's values and their default."""
    default_tensor = n.attr("default_tensor")
    values = n.attr("values_tensor")
    for kind, single, dtype, default in (
        ("strings", "string", object, "_Unused"),
        ("int64s", "int64", np.int64, -1),
        ("floats", "float", np.float32, -0.0),
    ):
        if n.attr(f"values_{kind}") is not None:
            return np.dtype(dtype), n.attr(f"default_{single}", default)
    dtype = values.dtype if isinstance(values, np.ndarray) else np.dtype(np.float32)
    plain = "_Unused" if dtype.kind == "O" else -1 if dtype.kind in "iu" else -0.0
    return dtype, plain if default_tensor is None else default_tensor.reshape(-1)[0]


def _label_gives(n: HostNode, of_strings: bool) -> set[int]:
    if n.version < 2:
        return set() if of_strings else {0}
    return {0} if _value_type(n)[0].kind == "O" else set()


@host_op("LabelEncoder", domain=ML, string_results=_label_gives)
def label_encoder(n: HostNode, x: np.ndarray) -> np.ndarray:
    if n.version < 2:
        classes = n.attr("classes_strings", ())
        if x.dtype == object:
            places = {v: i for i, v in enumerate(classes)}
            return _map_elements(lambda v: places.get(v, n.attr("default_int64", -1)), x, np.int64)
        default = n.attr("default_string", "_Unused")
        return _map_elements(lambda v: classes[v] if 0 <= v < len(classes) else default, x)
    dtype, default = _value_type(n)
    keys, values = _entries(n, "keys"), _entries(n, "values")
    if len(keys) != len(values):
        raise n.fail("as many keys as values", f"{len(keys)} and {len(values)}")
    table = dict(zip(keys, values, strict=True))
    nan = next((v for k, v in reversed(table.items()) if k != k), default)
    return _map_elements(
        lambda v: nan if v != v else table.get(v, default), x if x.dtype == object else _python_numbers(x), dtype
    )


def _python_numbers(x: np.ndarray) -> np.ndarray:
    """Numbers as Python's, whose hashes do not depend on the type."""
    numbers = np.empty(x.size, object)
    numbers[:] = x.reshape(-1).tolist()
    return numbers.reshape(x.shape)


@host_op(
    "CategoryMapper", domain=ML, kind=Kind.ALWAYS, string_results=lambda n, of_strings: set() if of_strings else {0}
)
def category_mapper(n: HostNode, x: np.ndarray) -> np.ndarray:
    names, numbers = n.attr("cats_strings", ()), n.attr("cats_int64s", ())
    if x.dtype == object:
        table = dict(zip(names, numbers, strict=True))
        return _map_elements(lambda v: table.get(v, n.attr("default_int64", -1)), x, np.int64)
    name_of = dict(zip(numbers, names, strict=True))
    return _map_elements(lambda v: name_of.get(int(v), n.attr("default_string", "_Unused")), x)


@host_op("OneHotEncoder", domain=ML, string_results=set())
def one_hot_encoder(n: HostNode, x: np.ndarray) -> np.ndarray:
    names = np.array(list(n.attr("cats_strings", ())), object)
    is_hit = x[..., None] == names
    if not n.attr("zeros", 1) and not is_hit.any(-1).all():
        raise n.fail(f"one of {names.tolist()}", x[~is_hit.any(-1)].tolist())
    return is_hit.astype(np.float32)


# counts of n-grams


@host_op("TfIdfVectorizer", kind=Kind.ALWAYS, string_results=set())
def tf_idf(n: HostNode, x: np.ndarray) -> np.ndarray:
    """For each row, its n-grams from the pool: counts (TF), weights of those present (IDF) or their product (TFIDF)."""
    pool = _grams(n)
    places = n.attr("ngram_indexes")
    width = max(places, default=-1) + 1
    longest = min(n.attr("max_gram_length"), x.shape[-1] if x.ndim else 0)
    lengths = range(max(1, n.attr("min_gram_length")), longest + 1)
    if x.ndim not in (1, 2):
        raise n.fail("a row or rows of tokens", f"rank {x.ndim}")
    rows = x.reshape(-1, x.shape[-1]) if x.size else x.reshape(max(1, int(np.prod(x.shape[:-1]))), 0)
    features = np.zeros((len(rows), width), np.float32)
    for row, line in enumerate(rows.tolist()):
        for gram, count in _ngram_counts(line, lengths, n.attr("max_skip_count")).items():
            if gram in pool:
                features[row, places[pool[gram]]] += count
    mode = n.attr("mode")
    weights = np.ones(width, np.float32)
    if n.attr("weights") is not None:
        for column, weight in zip(places, n.attr("weights"), strict=False):
            weights[column] = weight
    if mode == "IDF":
        features = (features > 0) * weights
    elif mode == "TFIDF":
        features = features * weights
    return features.astype(np.float32).reshape(*x.shape[:-1], width)


def _grams(n: HostNode) -> dict[tuple[Any, ...], int]:
    """n-gram -> its number, from a pool that is ordered by length."""
    tokens = n.attr("pool_strings") or n.attr("pool_int64s") or ()
    starts = [*n.attr("ngram_counts"), len(tokens)]
    if starts != sorted(starts) or starts[0] < 0:
        raise n.fail(f"ngram_counts that rise from 0 to {len(tokens)}", starts[:-1])
    counts: dict[tuple[Any, ...], int] = {}
    number = 0
    for length, (first, last) in enumerate(pairwise(starts), 1):
        for start in range(first, last, length):
            counts[tuple(tokens[start : start + length])] = number
            number += 1
    if number > len(n.attr("ngram_indexes")):
        raise n.fail(f"an index for each of {number} n-grams", len(n.attr("ngram_indexes")))
    return counts


def _ngram_counts(line: Sequence[Any], lengths: range, skips: int) -> Counter[tuple[Any, ...]]:
    """Counts of a row's n-grams, with up to `skips` tokens skipped between their tokens; single tokens count once."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for length in lengths:
        for step in range(1, (skips if length > 1 else 0) + 2):
            reach = (length - 1) * step
            if reach >= len(line):
                break
            counts.update(tuple(line[start : start + reach + 1 : step]) for start in range(len(line) - reach))
    return counts


# movement


@host_op("Identity")
def identity(n: HostNode, x: np.ndarray) -> np.ndarray:
    return x


@host_op("Shape", "Size", string_results=set())
def shape(n: HostNode, x: np.ndarray) -> np.ndarray:
    if n.proto.op_type == "Size":
        return np.asarray(x.size, np.int64)
    return np.asarray(x.shape[n.attr("start", 0) : n.attr("end")], np.int64)


@host_op("ArrayFeatureExtractor", domain=ML)
def feature(n: HostNode, x: np.ndarray, at: np.ndarray) -> np.ndarray:
    return x[..., at.reshape(-1)]


@host_op("Where")
def where(n: HostNode, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(condition, a, b), object)


for _name, _move in MOVEMENTS.items():
    host_op(_name)(_move)


def _constant_gives(n: HostNode, of_strings: bool) -> set[int]:
    attributes = {a.name: a for a in n.proto.attribute}
    textual = "value_string" in attributes or "value_strings" in attributes
    return {0} if textual or ("value" in attributes and attributes["value"].t.data_type == _STRING) else set()


@host_op("Constant", string_results=_constant_gives)
def constant(n: HostNode) -> np.ndarray:
    for name in ("value", "value_string", "value_strings"):
        value = n.attr(name)
        if value is not None:
            return strings(value) if isinstance(value, np.ndarray) else strings(value, np.shape(value))
    raise n.fail("a constant of strings", [a.name for a in n.proto.attribute])
