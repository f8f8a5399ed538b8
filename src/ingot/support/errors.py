"""Errors that users see.

Every message says what was expected, what was found, where, and what to do:

    concat: inputs differ on axis 1: expected 4, got 8 at model.py:31; only axis 0 may differ

Raise the most specific class. `message(...)` builds the text from its parts, so that call sites
cannot forget one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Self

from ingot.support.dataclass import dataclass

_NAMED = 8  # names that a message lists


def message(
    what: str, *, expected: object = None, got: object = None, where: str | None = None, fix: str | None = None
) -> str:
    """Join the parts of an error: `what: expected E, got G at WHERE; FIX`. Parts that are None are left out."""
    parts: list[str] = []
    if expected is not None:
        parts.append(f"expected {expected}")
    if got is not None:
        parts.append(f"got {got}")
    text = what + (": " + ", ".join(parts) if parts else "")
    if where:
        text += f" at {where}"
    if fix:
        text += f"; {fix}"
    return text


def printable(text: str) -> str:
    """`text` with what a terminal would obey written out: names in a model are anybody's. Line ends stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)


def check_once(option: str, names: Sequence[object]) -> None:
    """Raise InputError where one of the names that an option is given for is there twice."""
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise InputError(option, expected="each name once", got=f"{', '.join(twice)} more than once")


def check_number(what: str, got: Any, expected: str, fits: Callable[[Any], bool], *, whole: bool = False) -> None:
    """Raise InputError unless `got` is a number, a whole one if asked, that fits; NaN fits no comparison."""
    if not isinstance(got, Integral if whole else Real) or isinstance(got, bool) or not fits(got):
        raise InputError(what, expected=expected, got=repr(got))


def fits(name: str, pattern: str) -> bool:
    """Whether a parameter's name is a pattern's ("*.bias"), or the pattern itself: names of trees have brackets."""
    return name == pattern or fnmatchcase(name, pattern)


def check_patterns(what: str, patterns: Iterable[str], names: Sequence[str]) -> None:
    """Raise InputError for a pattern that fits no name, telling those that are most like it."""
    for pattern in patterns:
        if any(fits(name, pattern) for name in names):
            continue
        near = sorted(names, key=lambda name: -SequenceMatcher(None, pattern, name).ratio())
        more = f" and {len(near) - _NAMED} more" if len(near) > _NAMED else ""
        expected = f"a pattern of {', '.join(near[:_NAMED])}{more}"
        raise InputError(what, expected=expected, got=repr(pattern))


def to_train(patterns: Sequence[str], floats: Mapping[str, bool]) -> list[str]:
    """Of parameters, each with whether it is of floats, those to train.

    Raises InputError for patterns that fit none, or integers alone.
    """
    if not patterns:
        raise InputError("trainable", expected="a pattern of names, or None for all floats", got="none")
    if floats:
        check_patterns("trainable", patterns, [*floats])
    for pattern in patterns:
        fitting = [name for name in floats if fits(name, pattern)]
        if fitting and not any(floats[name] for name in fitting):
            raise InputError("trainable", expected="parameters of floats", got=fitting, fix="leave integers out")
    return [name for name, is_float in floats.items() if is_float and any(fits(name, p) for p in patterns)]


class IngotError(Exception):
    """Base of every error that Ingot raises on purpose.

    `IngotError("text")` takes a finished message; the keyword parts are appended by `message`.
    """

    def __init__(
        self,
        what: str,
        *,
        expected: object = None,
        got: object = None,
        where: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        super().__init__(printable(message(what, expected=expected, got=got, where=where, fix=fix)))


class ShapeError(IngotError):
    """Shapes or dtypes inside a model do not fit together (type rules, shape inference).

    `sizes`: the two that would have to be equal, if that is what is wrong.
    """

    sizes: tuple[object, object] | None = None

    def between(self, sizes: tuple[object, object] | None) -> Self:
        self.sizes = sizes
        return self


class InputError(IngotError):
    """A value handed to a compiled model, or an argument of the public API, does not fit."""


class SizesError(InputError):
    """A call brings sizes that the program does not hold for, though the model may.

    told: what the call brings, the inputs' shapes and behind them values that are sizes. outside: the sizes beyond
    the program's bounds, by symbol.
    """

    told: tuple[tuple[int, ...], ...] = ()
    outside: Mapping[str, int] = MappingProxyType({})

    def of(self, told: Sequence[tuple[int, ...]], outside: Mapping[str, int] = MappingProxyType({})) -> Self:
        self.told, self.outside = tuple(told), outside
        return self


class ConstraintError(InputError):
    """No result of a search keeps all constraints. points: the nearest, none of them better in all respects."""

    def __init__(self, what: str, points: Sequence[Any]) -> None:
        self.points = tuple(points)
        super().__init__("\n  ".join([f"{what}\nthe nearest that were measured:", *map(str, points)]))


class ImportModelError(IngotError):
    """A model file or framework object cannot be read: missing, truncated, malformed, unsafe."""


class VerifyError(IngotError):
    """An IR invariant is broken. A bug in a pass, never the user's fault; the message names the pass."""


class CompileError(IngotError):
    """A valid model could not be turned into code (no kernel strategy, LLVM error, unresolved symbol)."""


class KernelError(CompileError):
    """The code of one kernel could not be made; its schedule may have others. kernel: its name in the program."""

    def __init__(self, what: str, kernel: str) -> None:
        super().__init__(what)
        self.kernel = kernel


class LimitError(IngotError):
    """A model grows beyond a budget of `Limits` while it is compiled: `limit` names it, and the user may raise it."""

    def __init__(self, limit: str, most: float, what: str, *, got: object = None, where: str | None = None) -> None:
        self.limit = limit
        raised = f"limits=ingot.Limits({limit}={most * 10}), or --limit {limit}={most * 10}"
        super().__init__(what, expected=f"at most {most}", got=got, where=where, fix=f"to go on, raise it: {raised}")


class DeviceError(IngotError):
    """A device cannot do what a program needs: none there, an old driver, too little memory, a kernel that failed."""


class ArtifactError(IngotError):
    """A saved artifact cannot be written or loaded: truncated, corrupted, wrong version, foreign ISA, full disk."""


@dataclass(frozen=True)
class UnsupportedOp:
    """One op that a frontend cannot import: its name, where it is used, and why it is refused."""

    name: str
    where: str = ""
    reason: str = ""

    def __str__(self) -> str:
        text = self.name
        if self.where:
            text += f" at {self.where}"
        if self.reason:
            text += f" ({self.reason})"
        return text


class UnsupportedOpError(IngotError):
    """A model uses ops that Ingot does not have. Lists all of them at once, each kind once with its uses counted.

    `ops` takes plain names or `UnsupportedOp`s in the model's order. `fix`: what to do, where it is known better.
    """

    fix = "rewrite the model without them, or ask for them at the project's tracker"

    def __init__(self, ops: Sequence[UnsupportedOp | str], *, model: str | None = None, fix: str | None = None) -> None:
        self.fix = fix or self.fix
        self.ops: tuple[UnsupportedOp, ...] = tuple(UnsupportedOp(op) if isinstance(op, str) else op for op in ops)
        kinds: dict[tuple[str, str], list[UnsupportedOp]] = {}
        for op in self.ops:
            kinds.setdefault((op.name, op.reason), []).append(op)
        lines = [f"  {uses[0]}" + (f" and {len(uses) - 1} more" if len(uses) > 1 else "") for uses in kinds.values()]
        of = f" in {model}" if model else ""
        plural = "op is" if len(kinds) == 1 else "ops are"
        head = f"{len(kinds)} {plural} not supported{of}:"
        super().__init__("\n".join([head, *lines, self.fix]))


class NeedsValues(UnsupportedOpError):
    """A model has ops whose results' ranks, axes or modes depend on values of `inputs`, which are not known.

    signature: all inputs in order, as nodes of a graph. outputs: with their dtypes, "" where the model does not say.
    sizes: whether they depend on which side of a test the inputs' sizes are, too.
    """

    def __init__(
        self,
        ops: Sequence[UnsupportedOp | str],
        inputs: Sequence[str],
        signature: Mapping[str, Any],
        outputs: Mapping[str, str],
        *,
        sizes: bool = False,
        model: str | None = None,
    ) -> None:
        self.inputs, self.signature, self.outputs, self.sizes = tuple(inputs), signature, outputs, sizes
        given = ", ".join(f"{name!r}: ..." for name in inputs)
        needed = [f"the values of inputs: pass weights={{{given}}} (--constant NAME=VALUE)"] if inputs else []
        needed += ["open sizes: pass dynamic={name: size, ...} (--dim NAME=SIZE)"] if sizes else []
        self.fix = "they depend on " + ", and on ".join(needed)
        super().__init__(ops, model=model)
