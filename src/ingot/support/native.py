"""Plain data about native code, shared by the compiler's targets and the runtime: code objects, ISAs, cores."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ingot.support.dataclass import dataclass

# LLVM's feature name -> the kernel's name in /proc/cpuinfo. Code is only ever compiled for features listed
# here, because only these can be checked when an artifact is loaded on another machine.
X86_FEATURES: Mapping[str, str] = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "popcnt": "popcnt",
    "cx16": "cx16",
    "movbe": "movbe",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "gfni": "gfni",
    "avxvnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512cd": "avx512cd",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
}
AARCH64_FEATURES: Mapping[str, str] = {
    "fp-armv8": "fp",
    "neon": "asimd",
    "lse": "atomics",
    "fullfp16": "asimdhp",
    "rdm": "asimdrdm",
    "dotprod": "asimddp",
    "bf16": "bf16",
    "i8mm": "i8mm",
}
_RISCV_LETTERS = ("m", "a", "f", "d", "c", "v")
_RISCV_LENGTHS = {"zvl256b": 256, "zvl512b": 512}  # bits of a vector register
RISCV_FEATURES: Mapping[str, str] = {name: name for name in (*_RISCV_LETTERS, *_RISCV_LENGTHS)}
FEATURES: Mapping[str, Mapping[str, str]] = {
    "x86_64": X86_FEATURES, "aarch64": AARCH64_FEATURES, "riscv64": RISCV_FEATURES,
}  # fmt: skip
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "riscv64": "riscv64"}

# The kernel's bits of AT_HWCAP, and of AT_HWCAP2 from 64 on (asm/hwcap.h), by architecture. An emulator answers for the
# machine that it stands for, where /proc/cpuinfo is the host's.
_CAPABILITIES: Mapping[str, Mapping[str, int]] = {
    "aarch64": {
        "fp-armv8": 0, "neon": 1, "lse": 8, "fullfp16": 10, "rdm": 12, "dotprod": 20, "i8mm": 64 + 13, "bf16": 64 + 14,
    },
    "riscv64": {name: ord(name) - ord("a") for name in _RISCV_LETTERS},
}  # fmt: skip
_AT_HWCAP, _AT_HWCAP2 = 16, 26


@dataclass(frozen=True)
class Features:
    """The description of a machine that code is compiled for or runs on, stored with the code.

    arch: the architecture ("x86_64", "aarch64", "riscv64", "wasm32"). features: the extensions that code may use, by
    the target's names, sorted; for CPUs LLVM's names, a subset of `FEATURES[arch]`. cpu: LLVM's name of the core to
    schedule for, "" for a generic one. target: the target whose features these are; "null:cpu": those of cpu, which
    null stands in for. caches: the bytes of a core's L1 and L2 and of the shared L3, if known; else the target assumes
    typical sizes.
    """

    arch: str
    features: tuple[str, ...] = ()
    cpu: str = ""
    target: str = "cpu"
    caches: tuple[int, ...] = ()

    @property
    def target_name(self) -> str:
        """The name of the target that generates the code, which is its key in a program."""
        return self.target.partition(":")[0]

    def __contains__(self, feature: str) -> bool:
        return feature in self.features

    def __str__(self) -> str:
        if self.target_name != "cpu":
            return " ".join((self.target, self.arch, *filter(None, (self.cpu, *self.features))))
        return f"{self.target} {self.arch} {self.cpu or 'generic'} with {', '.join(self.features) or 'no extensions'}"

    def missing(self, required: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in required if name not in self.features)


@dataclass(frozen=True)
class Code:
    """The code that a target generated from kernels, for machines that have `features`.

    For CPUs the blob is position-independent machine code and read-only data, and a symbol is the offset of a global
    function. It needs no relocation; it must be mapped at a page-aligned address, readable and executable. plan: a
    digest of the only plan that may launch its kernels, as these rely on sizes, chunks and tables; b"" if unknown.
    """

    features: Features
    blob: bytes
    symbols: Mapping[str, int]
    plan: bytes = b""


def parse_cpuinfo(text: str, arch: str) -> tuple[str, ...]:
    """The features, in LLVM's names, that every core of a /proc/cpuinfo text has."""
    key = "flags" if arch == "x86_64" else "Features"
    common: set[str] | None = None
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not colon or name.strip() != key:
            continue
        flags = set(value.split())
        common = flags if common is None else common & flags
    names = FEATURES.get(arch, {})
    return tuple(sorted(llvm for llvm, kernel in names.items() if kernel in (common or ())))


def capabilities(arch: str, words: int) -> tuple[str, ...]:
    """The features, in LLVM's names, that AT_HWCAP states, with AT_HWCAP2 in the bits from 64 on."""
    return tuple(sorted(name for name, bit in _CAPABILITIES[arch].items() if words >> bit & 1))


def with_vector_length(features: tuple[str, ...], bits: int) -> tuple[str, ...]:
    """RISC-V's features with those for the length of vector registers in bits, which AT_HWCAP does not contain."""
    lengths = [name for name, least in _RISCV_LENGTHS.items() if "v" in features and bits >= least]
    return tuple(sorted((*features, *lengths)))


def _vector_bits() -> int:
    """The bits of a RISC-V vector register: eight times the register `vlenb`, which only an instruction reads."""
    import ctypes
    import mmap

    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write((0xC2202573).to_bytes(4, "little") + (0x00008067).to_bytes(4, "little"))  # csrr a0, vlenb; ret
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    return 8 * read()


def _hwcaps() -> int | None:
    """AT_HWCAP, and AT_HWCAP2 in the bits from 64 on; None if the C library does not provide them."""
    import ctypes  # most processes run on x86-64

    getauxval = getattr(ctypes.CDLL(None), "getauxval", None)
    if getauxval is None:
        return None
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return getauxval(_AT_HWCAP) | getauxval(_AT_HWCAP2) << 64


@cache
def host() -> Features:
    """The machine that this process runs on, determined without a compiler: by the kernel's capabilities or
    /proc/cpuinfo, else the bare architecture."""
    machine = platform.machine()
    arch = _MACHINES.get(machine.lower(), machine)
    if arch in _CAPABILITIES and (words := _hwcaps()):
        features = capabilities(arch, words)
        if arch == "riscv64" and "v" in features:
            features = with_vector_length(features, _vector_bits())
        return Features(arch, features, caches=cache_sizes())
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return Features(arch, parse_cpuinfo(text, arch), caches=cache_sizes())


def cache_sizes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> tuple[int, ...]:
    """The bytes of the first core's data caches, levels 1 to 3, as reported by Linux; () unless all are known."""
    sizes_by_level: dict[int, int] = {}
    for index in root.glob("index*"):
        try:
            texts = ((index / name).read_text(encoding="ascii").strip() for name in ("level", "type", "size"))
            level, kind, size = texts
            if kind != "Instruction":
                sizes_by_level[int(level)] = int(size.removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    sizes = tuple(sizes_by_level.get(level, 0) for level in (1, 2, 3))
    return sizes if all(sizes) else ()


def available_cores() -> int:
    """The physical cores this process may run on, within the container's CPU quota."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = len({_core_of(cpu) for cpu in cpus})
    quota = _cpu_quota()
    return max(1, cores if quota is None else min(cores, quota))


@cache
def _core_of(cpu: int) -> str:
    """The logical CPUs of its physical core, as text; its own number if the system does not report them."""
    try:
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)


def _cpu_quota() -> int | None:
    """Whole CPUs of the cgroup v2 limit, rounded up; a thread beyond it would be throttled for milliseconds."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None
