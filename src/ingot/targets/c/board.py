"""The files around a printed program that run it: on QEMU's model of a microcontroller's board, or on this machine.

main.c     calls the program on a sample input and counts the outputs that differ from those expected
board.c    what main.c needs of the machine: startup code, a counter of instructions, text out, the exit status
board.ld   where QEMU's board has its memories
Makefile   builds and runs them: `make run`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ingot.support.dataclass import dataclass
from ingot.targets.c.program import Tensor, identifier

MARK = "Made by Ingot"  # in the first line of each file, which may then be written over
_VALUES_PER_LINE = 24


@dataclass(frozen=True)
class Board:
    """compiler: with its flags. emulator: the command that runs `model.elf`; () on this machine. flash, ram:
    (address, bytes). instructions_per_tick: of the timer, in QEMU with -icount shift=0, which executes one in a
    nanosecond."""

    compiler: tuple[str, ...]
    emulator: tuple[str, ...] = ()
    flash: tuple[int, int] = (0, 0)
    ram: tuple[int, int] = (0, 0)
    instructions_per_tick: float = 0.0


def example_files(
    name: str, source: str, board: Board, inputs: Sequence[tuple[Tensor, np.ndarray]],
    outputs: Sequence[tuple[Tensor, np.ndarray]], state: bool,
) -> Mapping[str, str]:  # fmt: skip
    """Return the files' texts by name. name: the prefix of the program's functions. source: the name of its .c file.
    state: whether the program has any."""
    files = {"main.c": _main(name, source, inputs, outputs, state), "Makefile": _makefile(source, board)}
    if not board.emulator:
        return files | {"board.c": _HOST}
    hundredths = round(board.instructions_per_tick * 100)
    (flash, flash_bytes), (ram, ram_bytes) = board.flash, board.ram
    script = _SCRIPT.replace("FLASH_AT", f"{flash:#x}").replace("FLASH_BYTES", str(flash_bytes))
    script = script.replace("RAM_AT", f"{ram:#x}").replace("RAM_BYTES", str(ram_bytes))
    return files | {"board.c": _STARTUP.replace("HUNDREDTHS", str(hundredths)), "board.ld": script}


def _main(
    name: str, source: str, inputs: Sequence[tuple[Tensor, np.ndarray]], outputs: Sequence[tuple[Tensor, np.ndarray]],
    state: bool,
) -> str:  # fmt: skip
    header, upper = source.removesuffix(".c") + ".h", name.upper()
    lines = [
        f"/* {MARK}: calls {name}_run on a sample and compares its results with those of Ingot's interpreter. */",
        f'#include "{header}"', "", _MAIN,
    ]  # fmt: skip
    for i, (tensor, array) in enumerate(inputs):
        lines += _array(f"static const {tensor.c_type} input_{i}", tensor, array)
    for i, (tensor, array) in enumerate(outputs):
        lines += _array(f"static const {tensor.c_type} expected_{i}", tensor, array)
        lines += [f"static {tensor.c_type} output_{i}[{max(1, array.size)}];"]
    reset = [f"  if ({name}_reset(NULL) != {upper}_OK) return 3;"] if state else []
    arguments = ", ".join([f"input_{i}" for i in range(len(inputs))] + [f"output_{i}" for i in range(len(outputs))])
    lines += [
        "", "int main(void) {", "  uint32_t begin, end;", "  unsigned long wrong = 0;", *reset,
        "  begin = board_count();", f"  if ({name}_run({arguments}) != {upper}_OK) return 3;", "  end = board_count();",
        '  report("instructions (a count of QEMU\'s, not a time): ", end - begin);',
    ]  # fmt: skip
    for i, (tensor, array) in enumerate(outputs):
        kind = {"f32": "float", "f64": "double"}.get(tensor.dtype, "")
        call = f"different_{kind}s(output_{i}, expected_{i}" if kind else f"different_bytes(output_{i}, expected_{i}"
        size = array.size if kind else array.nbytes
        label = identifier(tensor.name)
        lines += [f"  wrong += report_({_text(label)}, {call}, {size}UL), {array.size}UL);"]
    return "\n".join([*lines, "  return wrong != 0;", "}", ""])


def _text(label: str) -> str:
    return f'"output {label}: "'


def _array(head: str, tensor: Tensor, array: np.ndarray) -> list[str]:
    flat = np.ascontiguousarray(array).reshape(-1)
    if tensor.dtype in ("f16", "bf16"):
        flat = flat.view(np.uint16)
    values = [_literal(v) for v in flat.tolist()] or ["0"]
    rows = [", ".join(values[i : i + _VALUES_PER_LINE]) for i in range(0, len(values), _VALUES_PER_LINE)]
    return [f"{head}[{len(values)}] = {{", *(f"  {row}," for row in rows), "};"]


def _literal(value: float | int | bool) -> str:
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return {"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY"}[str(value)]
        return repr(value)
    value = int(value)
    if value == -(1 << 63):
        return "INT64_MIN"
    return f"{value}{'ULL' if value >= 1 << 63 else 'LL' if abs(value) >= 1 << 31 else ''}"


def _makefile(source: str, board: Board) -> str:
    emulated = bool(board.emulator)
    linked = " -nostartfiles -Wl,--gc-sections -T board.ld" if emulated else ""
    dependencies = f"main.c board.c {source}{' board.ld' if emulated else ''}"
    run = " ".join([*board.emulator, "-kernel", "model.elf"]) if emulated else "./model.elf"
    return "\n".join([
        f"# {MARK}: `make run` builds the program and runs it on its sample.",
        f"CC = {board.compiler[0]}",
        "OPTIMIZE = -O2",
        f"CFLAGS = {' '.join([*board.compiler[1:], '$(OPTIMIZE)', '-ffunction-sections', '-fdata-sections', '-Wall'])}",
        "",
        f"model.elf: {dependencies}",
        f"\t$(CC) $(CFLAGS) main.c board.c {source}{linked} -o $@",
        "",
        "run: model.elf",
        f"\t{run}",
        "",
        "clean:",
        "\trm -f model.elf",
        "",
        ".PHONY: run clean",
        "",
    ])  # fmt: skip


_MAIN = """\
#include <math.h>
#include <stddef.h>

void board_print(const char *text);
uint32_t board_count(void); /* instructions so far; 0 where nothing counts them */

static void number(unsigned long value) {
  char digits[24];
  size_t i = sizeof digits - 1;
  digits[i] = 0;
  do digits[--i] = (char)('0' + value % 10); while ((value /= 10) != 0);
  board_print(digits + i);
}
static void report(const char *label, uint32_t value) {
  if (value == 0) return;
  board_print(label);
  number(value);
  board_print("\\n");
}
static unsigned long report_(const char *label, unsigned long wrong, unsigned long size) {
  board_print(label);
  number(wrong);
  board_print(" of ");
  number(size);
  board_print(" differ\\n");
  return wrong;
}
static inline unsigned long different_bytes(const void *a, const void *b, unsigned long n) {
  unsigned long i, wrong = 0;
  for (i = 0; i < n; i++) wrong += ((const uint8_t *)a)[i] != ((const uint8_t *)b)[i];
  return wrong;
}
/* floats: within 1e-4 of the largest number expected */
#define DIFFERENT(type) \\
  static inline unsigned long different_##type##s(const type *a, const type *b, unsigned long n) { \\
    unsigned long i, wrong = 0; \\
    type most = 0, error; \\
    for (i = 0; i < n; i++) { \\
      error = b[i] < 0 ? -b[i] : b[i]; \\
      if (error > most && error <= (type)3e38) most = error; \\
    } \\
    for (i = 0; i < n; i++) { \\
      error = a[i] < b[i] ? b[i] - a[i] : a[i] - b[i]; \\
      wrong += !(error <= most * (type)1e-4 || a[i] == b[i] || (a[i] != a[i] && b[i] != b[i])); \\
    } \\
    return wrong; \\
  }
DIFFERENT(float)
DIFFERENT(double)
"""

_HOST = f"""\
/* {MARK}: the machine that compiles this. */
#include <stdint.h>
#include <stdio.h>

void board_print(const char *text);
uint32_t board_count(void);

void board_print(const char *text) {{ fputs(text, stdout); }}
uint32_t board_count(void) {{ return 0; }}
"""

_STARTUP = f"""\
/* {MARK}: startup code for QEMU's board, text by semihosting, instructions by the SysTick timer (-icount shift=0). */
#include <stdint.h>

extern uint32_t data_begin, data_end, data_source, zero_begin, zero_end, stack_top;
int main(void);
void board_print(const char *text);
uint32_t board_count(void);
void reset(void);

#define SYSTICK ((volatile uint32_t *)0xE000E010)
static volatile uint32_t wraps;

static void semihosting(int operation, const void *argument) {{
  register int r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}}
static void leave(uint32_t status) {{
  uint32_t words[2];
  words[0] = 0x20026; /* the application ended */
  words[1] = status;
  semihosting(0x20, words);
  for (;;) {{ }}
}}
void board_print(const char *text) {{ semihosting(4, text); }}
uint32_t board_count(void) {{
  uint32_t high, low;
  do {{ high = wraps; low = SYSTICK[2]; }} while (high != wraps);
  return (uint32_t)(((uint64_t)high * 0x1000000U + (0xffffffU - low)) * HUNDREDTHSU / 100U);
}}
static void tick(void) {{ wraps++; }}
static void fault(void) {{ board_print("fault\\n"); leave(4); }}

void reset(void) {{
  uint32_t *to, *from;
  *(volatile uint32_t *)0xE000ED88 |= 0xfU << 20; /* coprocessors 10 and 11: floating point */
  __asm__ volatile("dsb\\n isb");
  for (to = &data_begin, from = &data_source; to < &data_end;) *to++ = *from++;
  for (to = &zero_begin; to < &zero_end;) *to++ = 0;
  SYSTICK[1] = 0xffffff; SYSTICK[2] = 0; SYSTICK[0] = 7;
  while (SYSTICK[2] == 0) {{ }}
  leave((uint32_t)main());
}}
__attribute__((section(".vectors"), used)) static void *const vectors[16] = {{
  &stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault, 0,
  0, 0, 0, (void *)fault, (void *)fault, 0, (void *)fault, (void *)tick,
}};
"""

_SCRIPT = f"""\
/* {MARK}: the memories of QEMU's board. */
MEMORY {{
  FLASH (rx) : ORIGIN = FLASH_AT, LENGTH = FLASH_BYTES
  RAM (rwx) : ORIGIN = RAM_AT, LENGTH = RAM_BYTES
}}
ENTRY(reset)
SECTIONS {{
  .text : {{ KEEP(*(.vectors)) *(.text*) *(.rodata*) . = ALIGN(8); }} > FLASH
  .ARM.exidx : {{ *(.ARM.exidx* .ARM.extab*) }} > FLASH
  .data : {{ data_begin = .; *(.data*) . = ALIGN(8); data_end = .; }} > RAM AT> FLASH
  data_source = LOADADDR(.data);
  .bss (NOLOAD) : {{ . = ALIGN(16); zero_begin = .; *(.bss*) *(COMMON) . = ALIGN(8); zero_end = .; }} > RAM
  stack_top = ORIGIN(RAM) + LENGTH(RAM);
}}
"""

__all__ = ["MARK", "Board", "example_files"]
