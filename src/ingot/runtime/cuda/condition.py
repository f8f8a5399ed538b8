"""The kernel that sets the flag of a conditional node of a CUDA graph, as PTX, which the driver compiles.

cudaGraphSetConditional is a function that the driver provides to kernels; see "Dynamic Control Flow in CUDA Graphs" in
the CUDA C++ Programming Guide.
"""

from __future__ import annotations

from ingot.support.cubins import KernelCode

# the flag comes first, as buffers do; the two additional parameters of Triton's kernels are not read
_PTX = b"""
.version 8.3
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
.visible .entry tell(.param .u64 flag, .param .u64 handle) {
  .reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .b16 %h<2>; .reg .pred %p;
  ld.param.u64 %rd1, [flag];
  ld.param.u64 %rd2, [handle];
  cvta.to.global.u64 %rd3, %rd1;
  ld.global.u8 %h1, [%rd3];
  setp.ne.s16 %p, %h1, 0;
  selp.u32 %r1, 1, 0, %p;
  { .param .b64 a; .param .b32 b;
    st.param.b64 [a], %rd2; st.param.b32 [b], %r1;
    call.uni cudaGraphSetConditional, (a, b); }
  ret;
}
\0"""
TELL = KernelCode("tell", _PTX, threads=1, shared_bytes=0, parameters=2, writes=())

__all__ = ["TELL"]
