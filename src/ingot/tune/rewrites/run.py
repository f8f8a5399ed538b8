"""Search for rewrites of a model's own subgraphs that are faster on this machine, and keep the faster ones.

subgraphs  ->  forms of each  ->  proof at the model's sizes  ->  interleaved measurement, also of the whole model
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ingot.debug.build import build
from ingot.debug.feeds import Feeds
from ingot.ir.dims import substitute
from ingot.ir.node import Graph
from ingot.ir.types import static_shape
from ingot.passes.core.rewrites import equality
from ingot.passes.core.rewrites.rewrite import Rewrite, apply_rewrites, is_sound
from ingot.pipeline import tuning
from ingot.pipeline.build import build_program
from ingot.runtime.bind import bind_symbols, binding_shapes
from ingot.runtime.executor import CompiledModel
from ingot.support.dataclass import dataclass
from ingot.tune.rewrites.forms import forms
from ingot.tune.rewrites.subgraphs import Subgraph, bodies, subgraphs

# the gain that both the median of paired ratios and the best runs must show for a rewrite to be kept
NEEDED_GAIN = 1.03
NEEDED_CALL_GAIN = 1.01  # of a call of the whole model, of all that are kept
FORMS_MEASURED = 3
MAX_TRIED_ALONE = 4  # rewrites, in the whole model
MAX_ELEMENTS = 1 << 26  # of the values of a form that is measured at the bounds of its sizes
MIN_SECONDS, MAX_SECONDS = 1.0, 5.0  # to enumerate the forms of a subgraph
_ROUNDS, _RUN_SECONDS = 15, 0.02


@dataclass(frozen=True)
class Row:
    """The result for a subgraph. text: its form -> the best other one. count: its occurrences in the model. forms: the
    number of forms that are cheaper by the cost model. state: "kept", "slower", "needs fast math", "wrong" (a form that
    is not equal: a bug), or "no cheaper form"."""

    text: str
    count: int
    forms: int
    gain: float
    state: str


@dataclass(frozen=True)
class Report:
    """rewrites: those that are kept. gain: of a call of the whole model, the median of paired ratios; 1 without
    rewrites. withdrawn_count: the number of rewrites that were faster in isolation, but did not make calls faster."""

    machine: str
    database: str
    rows: tuple[Row, ...]
    rewrites: tuple[str, ...]
    gain: float
    withdrawn_count: int = 0


def find_rewrites(
    graph: Graph,
    feeds: Feeds,
    *,
    threads: int,
    budget: float,
    database: Path,
    fast_math: bool = False,
    precision: str = "float32",
    watch: Callable[[str, float], None] = lambda text, seconds: None,
) -> Report:
    """Search for about `budget` seconds, and add the rewrites that make calls with `feeds` faster to `database`.

    Without `fast_math`, only forms with the same roundings are kept. Of open sizes, a rewrite holds for all within the
    model's bounds: it is measured at those of `feeds`, and may not be slower at the bounds. Raises what compiling
    raises, and ArtifactError for a database that cannot be written.
    """
    tuning.add(database, ())
    watch("compile", 0.0)
    baseline = build(graph, threads=threads, fast_math=fast_math, precision=precision, rewrites=())
    arrays = [feeds[spec.name] for spec in baseline.program.inputs]
    sizes = bind_symbols(baseline.program, binding_shapes(baseline.program, arrays))
    machine = tuning.machine_name(baseline.features, threads)
    began = time.monotonic()  # the compilation does not count towards the budget
    rows: list[Row] = []
    found: list[tuple[int, tuning.Rewritten]] = []

    def built(body: Graph) -> Graph:
        return build(body, threads=threads, fast_math=fast_math, rewrites=()).graph_after("crop")

    graphs = (baseline.graph_after("crop"), *bodies(baseline.graph_after("crop"), built))
    candidates = sorted((s for g in graphs for s in subgraphs(g, sizes)), key=lambda s: -s.flops)
    # small forms are found first: it is better to look at more subgraphs
    seconds_each = min(MAX_SECONDS, max(MIN_SECONDS, budget / max(len(candidates), 1)))
    for number, subgraph in enumerate(candidates):
        seconds = time.monotonic() - began
        if seconds > budget:
            break
        watch(f"subgraph {number + 1} of {len(candidates)}", seconds)
        row, win = _searched(subgraph, seconds_each, sizes, machine, threads, fast_math)
        rows.append(row)
        found += [(subgraph.count, win)] if win else []
    watch("the whole model", time.monotonic() - began)
    # where several overlap, the first is applied
    wins = [w for _, w in sorted(found, key=lambda f: f[0] * (f[1].seconds - f[1].over_seconds))]

    def model(chosen: Sequence[tuning.Rewritten]) -> CompiledModel:
        rewrites = tuple(w.rewrite for w in chosen)
        program = build_program(
            graph, baseline.features, threads, fast_math=fast_math, precision=precision, rewrites=rewrites
        )
        return CompiledModel(program, threads=threads)

    kept, gain = _confirmed(wins, model, feeds)
    tuning.add(database, kept)
    texts = tuple(str(w.rewrite) for w in kept)
    return Report(machine, str(database), tuple(rows), texts, gain, len(wins) - len(kept))


def _confirmed(
    wins: Sequence[tuning.Rewritten], model: Callable[[Sequence[tuning.Rewritten]], CompiledModel], feeds: Feeds
) -> tuple[list[tuning.Rewritten], float]:
    """The rewrites that make calls of the model faster, and by how much: all, or those of the first few that do so one
    after the other."""
    if not wins:
        return [], 1.0
    original = model(())
    gain, _ = _compared((original, model(wins)), feeds, rounds=2 * _ROUNDS)
    if gain >= NEEDED_CALL_GAIN:
        return list(wins), gain
    kept: list[tuning.Rewritten] = []
    gain = 1.0
    for win in wins[:MAX_TRIED_ALONE] if len(wins) > 1 else ():
        with_win, _ = _compared((original, model((*kept, win))), feeds, rounds=2 * _ROUNDS)
        if with_win >= gain * NEEDED_CALL_GAIN:
            kept, gain = [*kept, win], with_win
    return kept, gain


def _searched(
    subgraph: Subgraph, seconds: float, sizes: Mapping[str, int], machine: str, threads: int, fast_math: bool
) -> tuple[Row, tuning.Rewritten | None]:
    text, count = str(Rewrite.of(subgraph.graph, subgraph.graph, exact=True)).partition(" -> ")[0], subgraph.count
    candidates = forms(subgraph.graph, seconds, sizes=subgraph.sizes)
    if not candidates:
        return Row(text, count, 0, 1.0, "no cheaper form"), None
    best: tuple[float, float, float, Rewrite] | None = None
    state = "slower"
    for after in candidates[:FORMS_MEASURED]:
        rewrite = Rewrite.of(subgraph.graph, after, equality.are_equal(subgraph.graph, after, exactly=True))
        if not is_sound(rewrite):
            return Row(str(rewrite), count, len(candidates), 1.0, "wrong"), None
        if not rewrite.exact and not fast_math:
            state = "needs fast math"
            text = str(rewrite)
            continue
        context = subgraph.context
        graphs = (context, apply_rewrites(context, [rewrite], fast_math=fast_math))
        models = [build(g, threads=threads, fast_math=fast_math, rewrites=()).model() for g in graphs]
        gain, (before_seconds, after_seconds) = _compared(models, _random_feeds(context, sizes))
        # of what gains enough here, what is not slower at the ends of the bounds
        at_ends = (_random_feeds(context, ends) for ends in _ends(context, sizes) if gain >= NEEDED_GAIN)
        least = min((_compared(models, feeds)[0] for feeds in at_ends), default=gain)
        gain = gain if least * NEEDED_GAIN >= 1 else least
        if best is None or gain > best[0]:
            best = gain, before_seconds, after_seconds, rewrite
    if best is None:
        return Row(text, count, len(candidates), 1.0, state), None
    gain, before_seconds, after_seconds, rewrite = best
    if min(gain, before_seconds / after_seconds) < NEEDED_GAIN:
        return Row(str(rewrite), count, len(candidates), gain, "slower"), None
    win = tuning.Rewritten(machine, rewrite, after_seconds, before_seconds)
    return Row(str(rewrite), count, len(candidates), gain, "kept"), win


def _ends(context: Graph, sizes: Mapping[str, int]) -> list[Mapping[str, int]]:
    """The sizes at which a form is measured besides: the lowest of its symbols, and the highest if they are bounded."""
    limits = {name: (low, high) for name, low, high in context.bounds}
    here = {name: sizes[name] for name in context.symbols()}
    lowest = {name: max(limits.get(name, (1, None))[0] or 1, 1) for name in here}
    highest = {name: limits.get(name, (1, None))[1] or size for name, size in here.items()}
    most = max(MAX_ELEMENTS, _elements(context, here))
    return [e for e in (lowest, highest) if e != here and _elements(context, e) <= most]


def _elements(g: Graph, sizes: Mapping[str, int]) -> int:
    return sum(int(substitute(n.type.size, sizes)) for n in g.nodes())


def _random_feeds(g: Graph, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {}
    for n in g.inputs:
        shape = static_shape(n.type.substitute(sizes).shape)
        feeds[n.op.label] = random.standard_normal(shape).astype(n.dtype.numpy)  # type: ignore[attr-defined]
    return feeds


def _compared(
    models: Sequence[CompiledModel], feeds: Feeds, rounds: int = _ROUNDS
) -> tuple[float, tuple[float, float]]:
    """(the gain of the second model, as the median of paired ratios; the best seconds of each)."""
    for m in models:
        m(**feeds)
    start_time = time.perf_counter()
    models[0](**feeds)
    repeats = max(1, int(_RUN_SECONDS / max(time.perf_counter() - start_time, 1e-6)))
    times = np.empty((rounds, 2))
    for r in range(rounds):
        for i in (0, 1) if r % 2 else (1, 0):
            start = time.perf_counter()
            for _ in range(repeats):
                models[i](**feeds)
            times[r, i] = (time.perf_counter() - start) / repeats
    best = times.min(axis=0)
    return float(np.median(times[:, 0] / times[:, 1])), (float(best[0]), float(best[1]))
