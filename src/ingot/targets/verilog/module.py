"""A nest as a Verilog module: counters, one read of each memory in a clock cycle, multiply-adds in lanes, an epilogue.

    cycle      0 .. R-1                    R                          R+1 .. R+P
    reads      operands of terms 0..R-1    epilogue's, lane 0         epilogue's, next lane
    computes   terms 0..R-2                term R-1                   epilogue of a lane, write

R terms of P lanes take R + 1 + P cycles. The lanes are neighboring elements along the result's last dimension that
share the reads of activations; each lane has its own weights, which are streamed from a memory of words of P weights in
the order of use. A nest without terms takes P + 1 = 2 cycles for an element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

import numpy as np
from numpy.typing import NDArray

from ingot.ir.types import DTYPES
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError
from ingot.targets.verilog.nest import Nest
from ingot.targets.verilog.ranges import (
    COMPARISONS,
    Range,
    counters_in,
    exact,
    is_lookup,
    loads_in,
    numbers,
    range_of,
    ranges,
    width,
)

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "div": "/", "rem": "%"}


@dataclass(frozen=True)
class Module:
    """text: Verilog. reads: the params in external memories, each of which has a port. memories: the words of each file
    of constants, in hexadecimal. stored_range: that of the values that it writes. cycles: of a run."""

    text: str
    reads: tuple[int, ...]
    memories: Mapping[str, str]
    stored_range: Range
    cycles: int


def clog2(count: int) -> int:
    """The bits of a counter from 0 to `count` - 1, at least 1."""
    return max(1, (count - 1).bit_length())


def print_module(
    name: str, nest: Nest, constants: Mapping[int, NDArray[np.int64]], ranges: Mapping[int, Range], lanes: int
) -> Module:
    """Print a nest. constants: the elements of params that are constants. ranges: the ranges of the others. lanes: the
    maximum number. Raises CompileError for a nest that reads a memory twice in one cycle."""
    return _Printer(name, nest, constants, ranges, lanes).module()


@dataclass
class _Printer:
    name: str
    nest: Nest
    constants: Mapping[int, NDArray[np.int64]]
    param_ranges: Mapping[int, Range]
    max_lanes: int
    lines: list[str] = field(default_factory=lambda: list[str]())
    wires: dict[tuple[int, str, int], str] = field(default_factory=lambda: dict[tuple[int, str, int], str]())
    memories: dict[str, str] = field(default_factory=lambda: dict[str, str]())
    addresses: set[str] = field(default_factory=lambda: set[str]())

    def module(self) -> Module:
        nest = self.nest
        params = [
            (int(x.min()), int(x.max())) if (x := self.constants.get(i)) is not None and x.size
            else self.param_ranges.get(i, range_of(dtype))
            for i, (_, dtype) in enumerate(nest.params)
        ]  # fmt: skip
        self.ranges = ranges(nest, params)
        self.params = params
        out, address, value = nest.store
        self.term_loads = set[int]() if nest.update is None else loads_in(nest, nest.update)
        self.end_loads = loads_in(nest, value)
        for loads in (self.term_loads, self.end_loads):
            read = [nest.values[i][2] for i in loads]
            if len(set(read)) < len(read):
                raise CompileError("a circuit", expected="one read of each operand in a step", got=nest.name)
        self.lane_counter = (False, len(nest.outer) - 1)
        self.lanes = self._lane_count()
        self._memories()
        self._terms()
        self._epilogue(address, value)
        header, state = self._frame(out)
        elements, terms = prod(nest.outer), prod(nest.inner) if nest.update is not None else 0
        cycles = elements // self.lanes * (terms + 1 + self.lanes) + 1
        reads = tuple(sorted({nest.values[i][2] for i in self.term_loads | self.end_loads} - set(self.constants)))
        text = "\n".join([*header, *self.lines, *state, "endmodule", ""])
        return Module(text, reads, self.memories, self.ranges[value], cycles)

    def _lane_count(self) -> int:
        """The largest number of lanes that divides the last dimension, if lanes share their reads of activations."""
        nest = self.nest
        if not nest.outer or not self.term_loads:
            return 1
        for i in self.term_loads:
            param, address = nest.values[i][2:]
            used = counters_in(nest, address)
            if param not in self.constants and self.lane_counter in used:
                return 1
            if param in self.constants and any(not inner and c != self.lane_counter[1] for inner, c in used):
                return 1
        return max(n for n in range(1, self.max_lanes + 1) if nest.outer[-1] % n == 0)

    def _memories(self) -> None:
        """The memories of constants: reordered by use for terms of several lanes, else unchanged."""
        nest = self.nest
        for i in sorted(self.term_loads | self.end_loads):
            param, address = nest.values[i][2:]
            if param not in self.constants:
                continue
            bits = width(self.params[param])
            if i in self.term_loads and self.lanes > 1:
                words = self._streamed(param, address, bits)
                reads = "position", self.lanes * bits, f"term_{i}"
            else:
                words = [int(x) & (1 << bits) - 1 for x in self.constants[param]]
                reads = self._address(i), bits, f"param_{param}"
            at, bits, label = reads
            if f"{label}_rom" in self.memories:
                continue
            self._memory(label, words, bits)
            self.lines += [
                f"  reg [{bits - 1}:0] {label}_word;",
                f"  always @(posedge clk) {label}_word <= {label}_rom[{at}];",
            ]

    def _streamed(self, param: int, address: int, bits: int) -> list[int]:
        nest, lanes = self.nest, self.lanes
        grid = np.indices((nest.outer[-1] // lanes, *nest.inner)).reshape(1 + len(nest.inner), -1)
        words = np.zeros(grid.shape[1], object)
        for lane in range(lanes):
            counters = {(True, n): grid[1 + n] for n in range(len(nest.inner))}
            counters[self.lane_counter] = grid[0] * lanes + lane
            picked = self.constants[param][np.broadcast_to(numbers(nest, address, counters), words.shape)]
            words += (picked.astype(object) & (1 << bits) - 1) << bits * lane
        return [int(w) for w in words]

    def _address(self, load: int) -> str:
        """The wire of a param's address: that of the term in the inner loops' state, else that of the epilogue."""
        nest = self.nest
        param = nest.values[load][2]
        other = [i for i in self.term_loads | self.end_loads if nest.values[i][2] == param]
        streamed = self.lanes > 1 and param in self.constants
        stages = [
            self._value(nest.values[i][3], stage, 0)
            for stage, loads in (("ta", set[int]() if streamed else self.term_loads), ("ea", self.end_loads))
            for i in other
            if i in loads
        ]
        name = f"param_{param}_address"
        if name not in self.addresses:
            self.addresses.add(name)
            picked = stages[0] if len(stages) == 1 else f"(inner ? {stages[0]} : {stages[1]})"
            self.lines.append(f"  wire signed [31:0] {name} = {picked};")
        return name

    def _terms(self) -> None:
        nest = self.nest
        for i in sorted(self.term_loads | self.end_loads):
            if nest.values[i][2] not in self.constants:
                self._address(i)
        if nest.update is None or nest.initial is None:
            return
        bits = width(self.ranges[nest.update])
        for lane in range(self.lanes):
            self.lines.append(f"  reg signed [{bits - 1}:0] acc_{lane};")
            self.lines.append(
                f"  wire signed [{bits - 1}:0] last_{lane} = first ? {self._literal(nest.initial)} : acc_{lane};"
            )
            updated = self._value(nest.update, "td", lane)
            self.lines.append(f"  always @(posedge clk) if (term) acc_{lane} <= {updated};")

    def _epilogue(self, address: int, value: int) -> None:
        bits = width(self.ranges[value])
        self.lines += [
            f"  assign out_address = {self._value(address, 'ed', 0)};",
            f"  wire signed [{bits - 1}:0] stored = {self._value(value, 'ed', 0)};",
            "  assign out_data = stored;",
        ]

    def _literal(self, number: int) -> str:
        value = self.nest.values[number][2]
        return _literal(value, width((value, value)))

    def _value(self, number: int, stage: str, lane: int) -> str:
        """The wire of a value. stage: "t" for a term or "e" for the epilogue, then "a" for the cycle of addresses or
        "d" for that of their data."""
        key = number, stage, lane
        if key in self.wires:
            return self.wires[key]
        fn, dtype, *rest = self.nest.values[number]
        bits = width(self.ranges[number])
        if fn == "literal":
            wire = _literal(rest[0], bits)
        else:
            text = self._expression(fn, dtype, rest, number, stage, lane)
            wire = f"{stage}{lane}_{number}"
            self.lines.append(f"  wire signed [{bits - 1}:0] {wire} = {text};")
        self.wires[key] = wire
        return wire

    def _expression(self, fn: str, dtype: str, rest: list[int], number: int, stage: str, lane: int) -> str:
        nest = self.nest
        if fn == "counter":
            inner, which = nest.values[number][2]
            return self._counter(bool(inner), which, stage, lane)
        if fn == "acc":
            if stage == "td":
                return f"last_{lane}"
            return self._pick([f"acc_{n}" for n in range(self.lanes)])
        if fn == "load":
            param, bits = rest[0], width(self.params[rest[0]])
            if is_lookup(nest, number):
                return self._lookup(param, bits, self._value(rest[1], stage, lane))
            if param not in self.constants:
                return f"in{param}_data"
            if number in self.term_loads and stage == "td" and self.lanes > 1:
                return f"$signed(term_{number}_word[{(lane + 1) * bits - 1}:{lane * bits}])"
            return f"$signed(param_{param}_word)"
        operands = [self._value(i, stage, lane) for i in rest]
        return self._operation(fn, dtype, operands, [self.ranges[i] for i in rest])

    def _pick(self, names: list[str]) -> str:
        text = names[-1]
        for n in reversed(range(len(names) - 1)):
            text = f"lane_data == {n} ? {names[n]} : {text}"
        return text

    def _counter(self, inner: bool, which: int, stage: str, lane: int) -> str:
        name = f"{'r' if inner else 'o'}{which}" + ("_data" if inner and stage == "td" else "")
        signed = f"$signed({{1'b0, {name}}})"
        if (inner, which) != self.lane_counter or self.lanes == 1:
            return signed
        added = {"ea": "$signed({1'b0, lane})", "ed": "$signed({1'b0, lane_data})"}.get(stage, f"{lane}")
        return f"{signed} * {self.lanes} + {added}"

    def _operation(self, fn: str, dtype: str, x: list[str], r: list[Range]) -> str:
        if fn in COMPARISONS:
            return f"({x[0]} {COMPARISONS[fn]} {x[1]}) ? 2'sd1 : 2'sd0"
        low, high = range_of(dtype)
        match fn:
            case "select":
                text = f"({x[0]} != 0) ? {x[1]} : {x[2]}"
            case "min" | "max":
                text = f"({x[0]} {'<' if fn == 'min' else '>'} {x[1]}) ? {x[0]} : {x[1]}"
            case "cast" if dtype == "bool":
                return f"({x[0]} != 0) ? 2'sd1 : 2'sd0"
            case "cast":
                text = x[0]
            case "neg":
                text = f"-{x[0]}"
            case "not":
                text = f"~{x[0]}" if dtype != "bool" else f"({x[0]} == 0) ? 2'sd1 : 2'sd0"
            case "ashr":
                text = f"{x[0]} >>> $unsigned({x[1]})"
            case "lshr":  # of a number that is not negative
                text = f"{x[0]} >>> $unsigned({x[1]})"
            case "clz":
                text = self._leading_zeros(x[0], DTYPES[dtype].bits)
            case "shl":
                text = f"{x[0]} <<< $unsigned({x[1]})"
            case _:
                text = f"{x[0]} {_OPERATORS[fn]} {x[1]}"
        unwrapped = _exact_range(fn, r, dtype)
        if unwrapped is None or (low <= unwrapped[0] and unwrapped[1] <= high):
            return text
        # wraps: through a wire of the exact width, whose lower bits count
        wire = f"wrapped_{len(self.lines)}"
        bits = width((low, high)) - (low == 0)
        self.lines.append(f"  wire signed [{width(unwrapped) - 1}:0] {wire} = {text};")
        return f"$signed({{1'b0, {wire}[{bits - 1}:0]}})" if low == 0 else f"$signed({wire}[{bits - 1}:0])"

    def _lookup(self, param: int, bits: int, address: str) -> str:
        """A combinational table lookup."""
        if param not in self.constants:
            raise CompileError("a circuit", expected="lookups in constants", got=self.nest.name)
        label = f"table_{param}"
        if f"{label}_rom" not in self.memories:
            words = [int(x) & (1 << bits) - 1 for x in self.constants[param]]
            self._memory(label, words, bits)
        return f"$signed({label}_rom[{address}])"

    def _memory(self, label: str, words: Sequence[int], bits: int) -> None:
        self.memories[f"{label}_rom"] = "\n".join(f"{w:0{-(-bits // 4)}x}" for w in words) + "\n"
        self.lines += [
            f"  reg [{bits - 1}:0] {label}_rom [0:{len(words) - 1}];",
            f'  initial $readmemh("{self.name}_{label}.hex", {label}_rom);',
        ]

    def _leading_zeros(self, x: str, bits: int) -> str:
        wire = f"counted_{len(self.lines)}"
        self.lines.append(f"  wire [{bits - 1}:0] {wire} = {x};")
        picks = "".join(f"{wire}[{bits - 1 - n}] ? {clog2(bits + 1) + 1}'sd{n} : " for n in range(bits))
        return f"{picks}{clog2(bits + 1) + 1}'sd{bits}"

    def _frame(self, out: int) -> tuple[list[str], list[str]]:
        nest, lanes = self.nest, self.lanes
        reads = sorted({nest.values[i][2] for i in self.term_loads | self.end_loads} - set(self.constants))
        ports = ["input clk", "input rst", "input start", "output reg done"]
        for param in reads:
            ports += [
                f"output [31:0] in{param}_address",
                f"input signed [{width(self.params[param]) - 1}:0] in{param}_data",
            ]
        ports += ["output out_write", "output signed [31:0] out_address"]
        ports += [f"output signed [{width(self.ranges[nest.store[2]]) - 1}:0] out_data"]
        outer = [*nest.outer]
        if outer and lanes > 1:
            outer[-1] //= lanes
        counters = [(f"o{n}", size) for n, size in enumerate(outer)]
        inner = [(f"r{n}", size) for n, size in enumerate(nest.inner)]
        lane_bits = clog2(lanes + 1)
        words = prod(outer[-1:]) * prod(nest.inner)
        header = [f"module {self.name} (", ",\n".join(f"  {p}" for p in ports), ");"]
        header += [f"  reg [{clog2(size) - 1}:0] {c};" for c, size in (*counters, *inner)]
        header += [f"  reg [{clog2(size) - 1}:0] {c}_data;" for c, size in inner]
        header += [
            "  reg running, inner, term, first, is_first;",
            f"  reg [{lane_bits - 1}:0] lane, lane_data;",
            f"  reg [{clog2(words) - 1}:0] position;",
        ]
        has_terms = nest.update is not None
        reset = [f"{c} <= 0;" for c, _ in (*counters, *inner)]
        state = [f"  assign in{p}_address = param_{p}_address;" for p in reads]
        state += [
            "  assign out_write = running && !inner && lane != 0;",
            f"  wire inner_end = {_all_last(inner)};",
            f"  wire outer_end = {_all_last(counters)};",
            "  always @(posedge clk) begin",
            "    done <= 0;",
            "    term <= running && inner;",
            "    first <= is_first;",
            *(f"    {c}_data <= {c};" for c, _ in inner),
            "    lane_data <= lane;",
            "    if (rst) begin running <= 0; term <= 0; end",
            "    else if (start) begin",
            f"      running <= 1; inner <= {int(has_terms)}; is_first <= 1; lane <= 0; position <= 0;",
            f"      {' '.join(reset)}",
            "    end else if (running && inner) begin",
            "      is_first <= 0;",
            f"      position <= position == {words - 1} ? 0 : position + 1;",
            *_advance(inner, "      "),
            "      if (inner_end) inner <= 0;",
            "    end else if (running) begin",
            f"      if (lane != {lanes}) lane <= lane + 1;",
            "      else begin",
            f"        lane <= 0; inner <= {int(has_terms)}; is_first <= 1;",
            *_advance(counters, "        "),
            "        if (outer_end) begin running <= 0; done <= 1; end",
            "      end",
            "    end",
            "  end",
        ]
        return header, state


def _exact_range(fn: str, r: list[Range], dtype: str) -> Range | None:
    """The range before wrapping; None for operations that cannot leave their type."""
    return None if fn in ("and", "or", "xor", "not", "select", "min", "max", "clz") else exact(fn, r, dtype)


def _literal(value: int, bits: int) -> str:
    return f"-{bits + 1}'sd{-value}" if value < 0 else f"{bits}'sd{value}"


def _all_last(counters: Sequence[tuple[str, int]]) -> str:
    return " && ".join(f"{c} == {size - 1}" for c, size in counters) or "1'b1"


def _advance(counters: Sequence[tuple[str, int]], indent: str) -> list[str]:
    """Count, the last counter fastest."""
    lines: list[str] = []
    condition = ""
    for n, (c, size) in reversed([*enumerate(counters)]):
        lines.append(f"{indent}{condition}{c} <= {c} == {size - 1} ? 0 : {c} + 1;")
        condition = f"if ({_all_last(counters[n:])}) "
    return lines
