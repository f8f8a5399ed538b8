"""The errors that users see.

Every message says what was expected, what was given, where, and what to do:

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

_MAX_NAMES = 8  # names that a message lists


def message(
    what: str, *, expected: object = None, got: object = None, where: str | None = None, fix: str | None = None
) -> str:
    """Join the parts of an error: `what: expected E, got G at WHERE; FIX`. Parts that are None are omitted."""
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
    """`text` with terminal control characters escaped, as names in a model are untrusted. Line ends stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)


def check_once(option: str, names: Sequence[object]) -> None:
    """Raise InputError if an option is given twice for the same name."""
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise InputError(option, expected="each name once", got=f"{', '.join(twice)} more than once")


def check_number(what: str, got: Any, expected: str, is_valid: Callable[[Any], bool], *, whole: bool = False) -> None:
    """Raise InputError unless `got` is a number that `is_valid` accepts. whole: whether it must be an integer."""
    if not isinstance(got, Integral if whole else Real) or isinstance(got, bool) or not is_valid(got):
        raise InputError(what, expected=expected, got=repr(got))


def fits(name: str, pattern: str) -> bool:
    """Whether a parameter's name matches a pattern ("*.bias") or equals it, as names in trees have brackets."""
    return name == pattern or fnmatchcase(name, pattern)


def check_patterns(what: str, patterns: Iterable[str], names: Sequence[str]) -> None:
    """Raise InputError for a pattern that matches no name; the message lists the most similar names."""
    for pattern in patterns:
        if any(fits(name, pattern) for name in names):
            continue
        ranked = sorted(names, key=lambda name: -SequenceMatcher(None, pattern, name).ratio())
        suffix = f" and {len(ranked) - _MAX_NAMES} more" if len(ranked) > _MAX_NAMES else ""
        expected = f"a pattern of {', '.join(ranked[:_MAX_NAMES])}{suffix}"
        raise InputError(what, expected=expected, got=repr(pattern))


def select_trainable(patterns: Sequence[str], floats: Mapping[str, bool]) -> list[str]:
    """The names of the parameters to train. floats: for each parameter's name, whether its dtype is a float.

    Raises InputError for patterns that match no parameter, or only integers.
    """
    if not patterns:
        raise InputError("trainable", expected="a pattern of names, or None for all floats", got="none")
    if floats:
        check_patterns("trainable", patterns, [*floats])
    for pattern in patterns:
        matches = [name for name in floats if fits(name, pattern)]
        if matches and not any(floats[name] for name in matches):
            raise InputError("trainable", expected="parameters of floats", got=matches, fix="leave integers out")
    return [name for name, is_float in floats.items() if is_float and any(fits(name, p) for p in patterns)]


class IngotError(Exception):
    """Base of every error that Ingot raises on purpose.

    `IngotError("text")` takes a complete message; `message` appends the keyword parts.
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
    """Shapes or dtypes inside a model are inconsistent (type rules, shape inference).

    sizes: the two sizes that should be equal, if they are the cause.
    """

    sizes: tuple[object, object] | None = None

    def between(self, sizes: tuple[object, object] | None) -> Self:
        self.sizes = sizes
        return self


class InputError(IngotError):
    """An argument of a compiled model or of the public API is invalid."""


class SizesError(InputError):
    """A call has sizes that the program does not support, though the model may.

    shapes: of the call's inputs, followed by the values that are sizes. out_of_range: the sizes beyond the program's
    bounds, by symbol. fixed: by input and axis, the sizes where the program has another number.
    """

    shapes: tuple[tuple[int, ...], ...] = ()
    out_of_range: Mapping[str, int] = MappingProxyType({})
    fixed: Mapping[str, Mapping[int, int]] = MappingProxyType({})

    def of(
        self,
        shapes: Sequence[tuple[int, ...]],
        out_of_range: Mapping[str, int] = MappingProxyType({}),
        fixed: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
    ) -> Self:
        self.shapes, self.out_of_range, self.fixed = tuple(shapes), out_of_range, fixed
        return self


class ConstraintError(InputError):
    """No result of a search meets all constraints. points: the Pareto-optimal results."""

    def __init__(self, what: str, points: Sequence[Any]) -> None:
        self.points = tuple(points)
        super().__init__("\n  ".join([f"{what}\nthe nearest measured models:", *map(str, points)]))


class ImportModelError(IngotError):
    """A model file or framework object cannot be read: missing, truncated, malformed, unsafe."""


class VerifyError(IngotError):
    """An IR invariant is broken. It is a bug in a pass, never the user's fault; the message names the pass."""


class CompileError(IngotError):
    """No code could be generated for a valid model (no kernel strategy, LLVM error, unresolved symbol)."""


class KernelError(CompileError):
    """No code could be generated for one kernel; its schedule may offer alternatives. kernel: its name in the
    program."""

    def __init__(self, what: str, kernel: str) -> None:
        super().__init__(what)
        self.kernel = kernel


class LimitError(IngotError):
    """A model exceeds a budget of `Limits` during compilation. limit: its name; the user may raise it."""

    def __init__(self, limit: str, most: float, what: str, *, got: object = None, where: str | None = None) -> None:
        self.limit = limit
        raised = f"limits=ingot.Limits({limit}={most * 10}), or --limit {limit}={most * 10}"
        super().__init__(what, expected=f"at most {most}", got=got, where=where, fix=f"raise the limit: {raised}")


class DeviceError(IngotError):
    """A device cannot run a program: no device, an old driver, too little memory, a failed kernel."""


class ArtifactError(IngotError):
    """A saved artifact cannot be written or loaded: truncated, corrupted, wrong version, foreign ISA, full disk."""


@dataclass(frozen=True)
class UnsupportedOp:
    """An op that a frontend cannot import: its name, where it is used, and the reason."""

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


# of ops that Ingot reads, but not here: in a gradient, in a format that it writes
REWRITE = "rewrite the model without them; ops of your own have what their lowering has (ingot.register_op)"


class UnsupportedOpError(IngotError):
    """A model uses ops that Ingot does not support. Lists all of them, each kind once with the number of its uses.

    ops: names or `UnsupportedOp`s, in the model's order. fix: what to do, if there is specific advice.
    """

    fix = "ingot.register_op teaches them; or rewrite the model without them, or ask for them in the project's tracker"

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
    """A model has ops whose ranks, axes or modes depend on values of `inputs`, which are not known.

    signature: all inputs in order, as nodes of a graph. outputs: their dtypes by name, "" if the model does not declare
    one. sizes: whether the ops also depend on comparisons of the inputs' sizes.
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
        example = ", ".join(f"{name!r}: ..." for name in inputs)
        arguments = [f"the values of inputs: pass weights={{{example}}} (--constant NAME=VALUE)"] if inputs else []
        arguments += ["open sizes: pass dynamic={name: size, ...} (--dim NAME=SIZE)"] if sizes else []
        self.fix = "they depend on " + ", and on ".join(arguments)
        super().__init__(ops, model=model)
