"""The HIP target: AMD's GPUs, by the kernels of `cuda` and the compiler that Triton's wheel carries for them.

No kernel of it has run on a GPU yet: code is compiled, and kernels are tested by their meaning.
"""

from __future__ import annotations

from ingot.ops import Recurrent
from ingot.pipeline.cuda import KEPT_OPS, GpuTarget
from ingot.schedule.gpu.machine import AMD_MACHINES

DEFAULT_ARCH = "gfx942"

# recurrent layers are loops: their persistent kernel counts on what NVIDIA's memory model says of programs that meet.
# functions are the CPU's polynomials, whose errors are known; those of AMD's library were not measured
TARGET = GpuTarget(
    "hip", AMD_MACHINES, DEFAULT_ARCH, frozenset(op for op in KEPT_OPS if not issubclass(op, Recurrent)), frozenset()
)
