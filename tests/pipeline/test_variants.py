"""Kernels that give no code: the next choice of their schedule is taken, and told."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f16
from ingot.ops.build import const
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of
from ingot.pipeline.variants import MAX_TRIES
from ingot.support.cache import DiskCache, sharing
from ingot.support.cubins import KernelCode
from ingot.support.errors import CompileError, KernelError
from ingot.targets.cuda import objects
from ingot.targets.cuda.triton import Source


class Compiler:
    """Refuses the first so many texts of products."""

    def __init__(self, refused: int) -> None:
        self.refused, self.sources = refused, list[Source]()

    def submit(self, source: Source, capability: int) -> Future[bytes]:
        self.sources.append(source)
        future: Future[bytes] = Future()
        if source.name == "product" and sum(s.name == "product" for s in self.sources) <= self.refused:
            future.set_exception(CompileError("kernel product: it hung"))
        else:
            future.set_result(
                KernelCode(source.name, source.text.encode(), 128, 0, len(source.parameters), ()).record()
            )
        return future


def _compiled_by(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "submit", compiler.submit)
    monkeypatch.setattr(objects, "_triton", lambda: b"")  # it may not be installed


def graph() -> Graph:
    """A product, and a softmax."""
    x = Input("x", TensorType(f16, (40, 96)))()
    w = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float16)
    y = ops.DotGeneral(((), ()), ((1,), (0,)), f16)(x, const(w))
    return Graph((x,), (ops.Softmax(1)(y),))


def test_the_next_choice_is_taken_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, trace = Compiler(2), Trace()
    _compiled_by(compiler, monkeypatch)
    with sharing(None):
        program = build_program(graph(), features_of("cuda:sm_90a"), 1, trace=trace)
    assert program.meta["variants"].count("it hung") == 2 and "instead" in program.meta["variants"]
    names = [source.name for source in compiler.sources]
    assert names.count("product") == 3 and names.count("rows") == 1  # what was fine is not made again
    texts = [source.text for source in compiler.sources if source.name == "product"]
    assert len(set(texts)) == 3 and texts[-1].encode() in program.code["cuda"].blob
    assert not any(text.encode() in program.code["cuda"].blob for text in texts[:2])
    assert len(trace.kernels) == len(set(k.name for k in trace.kernels)) and len(trace.launches) == 2


def test_where_no_choice_gives_code_the_last_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(1000)
    _compiled_by(compiler, monkeypatch)
    with sharing(None), pytest.raises(KernelError, match="it hung for sm_90a"):
        build_program(graph(), features_of("cuda:sm_90a"), 1)
    assert sum(source.name == "product" for source in compiler.sources) == MAX_TRIES


def test_kernels_are_shared_by_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = Compiler(0)
    _compiled_by(compiler, monkeypatch)
    with sharing(DiskCache(tmp_path)):
        one = build_program(graph(), features_of("cuda:sm_90a,sm_80"), 1)
        source_count = len(compiler.sources)
        two = build_program(graph(), features_of("cuda:sm_90a,sm_80"), 1)
    assert source_count == 4 == len(compiler.sources)  # two kernels of two architectures
    assert one.code["cuda"] == two.code["cuda"]


def test_a_launch_of_too_much_shared_memory_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of a merged launch have their shared memory side by side."""

    def submit(source: Source, capability: int) -> Future[bytes]:
        compiled = Future[bytes]()
        shared_bytes = 120_000 * source.text.count("tl.range(")
        code = KernelCode(source.name, source.text.encode(), 128, shared_bytes, len(source.parameters), ())
        compiled.set_result(code.record())
        return compiled

    monkeypatch.setattr(objects, "submit", submit)
    monkeypatch.setattr(objects, "_triton", lambda: b"")
    x = Input("x", TensorType(f16, (40, 192)))()
    y = Input("y", TensorType(f16, (192, 96)))()
    z = Input("z", TensorType(f16, (192, 96)))()
    product = ops.DotGeneral(((), ()), ((1,), (0,)), f16)
    with sharing(None):
        program = build_program(Graph((x, y, z), (product(x, y), product(x, z))), features_of("cuda:sm_90a"), 1)
    assert len(program.steps) == 2 and "2 launches instead of one" in program.meta["variants"]
