"""A program's plan as JSON, for the artifact. The reader does not trust the text and checks each item."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ingot.runtime import dtypes
from ingot.runtime.expr import Expr
from ingot.runtime.program import (
    MAX_RANK,
    Buffer,
    BufferKind,
    Collective,
    CollectiveKind,
    HostCall,
    Program,
    Size,
    State,
    Step,
    Symbol,
    TensorSpec,
    zeros,
)
from ingot.support.errors import ArtifactError, VerifyError
from ingot.support.native import Code, Features

DIGEST_BYTES = 16
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def to_json(program: Program) -> Json:
    """The plan without code, weights, initial state and stages."""
    return {
        "symbols": [[s.name, s.lo, s.hi] for s in program.symbols],
        "conditions": [_expr_json(condition) for condition in program.conditions],
        "sizes": [[s.name, s.lo, _expr_json(s.bound), s.hi] for s in program.sizes],
        "inputs": [_spec_json(spec) for spec in program.inputs],
        "outputs": [_spec_json(spec) for spec in program.outputs],
        "state": [[_spec_json(s.spec), s.copy_reason] for s in program.state],
        "buffers": [
            [
                *(b.id, b.kind, _expr_json(b.nbytes), b.first_step, b.last_step, b.offset, b.index, b.halo, b.fill),
                None if b.alias is None else [b.alias[0], _expr_json(b.alias[1])],
                b.name,
                b.device,
            ]
            for b in program.buffers
        ],
        "steps": [
            [
                s.kernel,
                [[identity, _expr_json(offset)] for identity, offset in s.args],
                [_expr_json(dim) for dim in s.dims],
                _expr_json(s.chunks),
                s.label,
                _expr_json(s.rounds),
                s.target,
                s.device,
                _external_call_json(s),
            ]
            for s in program.steps
        ],
        "code": {name: [_features_json(c.features), dict(c.symbols)] for name, c in program.code.items()},
        "scratch_bytes": program.scratch_bytes,
        "meta": dict(program.meta),
    }


def digest(data: Json) -> bytes:
    """A digest that identifies a plan, without its `meta` notes."""
    plan = {key: value for key, value in cast("dict[str, Json]", data).items() if key != "meta"}
    text = json.dumps(plan, separators=(",", ":"), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def sealed(program: Program) -> Program:
    """The program with its code bound to this plan: a loaded file may not launch the code by another plan."""
    plan = digest(to_json(program))
    return replace(program, code={name: replace(code, plan=plan) for name, code in program.code.items()})


def from_json(
    data: Json,
    *,
    blobs: Mapping[str, bytes],
    plans: Mapping[str, bytes] | None = None,
    weights: NDArray[np.uint8],
    stages: Mapping[str, str],
    first: bytes = b"",
    stored: Sequence[int] | None = None,
) -> Program:
    """Rebuild and check a program. blobs, plans: the code and the digest of its plan, by target. first: the initial
    values of the state, concatenated. stored: the number of its bytes that belong to each tensor, 0 for a tensor of
    zeros; None: all tensors are stored.

    Raises ArtifactError if the plan is malformed: it is untrusted.
    """
    try:
        program = _program(cast("dict[str, Json]", data), blobs, weights, stages, first, stored)
        program.check()
        if missing := program.unwritten_results():
            raise VerifyError("program", expected="steps that write all outputs", got=f"none that writes {missing}")
        plan_digests = {name: (plans or {}).get(name, b"") for name in program.code}
        if any(plan_digests.values()) and set(plan_digests.values()) - {b"", digest(data)}:
            raise VerifyError("program", expected="the plan that its code was compiled for", got="another plan")
        return replace(
            program, code={name: replace(code, plan=plan_digests[name]) for name, code in program.code.items()}
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, VerifyError) as error:
        raise ArtifactError(f"the plan is malformed: {error!r}", fix="compile the model again") from error


def _expr_json(value: Expr) -> Json:
    return value if isinstance(value, int) else list(value)


def _spec_json(spec: TensorSpec) -> Json:
    return [spec.name, spec.dtype, *([_expr_json(dim) for dim in dims] for dims in (spec.shape, spec.elements))]


def _int(value: Json) -> int:
    if type(value) is not int or abs(value) > 1 << 62:
        raise TypeError(f"expected an integer, got {value!r}")
    return value


def _str(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    return value


def _list(value: Json, length: int | None = None) -> list[Json]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise TypeError(f"expected a list of {length or 'any'} items, got {value!r:.80}")
    return value


def _expr(value: Json) -> Expr:
    if not isinstance(value, list):
        return _int(value)
    return tuple(item if isinstance(item, str) else _int(item) for item in value)


def _spec(value: Json) -> TensorSpec:
    name, dtype, *dims = _list(value, 4)
    shape, elements = (tuple(_expr(dim) for dim in _list(axes)) for axes in dims)
    return TensorSpec(_str(name), _str(dtype), shape, elements)


def _buffer(value: Json) -> Buffer:
    identity, kind, nbytes, first, last, offset, index, halo, fill, alias, name, device = _list(value, 12)
    part: tuple[int, Expr] | None = None
    if alias is not None:
        parent, shift = _list(alias, 2)
        part = (_int(parent), _expr(shift))
    return Buffer(
        id=_int(identity),
        kind=cast(BufferKind, _str(kind)),
        nbytes=_expr(nbytes),
        first_step=_int(first),
        last_step=_int(last),
        offset=_int(offset),
        index=_int(index),
        halo=None if halo is None else _str(halo),
        fill=_int(fill),
        alias=part,
        name=_str(name),
        device=_str(device),
    )


def _step(value: Json) -> Step:
    kernel, args, dims, chunks, label, rounds, target, device, external_call = _list(value, 9)
    pairs = [_list(pair, 2) for pair in _list(args)]
    return Step(
        _str(kernel),
        tuple((_int(identity), _expr(offset)) for identity, offset in pairs),
        tuple(_expr(dim) for dim in _list(dims)),
        _expr(chunks),
        _str(label),
        _expr(rounds),
        None if target is None else _int(target),
        _str(device),
        **_external_call(external_call),
    )


def _external_call_json(step: Step) -> Json:
    """The call of a step without a kernel: ["host", name, operands, results, attributes], or a collective."""
    if (h := step.host) is not None:
        tensors: list[Json] = [[[dtype, rank] for dtype, rank in group] for group in (h.operands, h.results)]
        return ["host", h.name, *tensors, h.attributes]
    return None if step.collective is None else _collective_json(step.collective)


def _external_call(value: Json) -> dict[str, Any]:
    if value is None:
        return {}
    kind, *_ = _list(value, 5)
    return {"host": _host_call(value)} if kind == "host" else {"collective": _collective(value)}


def _host_call(value: Json) -> HostCall:
    _, name, operands, results, attributes = _list(value, 5)
    groups = []
    for group in (operands, results):
        pairs = [_list(pair, 2) for pair in _list(group)]
        groups.append(tuple((_str(dtype), _int(rank)) for dtype, rank in pairs))
    text = _str(attributes)
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ArtifactError("the attributes of a call of the host", expected="a JSON object", got=text[:80])
    return HostCall(_str(name), groups[0], groups[1], text)


def _collective_json(c: Collective) -> Json:
    groups: list[Json] = [list[Json](group) for group in c.groups]
    return [c.kind, groups, c.dtype, c.reduction, c.shift]


def _collective(value: Json) -> Collective:
    kind, groups, dtype, reduction, shift = _list(value, 5)
    ranks = tuple(tuple(_int(rank) for rank in _list(group)) for group in _list(groups))
    return Collective(cast(CollectiveKind, _str(kind)), ranks, _str(dtype), _str(reduction), _int(shift))


def _symbol(value: Json) -> Symbol:
    name, lo, hi = _list(value, 3)
    return Symbol(_str(name), *(None if bound is None else _int(bound) for bound in (lo, hi)))


def _size(value: Json) -> Size:
    name, lo, bound, hi = _list(value, 4)
    return Size(_str(name), _int(lo), _expr(bound), None if hi is None else _int(hi))


def _state(value: Json, first: bytes, stored: Sequence[int] | None) -> tuple[State, ...]:
    pairs = [_list(item, 2) for item in _list(value)]
    specs = [_spec(spec) for spec, _ in pairs]
    if any(len(s.shape) > MAX_RANK for s in specs):
        raise ValueError("state of too many dims")
    sizes = [prod(d for d in s.shape if isinstance(d, int)) * dtypes.itemsize(s.dtype) for s in specs]
    stored_sizes = list(stored) if stored is not None else sizes
    if len(stored_sizes) != len(sizes) or any(n and n != size for n, size in zip(stored_sizes, sizes, strict=True)):
        raise ValueError("state of another size")
    split = np.split(np.frombuffer(first, np.uint8), np.cumsum(stored_sizes)[:-1]) if specs else []
    parts = [part if n else zeros(size) for part, n, size in zip(split, stored_sizes, sizes, strict=True)]
    return tuple(map(State, specs, parts, [_str(copy_reason) for _, copy_reason in pairs]))


def _features_json(features: Features) -> Json:
    return [features.target, features.arch, list(features.features), features.cpu, list(features.caches)]


def _features(value: Json) -> Features:
    target, arch, names, cpu, caches = _list(value, 5)
    features = tuple(_str(name) for name in _list(names))
    return Features(_str(arch), features, _str(cpu), _str(target), tuple(_int(n) for n in _list(caches)))


def _code(value: Json, blob: bytes) -> Code:
    features, offsets = _list(value, 2)
    symbols = {_str(name): _int(offset) for name, offset in cast("dict[str, Json]", offsets).items()}
    for name, offset in symbols.items():
        if not 0 <= offset < len(blob):
            raise VerifyError(f"kernel {name!r}", expected=f"an offset below {len(blob)}", got=offset)
    return Code(_features(features), blob, symbols)


def _program(
    data: dict[str, Json],
    blobs: Mapping[str, bytes],
    weights: NDArray[np.uint8],
    stages: Mapping[str, str],
    first: bytes,
    stored: Sequence[int] | None,
) -> Program:
    meta = cast("dict[str, Json]", data["meta"])
    return Program(
        symbols=tuple(_symbol(item) for item in _list(data["symbols"])),
        conditions=tuple(_expr(item) for item in _list(data["conditions"])),
        sizes=tuple(_size(item) for item in _list(data["sizes"])),
        inputs=tuple(_spec(item) for item in _list(data["inputs"])),
        outputs=tuple(_spec(item) for item in _list(data["outputs"])),
        buffers=tuple(_buffer(item) for item in _list(data["buffers"])),
        steps=tuple(_step(item) for item in _list(data["steps"])),
        code={name: _code(item, blobs[name]) for name, item in cast("dict[str, Json]", data["code"]).items()},
        weights=weights,
        state=_state(data["state"], first, stored),
        scratch_bytes=_int(data["scratch_bytes"]),
        stages=stages,
        meta={_str(name): _str(text) for name, text in meta.items()},
    )
