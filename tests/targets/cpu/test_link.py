import ctypes

import pytest

from ingot.runtime.cpu.image import CodeImage
from ingot.support.errors import CompileError
from ingot.support.native import Features, host
from ingot.targets.cpu.assemble import assemble
from ingot.targets.cpu.codegen import emit, feature_string
from ingot.targets.cpu.driver import driver_ir
from ingot.targets.cpu.link import link

ARM = Features("aarch64", ("fp-armv8", "neon"))
RISCV = Features("riscv64", ("a", "c", "d", "f", "m", "v"))
TABLE = """
@table = private constant [4 x i64] [i64 10, i64 20, i64 30, i64 40], align 32
define i64 @look(i64 %i) {
  %at = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %at
  ret i64 %v
}
define double @scaled(double %x) {
  %y = fmul double %x, 1.234567
  ret double %y
}
"""
CALLS = """
declare i64 @look(i64)
define i64 @twice(i64 %i) {
  %v = call i64 @look(i64 %i)
  %w = mul i64 %v, 2
  ret i64 %w
}
define ptr @pointer() {
  ret ptr @look
}
define i32 @pick(i32 %x) {
  switch i32 %x, label %d [ i32 0, label %a i32 1, label %b i32 2, label %c i32 3, label %e i32 4, label %f ]
a:
  ret i32 7
b:
  ret i32 77
c:
  ret i32 -5
e:
  ret i32 123
f:
  ret i32 99
d:
  ret i32 0
}
"""


def test_calls_tables_and_constants_across_objects():
    image = CodeImage(assemble([TABLE, CALLS]))
    integer = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    assert [integer(image.address("look"))(i) for i in range(4)] == [10, 20, 30, 40]
    assert integer(image.address("twice"))(2) == 60
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(image.address("scaled"))(2.0) == 2.0 * 1.234567
    assert ctypes.CFUNCTYPE(ctypes.c_void_p)(image.address("pointer"))() == image.address("look")
    pick = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(image.address("pick"))
    assert [pick(i) for i in range(-1, 6)] == [0, 7, 77, -5, 123, 99, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("declare void @gone()\ndefine void @f() {\n call void @gone()\n ret void\n}", "undefined symbol 'gone'"),
        ("@x = global i32 1\ndefine i32 @f() {\n %v = load i32, ptr @x\n ret i32 %v\n}", "writable"),
        (
            "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\ndefine void @f(ptr %a, ptr %b, i64 %n) {\n"
            " call void @llvm.memcpy.p0.p0.i64(ptr %a, ptr %b, i64 %n, i1 false)\n ret void\n}",
            "undefined symbol 'memcpy'",
        ),
        ("define void @ingot_run() {\n ret void\n}", "'ingot_run' is defined twice"),
        ("define void @f( {", "LLVM refuses"),
        ("define i32 @f() {\n ret i64 0\n}", "LLVM refuses"),
    ],
)
def test_what_cannot_be_linked_is_named(text: str, message: str):
    with pytest.raises(CompileError, match=message):
        assemble([text])


def test_loops_are_not_turned_into_library_calls():
    text = """
define void @clear(ptr %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %at = getelementptr i64, ptr %p, i64 %i
  store i64 0, ptr %at
  %j = add i64 %i, 1
  %end = icmp eq i64 %j, %n
  br i1 %end, label %over, label %loop
over:
  ret void
}"""
    assert "clear" in assemble([text]).symbols


def test_foreign_objects_are_refused():
    with pytest.raises(CompileError, match="ELF64"):
        link([b"not an object"], ARM)
    with pytest.raises(CompileError, match="different machines"):
        link([emit(TABLE, ARM), emit(TABLE.replace("@look", "@l2"), Features("x86_64"))], ARM)


@pytest.mark.parametrize("features", [ARM, RISCV], ids=lambda f: f.arch)
def test_foreign_code_runs_in_an_emulator(features: Features):
    unicorn = pytest.importorskip("unicorn")
    code = assemble([TABLE, CALLS], features)
    base, stack = 0x400000, 0x800000
    kind, mode, name = {
        "aarch64": (unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM, "arm64"),
        "riscv64": (unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64, "riscv"),
    }[features.arch]
    emulator = unicorn.Uc(kind, mode)
    emulator.mem_map(base, 1 << 16)
    emulator.mem_map(stack, 1 << 16)
    emulator.mem_write(base, code.blob)
    registers = vars(pytest.importorskip(f"unicorn.{name}_const"))
    prefix = f"UC_{name.upper()}_REG_"
    sp, link_register, first = (
        registers[prefix + r] for r in (("SP", "LR", "X0") if name == "arm64" else ("SP", "RA", "A0"))
    )

    def call(name: str, x: int) -> int:
        emulator.reg_write(sp, stack + 0x8000)
        emulator.reg_write(link_register, base + 0xFF00)
        emulator.reg_write(first, x)
        emulator.emu_start(base + code.symbols[name], base + 0xFF00)
        return emulator.reg_read(first)

    assert [call("look", i) for i in range(4)] == [10, 20, 30, 40]
    assert call("twice", 3) == 80
    assert call("pointer", 0) == base + code.symbols["look"]
    assert [call("pick", i) & 0xFFFFFFFF for i in range(6)] == [7, 77, (-5) & 0xFFFFFFFF, 123, 99, 0]


def test_code_uses_only_the_features_it_records():
    text = "define <16 x float> @f(<16 x float> %a) {\n %b = fadd <16 x float> %a, %a\n ret <16 x float> %b\n}"
    assert b"zmm" not in emit(text, Features("x86_64", ("avx", "avx2"), "znver5"), assembly=True)
    wide = Features("x86_64", ("avx", "avx2", "avx512f", "avx512vl", "fma"))
    assert b"zmm" in emit(text, wide, assembly=True)
    assert "-avx512f" in feature_string(Features("x86_64", ("avx",), "znver5"))


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "riscv64"])
def test_the_driver_needs_no_library(arch: str):
    features = host() if arch == host().arch else RISCV if arch == "riscv64" else Features(arch, ())
    assert {"ingot_run", "ingot_worker", "ingot_stop", "ingot_clock"} <= link(
        [emit(driver_ir(arch), features)], features
    ).symbols.keys()


def test_unknown_architectures_are_refused():
    with pytest.raises(CompileError, match=r"expected one of \['aarch64', 'riscv64', 'x86_64'\], got mips64"):
        driver_ir("mips64")
