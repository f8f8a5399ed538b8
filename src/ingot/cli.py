"""The `ingot` command. It presents; what it shows is worked out in `ingot.debug` and `ingot.compiler`.

Results go to standard output, progress and errors to standard error. Exit codes: see CODES.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np

from ingot import __version__
from ingot.debug import bench as benching
from ingot.debug import compare as comparing
from ingot.debug import explain as explaining
from ingot.debug.build import Build, build
from ingot.debug.chrome import chrome_trace
from ingot.debug.drawing import bytes_text, time_text
from ingot.debug.feeds import Feeds, choose_sizes, index_limits, parse_sizes, random_feeds, read_feeds
from ingot.debug.report import html_report
from ingot.debug.source import Source, compile_source, open_source, parse_dims, read_graph
from ingot.ir.show import show
from ingot.runtime.executor import CompiledModel
from ingot.support import progress
from ingot.support.errors import (
    ArtifactError,
    CompileError,
    ImportModelError,
    IngotError,
    InputError,
    ShapeError,
    UnsupportedOpError,
)
from ingot.support.files import atomic_write

try:
    import typer
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ImportError as error:
    raise SystemExit(f"the command line needs {error.name}; pip install 'ingot-compiler[cli]'") from error

OK, MISMATCH, BAD_INPUT, UNSUPPORTED, FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 130
CODES = {
    OK: "done",
    MISMATCH: "compare found a difference",
    BAD_INPUT: "wrong usage, or an input, model or file that cannot be used",
    UNSUPPORTED: "the model has ops that Ingot lacks, or an engine of bench could not run it",
    FAILED: "Ingot's own failure: please report it",
    INTERRUPTED: "interrupted",
}

out, err = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)
app = typer.Typer(
    name="ingot",
    help="Ingot compiles a trained model (ONNX, PyTorch) to one native CPU program.",
    epilog="Exit codes: " + "; ".join(f"{code} {text}" for code, text in CODES.items()) + ".",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[Path, typer.Argument(help="An ONNX file, a PyTorch .pt2 file, or a compiled .ingot file.")]
Uncompiled = Annotated[Path, typer.Argument(help="An ONNX file or a PyTorch .pt2 file (torch.export.save).")]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Threads; by default the physical cores.")]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Fix a size (batch=1) or bound it (length=1:512). Repeatable."),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=SIZE,...", help="Sizes of the run's inputs, for sizes that are dynamic."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
FastMath = Annotated[bool, typer.Option("--fast-math", help="Allow rewrites that only hold for real numbers.")]


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command("compile")
def compile_(
    model: Uncompiled,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: MODEL with the suffix .ingot.")
    ] = None,
    threads: Threads = None,
    dim: Dims = None,
    target: Annotated[str, typer.Option(help="native: this machine's CPU with all its vector extensions.")] = "native",
    fast_math: FastMath = False,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Use the disk cache.")] = True,
    as_json: Json = False,
) -> None:
    """Compile a model to one file that runs anywhere the CPU has the same extensions.

    Sizes that the model leaves open (batch, length) stay open: the program takes any of them.

    \b
    ingot compile model.onnx                        writes model.ingot
    ingot compile model.onnx -o fast.ingot --dim batch=1
    ingot compile model.onnx --dim length=1:512     length is dynamic, at most 512
    """
    with _presented(as_json):
        source = open_source(model, parse_dims(dim or []))
        if source.kind == "artifact":
            raise InputError(f"{model} is compiled already", expected="an ONNX or .pt2 file")
        path = _writable(model.with_suffix(".ingot") if output is None else output)
        began = time.perf_counter()
        compiled = compile_source(source, threads=threads, cache=cache, fast_math=fast_math, target=target)
        seconds = time.perf_counter() - began
        progress.report("save")
        compiled.save(path)
    facts = _facts(compiled) | {"seconds": seconds, "output": str(path), "file_bytes": path.stat().st_size}
    if as_json:
        _print_json(facts)
        return
    out.print(f"[bold]{escape(str(path))}[/]  {bytes_text(path.stat().st_size)}, compiled in {time_text(seconds)}")
    _print_facts(compiled)


@app.command()
def run(
    model: Model,
    feed: Annotated[
        list[str] | None, typer.Option("--input", "-i", metavar="NAME=FILE", help="An input as .npy. Repeatable.")
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Random arrays for the inputs not given.")] = False,
    size: Sizes = None,
    output_dir: Annotated[Path | None, typer.Option(help="Write every output as NAME.npy into this folder.")] = None,
    threads: Threads = None,
    dim: Dims = None,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    as_json: Json = False,
) -> None:
    """Run a model once, on arrays from files or on random ones.

    \b
    ingot run model.ingot --input x=x.npy --output-dir results
    ingot run model.onnx --random --size batch=4
    """
    with _presented(as_json):
        source = open_source(model, parse_dims(dim or []))
        compiled = compile_source(source, threads=threads, cache=True, fast_math=False, target="native")
        feeds = read_feeds(compiled.program, feed or [])
        if random:
            feeds = _random(source, compiled, size, seed) | feeds
        folder = None if output_dir is None else _folder(output_dir)
        progress.report("run")
        began = time.perf_counter()
        result = compiled(**feeds)
        seconds = time.perf_counter() - began
        results = [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]
        facts = [_output(s.name, r, folder) for s, r in zip(compiled.outputs, results, strict=True)]
    if as_json:
        _print_json({"model": str(model), "seconds": seconds, "outputs": facts})
        return
    table = _table("output", "dtype", "shape", "min", "mean", "max", "file", left=("output", "file"))
    for f in facts:
        numbers = [f"{v:.6g}" if isinstance(v := f[key], float) else "" for key in ("min", "mean", "max")]
        table.add_row(escape(str(f["name"])), str(f["dtype"]), str(f["shape"]), *numbers, escape(str(f["file"] or "")))
    out.print(table)
    out.print(f"first call {time_text(seconds)}; for timings use [bold]ingot bench[/]")


@app.command()
def bench(
    model: Model,
    against: Annotated[str, typer.Option(help="Engines, by comma: ort, openvino, eager, inductor.")] = "ort",
    threads: Threads = None,
    size: Sizes = None,
    rounds: Annotated[int, typer.Option(min=1, help="Bursts of each engine.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of a burst.")] = 0.15,
    as_json: Json = False,
) -> None:
    """Time the model beside other engines: each in its own process, in short bursts by turns.

    A ratio above 1 means that Ingot is faster. ort and openvino need an ONNX file, eager and inductor a .pt2 file.

    \b
    ingot bench model.onnx --against ort,openvino --threads 2
    ingot bench model.pt2 --against inductor,eager --size batch=8
    """
    with _presented(as_json):
        source = open_source(model)
        compiled = compile_source(source, threads=threads, cache=True, fast_math=False, target="native")
        feeds = _random(source, compiled, size, 0)
        names = [name.strip() for name in against.split(",") if name.strip()]
        results = benching.bench(model, names, feeds, compiled.threads, rounds, seconds)
    failed = [r for r in results if r.failed]
    if as_json:
        shapes = {name: list(array.shape) for name, array in feeds.items()}
        told = {"model": str(model), "threads": compiled.threads, "inputs": shapes}
        _print_json(told | {"results": [asdict(r) for r in results]})
    else:
        _print_bench(results, feeds, compiled.threads)
    if failed:
        raise typer.Exit(FAILED if failed[0].engine == "ingot" else UNSUPPORTED)


@app.command()
def dump(
    model: Model,
    after: Annotated[
        str | None, typer.Option(metavar="PASS", help="The graph after this pass; `model` is the imported one.")
    ] = None,
    kernel: Annotated[str | None, typer.Option(metavar="NAME", help="One kernel, by its name or number.")] = None,
    llvm: Annotated[bool, typer.Option("--llvm", help="With --kernel: its LLVM IR.")] = False,
    asm: Annotated[bool, typer.Option("--asm", help="With --kernel: its assembly.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Steps, buffers and where they lie.")] = False,
    dim: Dims = None,
    size: Sizes = None,
    threads: Threads = None,
    fast_math: FastMath = False,
    as_json: Json = False,
) -> None:
    """Look inside: the graph after any pass, a kernel's IR, LLVM IR and assembly, the plan.

    Without options it lists the passes, with their times, and the kernels.

    \b
    ingot dump model.onnx
    ingot dump model.onnx --after fuse
    ingot dump model.onnx --kernel contraction_3 --asm
    ingot dump model.ingot --plan --size batch=1
    """
    with _presented(as_json):
        if (llvm or asm) and kernel is None:
            raise InputError("--llvm and --asm", expected="--kernel NAME with them", got="no kernel")
        source = open_source(model, parse_dims(dim or []))
        built = None if source.kind == "artifact" else build(read_graph(source), threads=threads, fast_math=fast_math)
        if built is None:
            text = _dump_artifact(source, after, kernel, plan, size)
        elif kernel is not None:
            text = built.source(built.kernel(kernel), "asm" if asm else "llvm" if llvm else "ir")
        elif after is not None:
            text = show(built.after(after))
        elif plan:
            text = _plan(built.model(), size)
        else:
            _print_overview(built, as_json)
            return
    if as_json:
        _print_json({"model": str(model), "text": text})
        return
    print(text)


@app.command()
def compare(
    model: Uncompiled,
    program: Annotated[Path | None, typer.Option(help="Check this .ingot file instead of compiling now.")] = None,
    size: Sizes = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Error allowed, in parts of the largest magnitude; 1e-4 for float32.")
    ] = None,
    interpreter: Annotated[
        bool, typer.Option("--interpreter/--no-interpreter", help="Compare with Ingot's interpreter too (slow).")
    ] = True,
    dim: Dims = None,
    threads: Threads = None,
    fast_math: FastMath = False,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    as_json: Json = False,
) -> None:
    """Check a compiled model on random inputs at several sizes, and name what is to blame if it is wrong.

    The references are ONNX Runtime (for ONNX) or PyTorch (for .pt2), where installed, and Ingot's interpreter. On a
    mismatch it names the first op that differs and the import, pass, rewrite rule or kernel responsible. Exit code 1.

    \b
    ingot compare model.onnx
    ingot compare model.onnx --size batch=1,length=128 --size batch=3,length=7
    ingot compare model.onnx --program model.ingot
    """
    with _presented(as_json):
        source = open_source(model, parse_dims(dim or []))
        found = comparing.compare(
            source, program=program, threads=threads, fast_math=fast_math, sizes=parse_sizes(size or []),
            tolerance=tolerance, interpreter=interpreter, seed=seed,
        )  # fmt: skip
    if as_json:
        checks = [asdict(c) for c in found.checks]
        blame = None if found.blame is None else asdict(found.blame)
        _print_json({"model": str(model), "ok": found.ok, "checks": checks, "blame": blame})
    else:
        _print_comparison(found)
    if not found.ok:
        raise typer.Exit(MISMATCH)


@app.command()
def explain(
    model: Uncompiled,
    size: Sizes = None,
    threads: Threads = None,
    dim: Dims = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page: graph, timeline, memory.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace, for ui.perfetto.dev.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Rows of the table, slowest first; 0 for all, in order.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Runs; a kernel's time is its median.")] = 15,
    fast_math: FastMath = False,
    as_json: Json = False,
) -> None:
    """Say where the time goes: per kernel its time, share of this machine's limits, what was fused and what was not.

    The machine's multiply-add peak and memory bandwidth are measured in the same run.

    \b
    ingot explain model.onnx
    ingot explain model.onnx --html report.html --trace trace.json --size batch=8
    """
    with _presented(as_json):
        source = open_source(model, parse_dims(dim or []))
        for path in (html, trace):
            if path is not None:
                _writable(path)
        graph = read_graph(source)
        built = build(graph, threads=threads, fast_math=fast_math)
        chosen = choose_sizes(built.program, 0, _one_size(size))
        feeds = random_feeds(built.program, chosen, index_limits(graph))
        found = explaining.explain(source.name, built, feeds, repeats)
        if html is not None:
            atomic_write(html, [html_report(found).encode()])
        if trace is not None:
            atomic_write(trace, [chrome_trace(found).encode()])
    if as_json:
        _print_json(asdict(found))
        return
    _print_explanation(found, top)


# --- shared by the commands


@contextmanager
def _presented(as_json: bool) -> Iterator[None]:
    """Progress on a terminal's standard error; Ingot's errors as one message and an exit code, not as a traceback."""
    try:
        with _shown_progress():
            yield
    except IngotError as error:
        code = _code(error)
        if as_json:
            ops = [str(op) for op in error.ops] if isinstance(error, UnsupportedOpError) else []
            _print_json({"error": str(error), "kind": type(error).__name__, "code": code, "unsupported": ops})
        err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(code) from None
    except MemoryError:
        err.print("[bold red]error:[/] not enough memory for this model at these sizes")
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        err.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def _code(error: IngotError) -> int:
    if isinstance(error, UnsupportedOpError):
        return UNSUPPORTED
    usable = InputError | ImportModelError | ArtifactError | ShapeError
    return BAD_INPUT if isinstance(error, usable) and not isinstance(error, CompileError) else FAILED


@contextmanager
def _shown_progress() -> Iterator[None]:
    if not err.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("start", total=None)

        def listen(stage: str, done: int, total: int) -> None:
            bar.update(task, description=escape(stage) + (f" {done}/{total}" if total else ""))

        with progress.listening(listen):
            yield


def _print_json(value: object) -> None:
    print(json.dumps(value, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"no JSON for {type(value).__name__}")


def _writable(path: Path) -> Path:
    """`path`, if its folder is there: said before minutes of work and not after them."""
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}", expected="an existing folder", got=str(path.parent))
    if path.is_dir():
        raise InputError(f"cannot write {path}", expected="a file's name", got="a folder")
    return path


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {path}", got=error.strerror) from error
    return path


def _one_size(size: Sequence[str] | None) -> dict[str, int]:
    return {name: value for sizes in parse_sizes(size or []) for name, value in sizes.items()}


def _random(source: Source, compiled: CompiledModel, size: Sequence[str] | None, seed: int) -> Feeds:
    limits = {} if source.kind == "artifact" else index_limits(read_graph(source))
    return random_feeds(compiled.program, choose_sizes(compiled.program, 0, _one_size(size)), limits, seed)


def _table(*heads: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right", overflow="fold")
    return table


def _facts(compiled: CompiledModel) -> dict[str, object]:
    program = compiled.program
    return {
        "inputs": [str(s) for s in program.inputs],
        "outputs": [str(s) for s in program.outputs],
        "threads": compiled.threads,
        "steps": len(program.steps),
        "kernels": len({s.kernel for s in program.steps}),
        "code_bytes": len(program.code.blob),
        "weights_bytes": program.weights.nbytes,
        "isa": [program.isa.arch, *program.isa.features],
    }


def _print_facts(compiled: CompiledModel) -> None:
    program = compiled.program
    for name, specs in (("in", program.inputs), ("out", program.outputs)):
        for spec in specs:
            out.print(f"[dim]{name:>3}[/]  {escape(str(spec))}", highlight=False)
    kernels = len({s.kernel for s in program.steps})
    sizes = f"{bytes_text(len(program.code.blob))} of code, {bytes_text(program.weights.nbytes)} of weights"
    out.print(f"{len(program.steps)} steps, {kernels} kernels, {sizes}, {compiled.threads} threads", highlight=False)


def _output(name: str, array: np.ndarray, folder: Path | None) -> dict[str, object]:
    """An output's summary; written into the folder if there is one."""
    file = None
    if folder is not None:
        file = folder / f"{name.replace('/', '_')}.npy"
        data = io.BytesIO()
        np.save(data, array)
        atomic_write(file, [data.getbuffer()])
    some = array.astype(np.float64) if array.size else None
    numbers = (None, None, None) if some is None else (float(some.min()), float(some.mean()), float(some.max()))
    facts = dict(zip(("min", "mean", "max"), numbers, strict=True))
    return {
        "name": name,
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "file": None if file is None else str(file),
        **facts,
    }


def _dump_artifact(
    source: Source, after: str | None, kernel: str | None, plan: bool, size: Sequence[str] | None
) -> str:
    """What a saved program carries: its stages and its plan."""
    compiled = compile_source(source, threads=None, cache=False, fast_math=False, target="native")
    if kernel is not None:
        raise InputError("--kernel", expected="the model itself", got=f"{source.path}, which holds machine code only")
    return _plan(compiled, size) if plan or after is None else compiled.dump(after)


def _plan(compiled: CompiledModel, size: Sequence[str] | None) -> str:
    """The plan; with its places in memory if sizes are given."""
    if not size:
        return compiled.plan()
    feeds = random_feeds(compiled.program, choose_sizes(compiled.program, 0, _one_size(size)))
    return compiled.plan(*(array.shape for array in feeds.values()))


# --- tables


def _print_overview(built: Build, as_json: bool) -> None:
    passes = [(name, seconds, len(graph.nodes())) for name, seconds, graph in built.trace.stages]
    kernels = [kernel.name for kernel in built.trace.kernels]
    if as_json:
        told = [{"name": n, "seconds": s, "nodes": c} for n, s, c in passes]
        _print_json({"nodes": len(built.graph.nodes()), "passes": told, "kernels": kernels})
        return
    table = _table("after pass", "time", "nodes", left=("after pass",))
    table.add_row("model", "", str(len(built.graph.nodes())))
    for name, seconds, nodes in passes:
        table.add_row(name, time_text(seconds), str(nodes))
    out.print(table)
    out.print(f"\n[dim]kernels[/]  {' '.join(kernels)}", highlight=False)
    out.print("\n[dim]see one with[/] --after PASS, --kernel NAME (--llvm or --asm), --plan", highlight=False)


def _print_bench(results: Sequence[benching.Result], feeds: Feeds, threads: int) -> None:
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
    out.print(f"{threads} threads; {escape(shapes)}", highlight=False)
    heads = ("engine", "median", "best", "ingot is faster by", "compile", "first call", "error")
    table = _table(*heads, left=("engine",))
    for r in results:
        if r.seconds is None:
            continue
        table.add_row(
            r.engine,
            time_text(r.seconds),
            "" if r.best is None else time_text(r.best),
            "" if r.ratio is None else f"[{'green' if r.ratio >= 1 else 'red'}]{r.ratio:.2f}x[/]",
            "" if r.compile_seconds is None else time_text(r.compile_seconds),
            "" if r.first_seconds is None else time_text(r.first_seconds),
            "" if r.error is None else f"{r.error:.1e}",
        )
    out.print(table)
    for r in results:
        if r.failed:
            err.print(f"[bold red]{r.engine}:[/] {escape(r.failed)}", highlight=False)


def _print_comparison(found: comparing.Comparison) -> None:
    table = _table("sizes", "against", "output", "error", "relative", "", left=("sizes", "against", "output", ""))
    for c in found.checks:
        a = c.agreement
        verdict = "[green]ok[/]" if a.ok else f"[bold red]differs[/] {escape(a.note)}"
        sizes = ", ".join(f"{name}={size}" for name, size in c.sizes.items()) or "fixed"
        table.add_row(sizes, escape(c.against), escape(c.output), f"{a.error:.2e}", f"{a.relative:.1e}", verdict)
    out.print(table)
    if found.blame is not None:
        out.print(f"\n[bold red]to blame:[/] {escape(str(found.blame))}", highlight=False)


def _print_explanation(e: explaining.Explanation, top: int) -> None:
    sizes = ", ".join(f"{name} = {size}" for name, size in e.sizes.items()) or "all sizes fixed"
    out.print(f"[bold]{escape(e.model)}[/]  {sizes}; {e.rates.cpu}, {e.rates.threads} threads", highlight=False)
    rows = sorted(e.rows, key=lambda r: -r.seconds)[:top] if top else e.rows
    heads = ("#", "kernel", "time", "share", "peak", "memory", "chunks", "MFLOP", "bytes", "why")
    table = _table(*heads, left=("kernel",))
    reasons = {text: f"({n})" for n, text in enumerate(dict.fromkeys(r.apart for r in rows), 1)}
    for r in rows:
        table.add_row(
            str(r.index),
            f"[bold]{escape(r.label)}[/] [dim]{escape(r.where)}[/]",
            time_text(r.seconds),
            f"{r.share:.1%}",
            f"{r.flops_share:.0%}" if r.flops else "",
            f"{r.bytes_share:.0%}",
            str(r.chunks),
            f"{r.flops / 1e6:.3g}" if r.flops else "",
            bytes_text(r.bytes),
            reasons[r.apart],
        )
    out.print(table)
    out.print("[dim]why a kernel stores its result instead of being part of the one that reads it:[/]")
    for text, number in reasons.items():
        out.print(f"  {number} {escape(text)}", highlight=False)
    left = len(e.rows) - len(rows)
    if left:
        out.print(f"[dim]and {left} faster ones (--top 0)[/]")
    floor = f"{e.floor / e.seconds:.0%}" if e.seconds else "-"
    out.print(
        f"{time_text(e.seconds)} in {len(e.rows)} kernels; the floor is {time_text(e.floor)} ({floor}) at the measured "
        f"{e.rates.gflops:.0f} GFLOP/s and {e.rates.gbytes:.0f} GB/s; arena {bytes_text(e.arena)}, "
        f"weights {bytes_text(e.weights)}",
        highlight=False,
    )


def main() -> None:
    """The console script."""
    try:
        app()
    except BrokenPipeError:  # the reader of a pipe has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OK)


if __name__ == "__main__":
    main()
