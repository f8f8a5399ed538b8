"""Programs of language models on a driver that is not there: its graphs, copies and loops, with each kernel by its
meaning."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from ingot.ir.kernel import Kernel
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.node import Graph
from ingot.ir.types import bf16
from ingot.language.cache import CacheForm
from ingot.language.config import from_config
from ingot.language.engine.program import paged_step, step
from ingot.language.generate import generate
from ingot.language.layers import Network
from ingot.language.session import Sampling, Session
from ingot.runtime.cuda import device as cuda
from ingot.runtime.executor import CompiledModel
from ingot.support.cubins import KernelCode, pack
from tests.conformance.checked import planned
from tests.language.engine.test_program import CONTEXT, PAGES, SEQUENCES, Trial
from tests.language.models import compiled
from tests.language.test_targets import CONFIG, InBlocks
from tests.runtime.cuda.fake import FakeDriver
from tests.runtime.cuda.programs import H100


@dataclass
class Interpreter(FakeDriver):
    """sources: the kernels by their names."""

    sources: Mapping[str, Kernel] = field(default_factory=dict)

    def count_of(self, name: str) -> int:
        return 2 if name == "tell" else len(self.sources[name].params) + len(self.sources[name].dims)

    def run(self, name: str, values: list[int]) -> None:
        kernel = self.sources[name]
        buffers = {p.name: self._array(at, p.dtype.numpy) for p, at in zip(kernel.params, values, strict=False)}
        dims = {v.name: value for v, value in zip(kernel.dims, values[len(kernel.params) :], strict=True)}
        run_kernel(kernel, buffers, dims)

    def _array(self, address: int, dtype: np.dtype) -> np.ndarray:
        """From an address to the end of its memory."""
        begin, block = max(item for item in self._blocks.items() if item[0] <= address)
        count = (ctypes.addressof(block) + len(block) - address) // np.dtype(dtype).itemsize
        assert begin <= address < ctypes.addressof(block) + len(block)
        memory = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)
        return np.ctypeslib.as_array(memory).view(dtype)


def loaded(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> tuple[CompiledModel, Interpreter]:
    program, kernels = planned(graph, "cuda:sm_90a")
    codes = {
        name: KernelCode(
            name, b"cubin", 128, 0, len(kernel.params) + len(kernel.dims),
            tuple(i for i, p in enumerate(kernel.params) if p.writable),
        )
        for name, kernel in kernels.items()
    }  # fmt: skip
    driver = Interpreter({}, sources=kernels)
    driver.kernels.update({name: lambda values, name=name: driver.run(name, values) for name in kernels})
    monkeypatch.setattr(cuda, "driver", lambda: driver)
    steps = tuple(replace(s, device="cuda") for s in program.steps)
    buffers = tuple(replace(b, device="cuda") for b in program.buffers)
    program = replace(
        program, steps=steps, buffers=buffers, code={"cuda": pack(H100, {"sm_90a": codes, "sm_80": codes})}
    )
    return CompiledModel(program), driver


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), pytest.param(Sampling(1.5, top_k=20, seed=3), marks=pytest.mark.slow)]
)
def test_tokens_of_a_call_are_one_loop_of_a_graph(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    language = Network(from_config(CONFIG), InBlocks(), CONTEXT)
    form = CacheForm.of(language.architecture, 1, CONTEXT, bf16)
    model, driver = loaded(generate(language, form, 4, has_lengths=True), monkeypatch)
    native = compiled(generate(language, form, 4))
    ids = np.random.default_rng(0).integers(3, 96, 11).tolist()
    sessions = Session(model, CONTEXT), Session(native, CONTEXT)
    got, want = (s.step(ids, 11, 4, sampling)[0] for s in sessions)
    assert got == want

    def reads() -> int:
        count = sum(entry[0] == "to_host" for entry in driver.log)
        driver.log.clear()
        return count

    assert reads() == 5, "where the chunk begins, with a flag; then three results"
    got, want = (s.step([*ids, *got], 11, 3, sampling)[0] for s in sessions)
    assert got == want
    assert reads() == 3, "the results: the call is one graph"


def test_a_step_of_many_is_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    language = Network(from_config(CONFIG), InBlocks(), CONTEXT)
    form = CacheForm.paged(language.architecture, SEQUENCES, CONTEXT, PAGES, bf16)
    model, driver = loaded(paged_step(language, form, SEQUENCES), monkeypatch)
    tokens: list[list[list[int]]] = []
    for program in (model, compiled(step(language, form))):
        s = Trial(program, 96, 0)
        a, b = s.rng.integers(3, 96, 22).tolist(), s.rng.integers(3, 96, 20).tolist()
        first = s.stepper.run([s.part(1, a[:9], 0, is_chunk=True), s.part(3, b[:17], 0, is_chunk=True)])
        driver.log.clear()
        second = s.stepper.run([s.part(1, a[:10], 9, is_chunk=False), s.part(3, b[:18], 17, is_chunk=False)])
        tokens.append([x.tokens for x in (*first, *second)])
        if program is model:
            assert sum(entry[0] == "to_host" for entry in driver.log) == 2
    assert tokens[0] == tokens[1]
