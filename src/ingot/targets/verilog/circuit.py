"""A network as a Verilog module: memories of activations, the modules of its nests in sequence, and streams.

in_data, one element a cycle -> [memory] -> nest 0 -> [memory] -> nest 1 -> ... -> out_data, one element a cycle
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ingot.support.dataclass import dataclass
from ingot.targets.verilog.module import Module, clog2, print_module
from ingot.targets.verilog.nest import Nest, merged
from ingot.targets.verilog.ranges import Range, width


@dataclass
class Memory:
    """The memory of one buffer of activations. count: its elements. fill: their initial value. range: the range of the
    values that are written. itemsize: the bytes of an element in the program."""

    count: int
    fill: int
    range: Range
    itemsize: int


@dataclass(frozen=True)
class Launch:
    """A step. params: for each (memory, offset in elements), or constants; the nest writes to the last one."""

    nest: Nest
    params: Sequence[tuple[int, int] | NDArray[np.int64]]


@dataclass(frozen=True)
class Circuit:
    """files: the texts by file name. cycles: from the first element of the input to the last one of the output."""

    files: Mapping[str, str]
    cycles: int


def print_circuit(
    name: str, memories: Sequence[Memory], launches: Sequence[Launch], source: tuple[int, int], result: tuple[int, int],
    lanes: int,
) -> Circuit:  # fmt: skip
    """Print a network. source, result: the memory and the number of elements of its input and its output."""
    name = re.sub(r"\W", "_", name, flags=re.ASCII)
    name = name if name[:1].isalpha() else f"net_{name}"
    files: dict[str, str] = {}
    modules: list[Module] = []
    for number, launch in enumerate(launches):
        constants = {i: p for i, p in enumerate(launch.params) if isinstance(p, np.ndarray)}
        memory_ranges = {i: memories[p[0]].range for i, p in enumerate(launch.params) if not isinstance(p, np.ndarray)}
        places = {i: p for i, p in enumerate(launch.params) if not isinstance(p, np.ndarray)}
        places.pop(launch.nest.store[0])
        module = print_module(f"{name}_{number}", merged(launch.nest, places), constants, memory_ranges, lanes)
        modules.append(module)
        files |= {f"{name}_{number}_{label.removesuffix('_rom')}.hex": text for label, text in module.memories.items()}
        target = launch.params[launch.nest.store[0]]
        assert not isinstance(target, np.ndarray)
        memory = memories[target[0]]
        memory.range = min(memory.range[0], module.stored_range[0]), max(memory.range[1], module.stored_range[1])
    text = _top(name, memories, launches, modules, source, result)
    files[f"{name}.v"] = "\n".join([_HEAD, text, *(m.text for m in modules)])
    cycles = source[1] + sum(m.cycles + 1 for m in modules) + result[1] + 1
    in_bits, out_bits = (width(memories[m].range) for m, _ in (source, result))
    values = {"name": name, "in_bits": in_bits - 1, "out_bits": out_bits - 1, "inputs": source[1], "outputs": result[1]}
    files[f"{name}_tb.v"] = _TESTBENCH.format(**values)
    return Circuit(files, cycles)


_HEAD = """\
// Made by Ingot. Synthesizable Verilog 2001: one clock, synchronous reset, memories with registered reads.
/* verilator lint_off WIDTH */
"""


def _top(
    name: str, memories: Sequence[Memory], launches: Sequence[Launch], modules: Sequence[Module],
    source: tuple[int, int], result: tuple[int, int],
) -> str:  # fmt: skip
    steps = len(launches)
    state_bits = clog2(steps + 3)
    bits = [width(m.range) for m in memories]
    lines = [
        f"module {name} (",
        "  input clk, input rst,",
        f"  input in_valid, output in_ready, input signed [{bits[source[0]] - 1}:0] in_data,",
        f"  output reg out_valid, output signed [{bits[result[0]] - 1}:0] out_data",
        ");",
        f"  reg [{state_bits - 1}:0] state; // 0: input; 1 to {steps}: nests; {steps + 1}: output",
        "  reg started;",
        "  reg [31:0] index;",
        f"  wire [{steps}:0] done;",
        "  assign done[0] = 1'b0;",
        "  assign in_ready = state == 0 && !rst;",
        f"  assign out_data = ram_{result[0]}_data;",
    ]
    reads: dict[int, list[str]] = {m: [] for m in range(len(memories))}
    writes: dict[int, list[str]] = {m: [] for m in range(len(memories))}
    for number, (launch, module) in enumerate(zip(launches, modules, strict=True)):
        ports = [f".clk(clk), .rst(rst), .start(started && state == {number + 1}), .done(done[{number + 1}])"]
        for param in module.reads:
            memory, offset = _place(launch, param)
            lines.append(f"  wire signed [31:0] n{number}_in{param};")
            ports.append(f".in{param}_address(n{number}_in{param}), .in{param}_data(ram_{memory}_data)")
            reads[memory].append(f"state == {number + 1} ? n{number}_in{param} + {offset} : ")
        memory, offset = _place(launch, launch.nest.store[0])
        out_bits = width(module.stored_range)
        lines += [
            f"  wire n{number}_write; wire signed [31:0] n{number}_at; wire signed [{out_bits - 1}:0] n{number}_out;",
        ]
        ports.append(f".out_write(n{number}_write), .out_address(n{number}_at), .out_data(n{number}_out)")
        writes[memory].append(f"if (n{number}_write) ram_{memory}[n{number}_at + {offset}] <= n{number}_out;")
        lines.append(f"  {name}_{number} nest_{number} ({', '.join(ports)});")
    writes[source[0]].insert(0, f"if (in_valid && in_ready) ram_{source[0]}[index] <= in_data;")
    reads[result[0]].append(f"state == {steps + 1} ? index : ")
    lines.append("  integer i;")
    for m, memory in enumerate(memories):
        lines += [
            f"  reg signed [{bits[m] - 1}:0] ram_{m} [0:{max(1, memory.count) - 1}];",
            f"  initial for (i = 0; i < {memory.count}; i = i + 1) ram_{m}[i] = {memory.fill};",
            f"  reg signed [{bits[m] - 1}:0] ram_{m}_data;",
            f"  wire signed [31:0] ram_{m}_address = {''.join(reads[m])}0;",
            "  always @(posedge clk) begin",
            f"    ram_{m}_data <= ram_{m}[ram_{m}_address];",
            *(f"    {w}" for w in writes[m]),
            "  end",
        ]
    lines += [
        "  always @(posedge clk) begin",
        "    started <= 0;",
        f"    out_valid <= state == {steps + 1};",
        "    if (rst) begin state <= 0; index <= 0; out_valid <= 0; end",
        "    else if (state == 0) begin",
        f"      if (in_valid) index <= index == {source[1] - 1} ? 0 : index + 1;",
        f"      if (in_valid && index == {source[1] - 1}) begin state <= 1; started <= 1; end",
        f"    end else if (state == {steps + 1}) begin",
        f"      index <= index == {result[1] - 1} ? 0 : index + 1;",
        f"      if (index == {result[1] - 1}) state <= 0;",
        "    end else if (|done) begin state <= state + 1; started <= 1; end",
        "  end",
        "endmodule",
        "",
    ]
    return "\n".join(lines)


def _place(launch: Launch, param: int) -> tuple[int, int]:
    place = launch.params[param]
    assert not isinstance(place, np.ndarray)
    return place


_TESTBENCH = """\
// Made by Ingot. Reads elements from input.txt, writes those of the results to output.txt, prints the cycles of a run.
`timescale 1ns / 1ps
module {name}_tb;
  reg clk = 0, rst = 1, in_valid = 0;
  wire in_ready, out_valid;
  reg signed [{in_bits}:0] in_data;
  wire signed [{out_bits}:0] out_data;
  integer source, result, value, n, cycle = 0, begun;
  {name} dut (.clk(clk), .rst(rst), .in_valid(in_valid), .in_ready(in_ready), .in_data(in_data),
              .out_valid(out_valid), .out_data(out_data));
  always #1 clk = !clk;
  always @(posedge clk) cycle <= cycle + 1;
  initial begin
    source = $fopen("input.txt", "r");
    result = $fopen("output.txt", "w");
    repeat (3) @(negedge clk);
    rst = 0;
    n = $fscanf(source, "%d", value);
    while (n == 1) begin
      while (!in_ready) @(negedge clk);
      begun = cycle;
      repeat ({inputs}) begin
        in_valid = 1;
        in_data = value[{in_bits}:0];
        @(negedge clk);
        n = $fscanf(source, "%d", value);
      end
      in_valid = 0;
      repeat ({outputs}) begin
        while (!out_valid) @(negedge clk);
        $fdisplay(result, "%0d", out_data);
        @(negedge clk);
      end
      $display("cycles %0d", cycle - begun);
    end
    $fclose(result);
    $finish;
  end
endmodule
"""
