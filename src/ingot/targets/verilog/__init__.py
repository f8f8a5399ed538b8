"""Circuits: kernels of one loop nest as synthesizable Verilog."""
