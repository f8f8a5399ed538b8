"""Named CPUs: their instruction sets, caches and throughput. `cpu:NAME` takes any of these names.

    cpu:x86-64-v3   ->   a level of the architecture, scheduled for no particular core
    cpu:znver4      ->   all extensions of a Zen 4, scheduled for it

A core's name is LLVM's (its `-mcpu`), which knows no others; a level's is free.
Features are limited to `support.native.FEATURES`, as only these can be checked when an artifact is loaded.
Sources: the x86-64 psABI's levels; Intel's optimization manual; AMD's software optimization guides for families 17h,
19h and 1Ah; Arm's software optimization guides; cache sizes as the vendors print them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingot.support.dataclass import dataclass

KB, MB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Core:
    """arch, features: as in `Features`. l1, l2: bytes of a core's private caches. l3: bytes of the shared cache.

    fma, loads: multiply-adds of the widest vectors, and loads from the L1 cache, per cycle. latency: cycles of a
    multiply-add. level: the name stands for features only, so code is scheduled for no particular core.
    """

    arch: str
    features: tuple[str, ...]
    l1: int = 32 * KB
    l2: int = 1 * MB
    l3: int = 32 * MB
    fma: int = 2
    loads: int = 2
    latency: int = 4
    level: bool = False


_V2 = ("cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_CASCADE = (*_V4, "avx512vnni")
_ICE = (*_CASCADE, "avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vpopcntdq", "gfni")
_SAPPHIRE = (*_ICE, "avx512bf16", "avx512fp16", "avxvnni")
_RVV = ("a", "c", "d", "f", "m", "v")
_ARMV8 = ("fp-armv8", "neon")
_ARMV82 = (*_ARMV8, "dotprod", "fullfp16", "lse", "rdm")
_ARMV86 = (*_ARMV82, "bf16", "i8mm")

CORES: Mapping[str, Core] = {
    "x86-64-v2": Core("x86_64", _V2, level=True),
    "x86-64-v3": Core("x86_64", _V3, level=True),
    "x86-64-v4": Core("x86_64", _V4, level=True),
    "haswell": Core("x86_64", _V3, l2=256 * KB, l3=20 * MB, latency=5),
    "skylake": Core("x86_64", _V3, l2=256 * KB, l3=8 * MB),
    "skylake-avx512": Core("x86_64", _V4, l3=24 * MB),
    "cascadelake": Core("x86_64", _CASCADE, l3=36 * MB),
    "icelake-client": Core("x86_64", _ICE, 48 * KB, 512 * KB, 8 * MB, fma=1),  # one port of 512 bits
    "icelake-server": Core("x86_64", _ICE, 48 * KB, 1280 * KB, 36 * MB),
    "sapphirerapids": Core("x86_64", _SAPPHIRE, 48 * KB, 2 * MB, 60 * MB),
    "alderlake": Core("x86_64", (*_V3, "avxvnni", "gfni"), 48 * KB, 1280 * KB, 30 * MB),
    "znver2": Core("x86_64", _V3, l2=512 * KB, l3=16 * MB, latency=5),
    "znver3": Core("x86_64", _V3, l2=512 * KB),
    "znver4": Core("x86_64", (*_ICE, "avx512bf16"), fma=1, loads=1),  # 512 bits in two passes of 256
    "znver5": Core("x86_64", (*_ICE, "avx512bf16", "avxvnni"), l1=48 * KB),
    "aarch64": Core("aarch64", _ARMV8, level=True),
    "cortex-a72": Core("aarch64", _ARMV8, l3=1 * MB, fma=1, loads=1, latency=7),
    "cortex-a76": Core("aarch64", _ARMV82, 64 * KB, 512 * KB, 4 * MB),
    "neoverse-n1": Core("aarch64", _ARMV82, l1=64 * KB),
    "neoverse-v2": Core("aarch64", _ARMV86, l1=64 * KB, l2=2 * MB, l3=64 * MB, fma=4, loads=3),
    "apple-m1": Core("aarch64", _ARMV82, 128 * KB, 3 * MB, 8 * MB, fma=4, loads=3),
    # vectors of 128 bits in registers of any length; of 256 and 512 where registers are that long
    **{
        f"riscv64{suffix}": Core("riscv64", (*_RVV, *extra), l2=512 * KB, l3=2 * MB, fma=1, loads=1, level=True)
        for suffix, extra in (("", ()), ("-zvl256b", ("zvl256b",)), ("-zvl512b", ("zvl256b", "zvl512b")))
    },
}


@dataclass(frozen=True)
class Microcontroller:
    """A core that C is compiled for. flags: of `arm-none-eabi-gcc`. board: QEMU's machine that runs its programs;
    flash, ram: its (address, bytes) that code and data are linked to. clock: Hz of the board's SysTick timer."""

    flags: tuple[str, ...]
    board: str
    flash: tuple[int, int] = (0x0000_0000, 4 * MB)
    ram: tuple[int, int] = (0x2000_0000, 4 * MB)
    clock: int = 25_000_000


def _mps3(*flags: str) -> Microcontroller:
    return Microcontroller(flags, "mps3-an547", (0, 512 * KB), (0x6000_0000, 32 * MB), 32_000_000)


MICROCONTROLLERS: Mapping[str, Microcontroller] = {
    "cortex-m0plus": Microcontroller(("-mcpu=cortex-m0plus",), "mps2-an385"),  # of a Cortex-M3, which runs its code
    "cortex-m3": Microcontroller(("-mcpu=cortex-m3",), "mps2-an385"),
    "cortex-m4": Microcontroller(("-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"), "mps2-an386"),
    "cortex-m7": Microcontroller(("-mcpu=cortex-m7", "-mfpu=fpv5-sp-d16", "-mfloat-abi=hard"), "mps2-an500"),
    "cortex-m33": _mps3("-mcpu=cortex-m33", "-mfpu=fpv5-sp-d16", "-mfloat-abi=hard"),
    "cortex-m55": _mps3("-mcpu=cortex-m55", "-mfloat-abi=hard"),
}
