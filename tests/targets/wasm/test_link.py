from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from ingot.pipeline.wasm import TARGET
from ingot.support.errors import CompileError
from ingot.targets.cpu.codegen import emit
from ingot.targets.wasm.driver import DRIVER
from ingot.targets.wasm.link import link

FEATURES = TARGET.features("")
# a kernel with a constant table and a helper: out[chunk] = table[chunk % 4] + chunk
KERNEL = """
@table = private constant [4 x i64] [i64 10, i64 20, i64 30, i64 40], align 32
define internal i64 @plus(i64 %a, i64 %b) noinline nounwind {
  %c = add i64 %a, %b
  ret i64 %c
}
define void @kernel(ptr %bases, ptr %args, i64 %chunk, ptr %scratch) nounwind {
  %base = load ptr, ptr %bases
  %low = and i64 %chunk, 3
  %at = getelementptr [4 x i64], ptr @table, i64 0, i64 %low
  %v = load i64, ptr %at
  %sum = call i64 @plus(i64 %v, i64 %chunk)
  %out = getelementptr i64, ptr %base, i64 %chunk
  store i64 %sum, ptr %out
  ret void
}
"""
# record of one step, then a jump over a second one of it, which would fail
SCRIPT = """
const bytes = Uint8Array.from(Buffer.from(process.argv[1], "hex"));
const { exports } = new WebAssembly.Instance(new WebAssembly.Module(bytes));
const at = exports.__heap_base.value, steps = at + 1024, bases = at + 2048;
const view = new DataView(exports.memory.buffer);
view.setUint32(bases, at, true);
const record = (i, values) => values.forEach((v, j) => view.setBigInt64(steps + 32 * i + 8 * j, BigInt(v), true));
record(0, [1, 0, 3, 2]); // six chunks
record(1, [0, 0, 3, -2]); // on to step 3
record(2, [999, 0, 1, 1]);
record(3, [2, 0, 0, 1]); // no chunk
exports.run(steps, 4, bases, 0);
console.log(JSON.stringify(Array.from(new BigInt64Array(exports.memory.buffer, at, 7), Number)));
"""


def _linked(*texts: str, kernels: tuple[str, ...] = (), names: list[dict[str, str]] | None = None) -> bytes:
    parts = [emit(text, FEATURES) for text in (DRIVER, *texts)]
    return link(parts, FEATURES, kernels, [{}, *(names or [{}] * len(texts))]).blob


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_two_kernels_with_constants_and_jumps_run() -> None:
    names = [{"kernel": "a"}, {"kernel": "b"}]
    module = _linked(KERNEL, KERNEL.replace("i64 10", "i64 11"), kernels=("a", "b"), names=names)
    process = subprocess.run(
        ["node", "-e", SCRIPT, module.hex()], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(process.stdout) == [10, 21, 32, 43, 14, 25, 0]


def test_a_symbol_is_its_number_in_the_table() -> None:
    parts = [emit(text, FEATURES) for text in (DRIVER, KERNEL)]
    code = link(parts, FEATURES, ["kernel"], [{}, {}])
    assert code.symbols == {"kernel": 1} and code.blob[:8] == b"\0asm\1\0\0\0"


def test_undefined_symbols_are_named() -> None:
    text = "declare void @missing()\ndefine void @kernel() {\n  call void @missing()\n  ret void\n}"
    with pytest.raises(CompileError, match="undefined symbol 'missing'"):
        _linked(text, kernels=("kernel",))
    with pytest.raises(CompileError, match="undefined symbol 'other'"):
        _linked(KERNEL, kernels=("other",))


def test_doubly_defined_symbols_are_named() -> None:
    with pytest.raises(CompileError, match="'kernel' is defined twice"):
        _linked(KERNEL, KERNEL, kernels=("kernel",))


def test_addresses_of_functions_are_refused() -> None:
    text = "define void @f() {\n  ret void\n}\ndefine ptr @kernel() {\n  ret ptr @f\n}"
    with pytest.raises(CompileError, match="expected code and constants"):
        _linked(text, kernels=("kernel",))


@pytest.mark.parametrize("size", [0, 7, 8, 9, 40, 200])
def test_damaged_objects_are_refused(size: int) -> None:
    content = emit(KERNEL, FEATURES)
    driver = emit(DRIVER, FEATURES)
    with pytest.raises(CompileError):
        link([driver, content[:size]], FEATURES, ["kernel"], [{}, {}])
