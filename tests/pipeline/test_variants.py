"""Kernels that give no code: the next choice of their schedule is taken, and told."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f16
from ingot.ops.build import const
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of
from ingot.pipeline.variants import TRIES
from ingot.support.cubins import KernelCode
from ingot.support.errors import CompileError, KernelError
from ingot.targets.cuda import assemble
from ingot.targets.cuda.triton import Source


class Compiler:
    """Refuses the first so many texts of products."""

    def __init__(self, refused: int) -> None:
        self.refused, self.sources = refused, list[Source]()

    def submit(self, source: Source, capability: int) -> Future[KernelCode]:
        self.sources.append(source)
        made: Future[KernelCode] = Future()
        if source.name == "product" and sum(s.name == "product" for s in self.sources) <= self.refused:
            made.set_exception(CompileError("kernel product: it hung"))
        else:
            made.set_result(KernelCode(source.name, source.text.encode(), 128, 0, len(source.parameters), ()))
        return made


def graph() -> Graph:
    """A product, and a softmax."""
    x = Input("x", TensorType(f16, (40, 96)))()
    w = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float16)
    y = ops.DotGeneral(((), ()), ((1,), (0,)), f16)(x, const(w))
    return Graph((x,), (ops.Softmax(1)(y),))


def test_the_next_choice_is_taken_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, trace = Compiler(2), Trace()
    monkeypatch.setattr(assemble, "submit", compiler.submit)
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
    monkeypatch.setattr(assemble, "submit", compiler.submit)
    with pytest.raises(KernelError, match="it hung for sm_90a"):
        build_program(graph(), features_of("cuda:sm_90a"), 1)
    assert sum(source.name == "product" for source in compiler.sources) == TRIES
