"""On a machine with an NVIDIA GPU: can loops whose ends only the run knows be conditional nodes of a CUDA graph?

    python -m benchmarks.gpu.conditional

A tiny PTX kernel calls cudaGraphSetConditional, which the driver's own compiler knows, so that no toolkit is needed.
    set(handle)  ->  WHILE { turn, set(handle) }
is replayed for several counts; the time of a turn is what the host's reading of a flag would be compared with. At last:
may kernels in the body get other parameters, as results that move need?
"""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

PTX = b"""
.version 8.3
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
.visible .entry go_on(.param .u64 handle, .param .u64 flag) {
  .reg .b64 %rd<4>; .reg .b32 %r<3>; .reg .b16 %h<2>; .reg .pred %p;
  ld.param.u64 %rd1, [handle];
  ld.param.u64 %rd2, [flag];
  cvta.to.global.u64 %rd3, %rd2;
  ld.global.u8 %h1, [%rd3];
  setp.ne.s16 %p, %h1, 0;
  selp.u32 %r1, 1, 0, %p;
  { .param .b64 a; .param .b32 b;
    st.param.b64 [a], %rd1; st.param.b32 [b], %r1;
    call.uni cudaGraphSetConditional, (a, b); }
  ret;
}
.visible .entry turn(.param .u64 count, .param .u64 flag) {
  .reg .b64 %rd<5>; .reg .b32 %r<4>; .reg .b16 %h<2>; .reg .pred %p;
  ld.param.u64 %rd1, [count]; ld.param.u64 %rd2, [flag];
  cvta.to.global.u64 %rd3, %rd1; cvta.to.global.u64 %rd4, %rd2;
  ld.global.u32 %r1, [%rd3];
  sub.s32 %r2, %r1, 1;
  st.global.u32 [%rd3], %r2;
  setp.gt.s32 %p, %r2, 0;
  selp.u32 %r3, 1, 0, %p;
  st.global.u8 [%rd4], %r3;
  ret;
}
\0"""
cu = ctypes.CDLL("libcuda.so.1")


def call(name: str, *args: object, must: bool = True) -> int:
    status = getattr(cu, name)(*args)
    if status:
        text = ctypes.c_char_p()
        cu.cuGetErrorString(c_int(status), byref(text))
        line = f"{name}: {status} {(text.value or b'').decode()}"
        if must:
            raise SystemExit(line)
        print(line)
    return status


class Kernel(ctypes.Structure):
    _fields_ = [
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("params", c_void_p),
        ("extra", c_void_p),
        ("kern", c_void_p),
        ("ctx", c_void_p),
    ]


class Conditional(ctypes.Structure):  # CUDA_CONDITIONAL_NODE_PARAMS
    _fields_ = [
        ("handle", c_ulonglong),
        ("type", c_int),
        ("size", c_uint),
        ("body", ctypes.POINTER(c_void_p)),
        ("ctx", c_void_p),
    ]


class Union(ctypes.Union):
    _fields_ = [("conditional", Conditional), ("reserved", ctypes.c_longlong * 29)]


class NodeParams(ctypes.Structure):  # CUgraphNodeParams
    _fields_ = [("type", c_int), ("reserved0", c_int * 3), ("of", Union), ("reserved2", ctypes.c_longlong)]


call("cuInit", c_uint(0))
version = c_int()
call("cuDriverGetVersion", byref(version))
print("driver", version.value)
context, device = c_void_p(), c_int()
call("cuDeviceGet", byref(device), c_int(0))
call("cuDevicePrimaryCtxRetain", byref(context), device)
call("cuCtxSetCurrent", context)
module = c_void_p()
begin = time.perf_counter()
call("cuModuleLoadData", byref(module), ctypes.c_char_p(PTX))
print(f"the PTX loads, {1e3 * (time.perf_counter() - begin):.1f} ms")
functions: dict[bytes, c_void_p] = {}
for name in (b"go_on", b"turn"):
    functions[name] = c_void_p()
    call("cuModuleGetFunction", byref(functions[name]), module, name)
memory = c_void_p()
call("cuMemAlloc_v2", byref(memory), c_size_t(256))
count = memory.value or 0
flag = count + 64
kept: list[object] = []


def kernel(name: bytes, *values: int) -> Kernel:
    slots = (c_ulonglong * len(values))(*values)
    pointers = (c_void_p * len(values))(*(ctypes.addressof(slots) + 8 * i for i in range(len(values))))
    kept.extend((slots, pointers))
    one = (c_uint * 3)(1, 1, 1)
    return Kernel(functions[name], one, one, 0, ctypes.addressof(pointers), None, None, None)


def add_kernel(graph: c_void_p, before: list[c_void_p], params: Kernel) -> c_void_p:
    node = c_void_p()
    nodes = (c_void_p * len(before))(*before)
    call("cuGraphAddKernelNode_v2", byref(node), graph, nodes if before else None, c_size_t(len(before)), byref(params))
    return node


graph = c_void_p()
call("cuGraphCreate", byref(graph), c_uint(0))
handle = c_ulonglong()
call("cuGraphConditionalHandleCreate", byref(handle), graph, context, c_uint(0), c_uint(0))
first = add_kernel(graph, [], kernel(b"go_on", handle.value, flag))
params = NodeParams()
params.type = 13  # CU_GRAPH_NODE_TYPE_CONDITIONAL
params.of.conditional.handle, params.of.conditional.type, params.of.conditional.size = handle.value, 1, 1  # WHILE
params.of.conditional.ctx = context
node, before = c_void_p(), (c_void_p * 1)(first)
if hasattr(cu, "cuGraphAddNode_v2"):
    call("cuGraphAddNode_v2", byref(node), graph, before, None, c_size_t(1), byref(params))
else:
    call("cuGraphAddNode", byref(node), graph, before, c_size_t(1), byref(params))
body = c_void_p(params.of.conditional.body[0])
turn = add_kernel(body, [], kernel(b"turn", count, flag))
last = add_kernel(body, [turn], kernel(b"go_on", handle.value, flag))
executable, stream = c_void_p(), c_void_p()
call("cuGraphInstantiateWithFlags", byref(executable), graph, c_ulonglong(0))
call("cuStreamCreate", byref(stream), c_uint(1))


def run(turns: int) -> tuple[int, float]:
    start = (ctypes.c_uint32 * 17)(turns)
    ctypes.memset(ctypes.addressof(start) + 64, int(turns > 0), 1)
    call("cuMemcpyHtoD_v2", memory, start, c_size_t(68))
    begin = time.perf_counter()
    call("cuGraphLaunch", executable, stream)
    call("cuStreamSynchronize", stream)
    taken = time.perf_counter() - begin
    found = ctypes.c_int32()
    call("cuMemcpyDtoH_v2", byref(found), memory, c_size_t(4))
    return found.value, 1e6 * taken


for turns in (0, 1, 5, 100, 1000, 100, 0):
    left, taken = run(turns)
    print(f"{turns:5} turns: {left} left (0 expected), {taken:8.1f} us, {taken / max(turns, 1):6.2f} us a turn")
other = kernel(b"turn", count, flag)
status = call("cuGraphExecKernelNodeSetParams_v2", executable, turn, byref(other), must=False)
print("parameters of a node in the body may be set afterwards:", "yes" if status == 0 else "no")
