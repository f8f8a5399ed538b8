"""Compare the results of a compiled model with those of its framework and of the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from ingot.debug.blame import Blame, find_blame
from ingot.debug.build import Build, build
from ingot.debug.comparison.exact import Judge
from ingot.debug.comparison.foreign import RefusedError
from ingot.debug.comparison.reference import MissingError, Reference, reference
from ingot.debug.comparison.tolerance import Agreement
from ingot.debug.feeds import Feeds, as_given, axis_sizes, cases, index_limits, random_feeds, read_feeds
from ingot.debug.source import Source, read_graph
from ingot.ir.interp import interpret
from ingot.runtime import artifact
from ingot.runtime.executor import CompiledModel
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

# Of the largest magnitude: what rounding operands leaves of the digits after the layers of a network.
ROUNDING = {"bfloat16": 2e-2, "float16": 2e-3, "tf32": 4e-3, "int8": 5e-2}


@dataclass(frozen=True)
class Check:
    """One output, at one choice of sizes, against one reference."""

    sizes: dict[str, int]
    reference: str
    output: str
    agreement: Agreement


@dataclass(frozen=True)
class Comparison:
    """`blame` says who is responsible for a check that failed, of compiling first; None if all agree, or are apart by
    rounding alone. values: of the
    first case, Ingot's results by name, and those of each reference by "NAME (WHO)".

    refused: why the model's framework did not run, or not at some of the sizes.
    """

    checks: tuple[Check, ...]
    blame: Blame | None
    refused: tuple[str, ...] = ()
    values: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    @property
    def ok(self) -> bool:
        return all(c.agreement.ok for c in self.checks)


def compare(
    source: Source,
    *,
    program: Path | None = None,
    threads: int | None = None,
    fast_math: bool = False,
    precision: str = "float32",
    activations: str = "float32",
    target: str = "native",
    sizes: Sequence[Mapping[str, int]] = (),
    tolerance: float | None = None,
    interpreter: bool = True,
    seed: int = 0,
    feed: Sequence[str] = (),
) -> Comparison:
    """Compile the model (or load `program`, compiled from it before) and check it on random inputs at several sizes, or
    on the arrays of `feed` (see `read_feeds`) at theirs; inputs that are not among them are random.

    The references are the model's framework where it is installed, and the interpreter.
    Where a result is apart from theirs, float64 judges first: elements that rounding alone decides count as equal.
    `tolerance` is by default what `precision` and `activations` allow. Raises what reading and compiling raise, and
    InputError for a `program` with other inputs or outputs than the model's, and where the framework can run at none of
    the sizes, or is not installed and there is no interpreter either.
    """
    if tolerance is None:
        tolerance = max((ROUNDING[name] for name in (precision, activations) if name in ROUNDING), default=None)
    # what a model keeps comes in and goes out, as random old values and new ones to compare
    graph = replace(read_graph(source), state=())
    built = build(
        graph, threads=threads, fast_math=fast_math, precision=precision, activations=activations, target=target
    )
    model = built.model() if program is None else _loaded(program, built, source, threads)
    limits = index_limits(graph)
    checks: list[Check] = []
    refused: list[RefusedError] = []
    missing: tuple[str, ...] = ()
    values: dict[str, np.ndarray] = {}
    try:
        other = reference(source)
    except MissingError as error:
        if not interpreter:
            raise
        other, missing = None, (str(error),)
    failing_feeds: dict[bool, Feeds] = {}  # the first inputs that show a fault, by whether it is one of compiling
    file_feeds = read_feeds(model, feed)
    file_sizes = axis_sizes(model.program, file_feeds)
    requested = [{**file_sizes, **requested_sizes} for requested_sizes in sizes or [{}]] if file_feeds else sizes
    size_choices = cases(model.program, requested)
    for sizes_of_case in size_choices:
        feeds = random_feeds(model.program, sizes_of_case, limits, seed) | file_feeds
        user_sizes = as_given(model.program, sizes_of_case)
        try:
            case_checks, results = _check(built, model, other, user_sizes, feeds, tolerance, interpreter)
        except RefusedError as error:
            refused.append(RefusedError(f"{_text(user_sizes)}: {error}" if sizes_of_case else str(error)))
            continue
        checks += case_checks
        values = values or results
        if failed := {c.reference for c in case_checks if not c.agreement.ok and c.agreement.size != "rounding"}:
            failing_feeds.setdefault("interpreter" in failed, feeds)
    if len(refused) == len(size_choices):
        raise refused[0]
    blame = find_blame(source, built, failing_feeds[max(failing_feeds)], other, tolerance) if failing_feeds else None
    if program is not None and blame is not None and blame.stage == "unknown":
        causes = "this file is quantized, of another model, or made with other options or by another version"
        text = f"{source.path}, compiled now, is right; {causes}"
        blame = Blame("program", str(program), "", "", text)
    return Comparison(tuple(checks), blame, (*missing, *map(str, refused)), values)


def _loaded(program: Path, built: Build, source: Source, threads: int | None) -> CompiledModel:
    model = CompiledModel(artifact.load(program), threads=threads)
    ours, theirs = ([(s.name, s.dtype) for s in p.inputs + p.outputs] for p in (built.program, model.program))
    if ours != theirs:
        expected = ", ".join(f"{name}: {dtype}" for name, dtype in ours)
        raise InputError(f"{program} is no program of {source.path}", expected=expected, got=repr(model))
    return model


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _check(
    built: Build,
    model: CompiledModel,
    other: Reference | None,
    sizes: dict[str, int],
    feeds: Feeds,
    tolerance: float | None,
    interpreter: bool,
) -> tuple[list[Check], dict[str, np.ndarray]]:
    """The checks of all outputs, and their values as `Comparison` has them."""
    at = _text(sizes)
    progress.report(f"run {at}".strip())
    outputs = model(**feeds)
    results = outputs if isinstance(outputs, tuple) else (outputs,)
    expected: dict[str, Sequence[np.ndarray]] = {}
    if other is not None:
        progress.report(f"{other.name} {at}".strip())
        expected[other.name] = other.run(feeds)
    if interpreter or other is None:
        progress.report(f"interpret {at}".strip())
        expected["interpreter"] = interpret(built.graph, list(feeds.values()))
    checks: list[Check] = []
    values = {spec.name: np.asarray(result) for spec, result in zip(model.outputs, results, strict=True)}
    judge = Judge(built.graph, list(feeds.values()), tolerance)
    for name, expected_arrays in expected.items():
        for i, (spec, got, want) in enumerate(
            zip(model.outputs, map(np.asarray, results), expected_arrays, strict=True)
        ):
            checks.append(Check(sizes, name, spec.name, judge.difference(i, got, want)))
            values[f"{spec.name} ({name})"] = want
    return checks, values
