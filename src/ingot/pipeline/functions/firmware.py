"""C programs on the machine that they are for: what they take of its flash and RAM, and an example that runs them.

model.c   ->   5.4 KB of code, 52 KB of weights, 22 KB of RAM;   main.c, board.c, board.ld, Makefile: `make run`
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ingot.pipeline.cores import MICROCONTROLLERS
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.support.files import atomic_write
from ingot.support.native import Features
from ingot.targets.c.board import MARK, Board, example_files
from ingot.targets.c.program import Plan, identifier

ARM_COMPILER, HOST_COMPILER = "arm-none-eabi-gcc", "cc"
_TIMEOUT_SECONDS = 120  # that the compiler may take


@dataclass(frozen=True)
class Footprint:
    """Bytes of memory. code: of the functions and their tables; None if no compiler is installed. compiler: the
    compiler that was used, or that is needed. arena includes scratch; the size of the stack is unknown."""

    code: int | None
    compiler: str
    weights: int
    arena: int
    state: int


def board_of(features: Features) -> Board:
    """The board that the features' core is run on; this machine where they name no core."""
    core = MICROCONTROLLERS.get(features.cpu)
    if core is None:
        return Board((HOST_COMPILER,))
    emulator = ("qemu-system-arm", "-M", core.board, "-nographic", "-monitor", "none", "-serial", "none",
                "-semihosting-config", "enable=on,target=native", "-icount", "shift=0")  # fmt: skip
    compiler = (ARM_COMPILER, *core.flags, "-mthumb")
    return Board(compiler, emulator, core.flash, core.ram, 1e9 / core.clock)


def footprint(features: Features, plan: Plan, source: Path, separate_weights: bool) -> Footprint:
    """The footprint of the program in `source`, as printed from `plan`."""
    board = board_of(features)
    code_weight_bytes = 0 if separate_weights or not plan.weights else len(plan.weights)
    code = _code_bytes(board, source)
    if code is not None:
        code -= code_weight_bytes + (len(plan.state) if any(plan.state) else 0)
    arena = max(8, plan.arena_bytes + plan.scratch_bytes)
    return Footprint(code, f"{board.compiler[0]} -O2", len(plan.weights), arena, len(plan.state))


def _code_bytes(board: Board, source: Path) -> int | None:
    """The bytes of instructions and constants in the object that a compiler makes of a source; None without one."""
    compiler = board.compiler[0]
    size = compiler.replace("gcc", "size") if compiler != HOST_COMPILER else "size"
    if not shutil.which(compiler) or not shutil.which(size):
        return None
    target = source.with_suffix(".footprint.o")
    try:
        command = [*board.compiler, "-O2", "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_SECONDS)
        output = subprocess.run(
            [size, "-A", str(target)], check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
    except (subprocess.SubprocessError, OSError):
        return None
    finally:
        target.unlink(missing_ok=True)
    rows = (line.split() for line in output.stdout.splitlines())
    return sum(int(r[1]) for r in rows if len(r) == 3 and r[0].startswith((".text", ".rodata", ".data.rel.ro")))


def example_paths(features: Features, source: Path) -> list[Path]:
    """The files of the example of `source`, next to it. Raises InputError if one exists that Ingot did not write."""
    names = ["main.c", "board.c", "Makefile", *(["board.ld"] if board_of(features).emulator else [])]
    paths = [source.parent / name for name in names]
    for path in paths:
        if path == source:
            raise InputError("--example", expected=f"another name than {path.name} for the program", got=str(path))
        if path.is_file() and MARK not in path.read_text(errors="replace").partition("\n")[0]:
            raise InputError("--example", expected=f"a folder without {path.name}", got=str(path), fix="-o NEW/model.c")
    return paths


def write_example(
    features: Features, plan: Plan, source: Path, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> Mapping[str, str]:
    """Write an example that runs `source` on `inputs` and expects `outputs`. Return the files' texts by name."""
    example_paths(features, source)
    pairs = [list(zip(t, a, strict=True)) for t, a in ((plan.inputs, inputs), (plan.outputs, outputs))]
    files = example_files(identifier(source.stem), source.name, board_of(features), *pairs, state=bool(plan.state))
    for name, text in files.items():
        atomic_write(source.parent / name, [text.encode()])
    return files


__all__ = ["Footprint", "board_of", "example_paths", "footprint", "write_example"]
