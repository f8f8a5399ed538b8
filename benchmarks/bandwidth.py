"""Bandwidth-bound work on arrays far larger than the caches: share of what the machine's memory gives.

python -m benchmarks.bandwidth [filter ...] [--threads 2] [--megabytes 128] [--peers] [--json FILE]

Reading, writing and copying at full speed are measured in the same run, by streaming kernels on the runtime's threads.
Every case runs as its compiled graph with operands and results in the runtime's memory, so that no time goes to fresh
pages; numpy and torch (`--peers`) write into arrays made before. Bytes are those of an algorithm that reads every
operand and writes every result once. The share is that of the least time that they can take: to read the operands at
the reading speed, to write the results at the writing speed, or to move everything at the best of the speeds, whichever
is longest, in the same round.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.machine import floats, host_machine
from benchmarks.measure import cpu_name
from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Kernel
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, bf16, dtype_of, f16, f32, f64, i8, i32
from ingot.ops import Gelu
from ingot.ops import build as op
from ingot.ops.nn.activation import Elu, HardSwish, LeakyRelu, Mish, Relu, Silu, Softplus
from ingot.ops.nn.image.resize import Resize
from ingot.ops.nn.index import Take
from ingot.ops.nn.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from ingot.ops.nn.selection import TopK
from ingot.ops.nn.softmax import LogSoftmax, LogSumExp, Softmax
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Buffer as Memory
from ingot.runtime.program import Program, Step, TensorSpec
from ingot.schedule.block import Block
from ingot.schedule.index import add, integer, mul
from ingot.targets.cpu.assemble import assemble
from ingot.targets.cpu.printer.llvm import print_module
from ingot.targets.cpu.workers import host_features

Call = Callable[[], object]
Peer = Callable[[Sequence[np.ndarray]], Call]
SLICE = 64 << 10  # elements of a chunk of the streaming kernels
COLS = 4096  # of most matrices


def read_kernel(lanes: int) -> Kernel:
    """Sums of slices: reads only."""
    x, y, chunk = Buffer("x", f32), Buffer("y", f32, writable=True), k.var("chunk")
    top, width = Block(), 8
    acc = top.alloc("acc", f32, width, lanes=lanes)
    top.loop("i", 0, width, 1, lambda b, i: b.store(acc, i, k.lit(0.0, f32, lanes)), unroll=True)
    start = top.let(mul(chunk, integer(SLICE)), "start")

    def turn(b: Block, at: k.Expr) -> None:
        def one(c: Block, i: k.Expr) -> None:
            here = add(start, add(at, mul(i, integer(lanes))))
            c.store(acc, i, k.add(k.load(acc, i), k.load(x, here, lanes)))

        b.loop("i", 0, width, 1, one, unroll=True)

    top.loop("t", 0, SLICE, width * lanes, turn)
    own = mul(chunk, integer(width * lanes))
    top.loop("i", 0, width, 1, lambda b, i: b.store(y, add(own, mul(i, integer(lanes))), k.load(acc, i)), unroll=True)
    return Kernel("read", (x, y), (k.var("n"),), chunk, k.var("n"), top.body)


def copy_kernel(lanes: int) -> Kernel:
    """Slices of x to y, past the caches."""
    x, y, chunk = Buffer("x", f32), Buffer("y", f32, writable=True), k.var("chunk")
    top = Block()
    start = top.let(mul(chunk, integer(SLICE)), "start")

    def turn(b: Block, at: k.Expr) -> None:
        def one(c: Block, i: k.Expr) -> None:
            here = add(start, add(at, mul(i, integer(lanes))))
            c.store(y, here, k.load(x, here, lanes), stream=True)

        b.loop("i", 0, 8, 1, one, unroll=True)

    top.loop("t", 0, SLICE, 8 * lanes, turn)
    return Kernel("copy", (x, y), (k.var("n"),), chunk, k.var("n"), top.body)


def write_kernel(lanes: int) -> Kernel:
    """Slices of y filled, past the caches."""
    x, y, chunk = Buffer("x", f32), Buffer("y", f32, writable=True), k.var("chunk")
    top = Block()
    start = top.let(mul(chunk, integer(SLICE)), "start")
    value = top.let(k.load(x, integer(0), lanes), "value")

    def turn(b: Block, at: k.Expr) -> None:
        def one(c: Block, i: k.Expr) -> None:
            c.store(y, add(start, add(at, mul(i, integer(lanes)))), value, stream=True)

        b.loop("i", 0, 8, 1, one, unroll=True)

    top.loop("t", 0, SLICE, 8 * lanes, turn)
    return Kernel("write", (x, y), (k.var("n"),), chunk, k.var("n"), top.body)


def stream_model(kernel: Kernel, nbytes: int, threads: int) -> Call:
    chunks = nbytes // 4 // SLICE
    made = Program(
        symbols=(),
        inputs=(TensorSpec("x", "f32", (chunks * SLICE,)),),
        outputs=(),
        buffers=(Memory(0, "input", 4 * chunks * SLICE), Memory(1, "arena", 4 * chunks * SLICE)),
        steps=(Step(kernel.name, ((0, 0), (1, 0)), (chunks,), chunks),),
        code={"cpu": assemble([print_module([kernel], host_features())])},
        weights=np.zeros(0, np.uint8),
    )
    model, x = CompiledModel(made, threads=threads), floats(chunks * SLICE)
    x[:] = 1
    return lambda: model(x)


@dataclass(frozen=True)
class Case:
    """A graph with its operands; `peers` make calls that do the same work, from the same arrays."""

    name: str
    graph: Graph
    xs: tuple[np.ndarray, ...]
    peers: dict[str, Peer]

    @property
    def read(self) -> int:
        """Bytes; constants are operands too."""
        weights = {n for n in self.graph.nodes() if n.op.name == "const"}
        return sum(x.nbytes for x in self.xs) + sum(static(n) for n in weights)

    @property
    def written(self) -> int:
        return sum(static(n) for n in self.graph.outputs)


def static(n: Node) -> int:
    nbytes = n.type.nbytes
    assert isinstance(nbytes, int)
    return nbytes


def compiled(case: Case, threads: int) -> Call:
    """The graph's program, its results in memory that stays."""
    program = build_program(case.graph, host_features(), threads)
    last = len(program.steps)
    buffers = tuple(
        replace(b, kind="arena", first_step=0, last_step=last) if b.kind == "output" else b for b in program.buffers
    )
    model = CompiledModel(replace(program, buffers=buffers, outputs=()), threads=threads)
    return lambda: model(*case.xs)


def filled(*shape: int, dtype: DType = f32) -> np.ndarray:
    """Values in [-2, 2] at a 64-byte boundary."""
    n = int(np.prod(shape))
    raw = floats(n)
    raw.reshape(-1)[:] = np.resize(np.linspace(-2, 2, 4093, dtype=np.float32), n)
    if dtype == f32:
        return raw.reshape(shape)
    out = floats(-(-n * dtype.nbytes // 4)).view(dtype.numpy)[:n].reshape(shape)
    out[:] = raw.reshape(shape)
    return out


def case(name: str, xs: Sequence[np.ndarray], make: Callable[..., Node], **peers: Peer) -> Case:
    ins = [Input(f"x{i}", TensorType(dtype_of(x), x.shape))() for i, x in enumerate(xs)]
    return Case(name, Graph(tuple(ins), (make(*ins),)), tuple(xs), peers)


def in_numpy(f: Callable[..., object], shape: Sequence[int] | None = None, dtype: str = "f4") -> Peer:
    """f(*xs, out=an array of `shape`, or that of the first operand)."""

    def start(xs: Sequence[np.ndarray]) -> Call:
        out = np.zeros(xs[0].shape if shape is None else shape, dtype)
        return lambda: f(*xs, out=out)

    return start


def in_torch(f: Callable[..., object], made: bool = False) -> Peer:
    """f(*tensors); `made`: with `out=`, where the result is large and its shape is the first operand's."""

    def start(xs: Sequence[np.ndarray]) -> Call:
        import torch

        ts = [torch.from_numpy(x) for x in xs]
        given = {"out": torch.zeros(ts[0].shape)} if made else {}
        return lambda: f(*ts, **given)

    return start


def layer_norm(cols: int) -> Callable[[Node], Node]:
    scale, bias = const(np.full(cols, 1.5, np.float32)), const(np.full(cols, 0.5, np.float32))
    return lambda x: LayerNorm((1,))(x, scale, bias)


def products(rows: int, depth: int, cols: int, nbytes: int) -> Case:
    """x @ w for as many weights as make up `nbytes`, each with an x of its own."""
    count = max(2, nbytes // (4 * depth * cols))
    weights = [filled(depth, cols) for _ in range(count)]
    xs = tuple(filled(rows, depth) for _ in range(count))
    ins = [Input(f"x{i}", TensorType(f32, x.shape))() for i, x in enumerate(xs)]
    product = ops.DotGeneral(((), ()), ((1,), (0,)))
    graph = Graph(tuple(ins), tuple(product(n, const(w)) for n, w in zip(ins, weights, strict=True)))

    def in_torch(xs: Sequence[np.ndarray]) -> Call:
        import torch

        pairs = [(torch.from_numpy(x), torch.from_numpy(w)) for x, w in zip(xs, weights, strict=True)]
        return lambda: [torch.mm(x, w) for x, w in pairs]

    return Case(f"{rows}x{depth}x{cols}", graph, xs, {"torch": in_torch})


PRODUCTS = [
    (1, 768, 768), (1, 768, 3072), (1, 3072, 768), (1, 4096, 4096), (1, 4096, 11008), (1, 768, 50257), (1, 960, 1280),
    (1, 960, 240), (1, 240, 960), (2, 768, 3072), (4, 768, 3072), (8, 768, 3072),
]  # fmt: skip


def cases(nbytes: int) -> Iterator[Case]:
    """Operands of about `nbytes` each."""
    for shape in PRODUCTS:
        yield products(*shape, nbytes)
    yield from streams(nbytes)
    yield from reductions(nbytes)
    yield from layers(nbytes)
    yield from narrow(nbytes)
    yield from functions(nbytes)
    yield from shapes(nbytes)


def streams(nbytes: int) -> Iterator[Case]:
    """Pointwise work, row groups and copies."""
    import torch

    cols = COLS
    rows = nbytes // 4 // cols
    x = filled(rows, cols)
    relu, gelu, softmax, norm = torch.relu, torch.nn.functional.gelu, torch.softmax, torch.nn.functional.layer_norm
    yield case("add", (x, filled(rows, cols)), op.add, numpy=in_numpy(np.add), torch=in_torch(torch.add, True))
    yield case("mul by row", (x,), lambda a: op.mul(a, const(np.ones(cols, np.float32))))
    yield case("relu", (x,), Relu(), torch=in_torch(relu))
    yield case("gelu", (x,), Gelu(), torch=in_torch(gelu))
    yield case("tanh", (x,), ops.Tanh(), numpy=in_numpy(np.tanh), torch=in_torch(torch.tanh, True))
    yield case("sigmoid", (x,), ops.Logistic(), torch=in_torch(torch.sigmoid, True))
    yield case("softmax 4096", (x,), Softmax(axis=1), torch=in_torch(lambda a, out: softmax(a, 1, out=out), True))
    yield case("softmax 128", (x.reshape(-1, 128),), Softmax(axis=1), torch=in_torch(lambda a: softmax(a, 1)))
    yield case("layer_norm 4096", (x,), layer_norm(cols), torch=in_torch(lambda a: norm(a, (cols,))))
    own = filled(nbytes // 3072, 768)
    yield case("layer_norm 768", (own,), layer_norm(768), torch=in_torch(lambda a: norm(a, (768,))))
    yield case(
        "sum last", (x,), lambda a: op.reduce_sum(a, 1),
        numpy=in_numpy(lambda a, out: np.sum(a, 1, out=out), (rows,)), torch=in_torch(lambda a: a.sum(1)),
    )  # fmt: skip
    yield case("max last 64", (x.reshape(-1, 64),), lambda a: op.reduce_max(a, 1), torch=in_torch(lambda a: a.amax(1)))
    own = filled(nbytes // 28, 7)
    yield case("sum last 7", (own,), lambda a: op.reduce_sum(a, 1), torch=in_torch(lambda a: a.sum(1)))
    yield case(
        "sum first", (x,), lambda a: op.reduce_sum(a, 0),
        numpy=in_numpy(lambda a, out: np.sum(a, 0, out=out), (cols,)), torch=in_torch(lambda a: a.sum(0)),
    )  # fmt: skip
    tall = x.reshape(-1, 64)
    yield case("max first 64", (tall,), lambda a: op.reduce_max(a, 0), torch=in_torch(lambda a: a.amax(0)))
    own = filled(nbytes // 4 // 49 // 512, 49, 512)
    yield case("mean middle 49x512", (own,), lambda a: op.mean(a, 1), torch=in_torch(lambda a: a.mean(1)))
    yield case("mean all", (x,), lambda a: op.mean(a, (0, 1)), torch=in_torch(lambda a: a.mean()))
    flat = x.reshape(-1)
    yield case(
        "max 1-D", (flat,), lambda a: op.reduce_max(a, 0),
        numpy=lambda xs: lambda: np.max(xs[0]), torch=in_torch(lambda a: a.amax()),
    )  # fmt: skip
    yield case("argmax last", (x,), lambda a: op.arg_reduce("max", a, 1), torch=in_torch(lambda a: a.argmax(1)))
    yield case(
        "transpose", (x,), lambda a: op.transpose(a, (1, 0)),
        numpy=in_numpy(lambda a, out: np.copyto(out, a.T), (cols, rows)), torch=in_torch(lambda a: a.t().contiguous()),
    )  # fmt: skip

    def permuted(name: str, a: np.ndarray, order: tuple[int, ...]) -> Case:
        torch_peer = in_torch(lambda t: t.permute(order).contiguous())
        return case(f"{name} {order}", (a,), lambda n: op.transpose(n, order), torch=torch_peer)

    yield permuted("NHWC to NCHW", x.reshape(-1, 32, 64, 256), (0, 3, 1, 2))
    yield permuted("NCHW to NHWC", filled(nbytes // 4 // 64 // 3136, 64, 56, 56), (0, 2, 3, 1))
    heads = x.reshape(-1, 256, 16, 64)
    yield permuted("heads", heads, (0, 2, 1, 3))
    yield permuted("heads turned", heads, (0, 2, 3, 1))
    parts = filled(rows, 1024), filled(rows, 3072)
    yield case("concat last", parts, lambda *a: op.concat(a, 1), torch=in_torch(lambda *a: torch.cat(a, 1)))
    parts = filled(rows // 2, cols), filled(rows // 2, cols)
    yield case("concat first", parts, lambda *a: op.concat(a, 0), torch=in_torch(lambda *a: torch.cat(a, 0)))
    yield case("f32 to bf16", (x,), lambda a: op.cast(a, bf16), torch=in_torch(lambda a: a.to(torch.bfloat16)))
    yield case("f32 to i32", (x,), lambda a: op.cast(a, i32), torch=in_torch(lambda a: a.to(torch.int32)))
    bytes_ = np.ones((rows * 2, cols), np.uint8)
    yield case("u8 to f32", (bytes_,), lambda a: op.cast(a, f32), torch=in_torch(lambda a: a.to(torch.float32)))


def reductions(nbytes: int) -> Iterator[Case]:
    """Kinds and axes of reductions beyond those of `streams`."""
    x = filled(nbytes // 4 // COLS, COLS)
    images = x.reshape(-1, 32, 1 << 12)
    tall, deep = x.reshape(-1, 64), x.reshape(-1, 16, 64)
    yield case("min last", (x,), lambda a: op.reduce_min(a, 1))
    yield case("prod last", (x,), lambda a: op.reduce_prod(a, 1))
    yield case("max first", (x,), lambda a: op.reduce_max(a, 0))
    yield case("max middle 32x4096", (images,), lambda a: op.reduce_max(a, 1))
    yield case("max middle 16x64", (deep,), lambda a: op.reduce_max(a, 1))
    yield case("sum ends", (images,), lambda a: op.reduce_sum(a, (0, 2)))
    yield case("sum last 1000", (filled(nbytes // 4000, 1000),), lambda a: op.reduce_sum(a, 1))
    yield case("any last", (np.zeros((x.size // COLS, 4 * COLS), bool),), lambda a: op.reduce("or", a, 1))
    yield case("all over x > 0", (x,), lambda a: op.reduce("and", op.compare("GT", a, 0.0), 1))
    yield case("argmax first", (x,), lambda a: op.arg_reduce("max", a, 0))
    yield case("argmax middle 32x4096", (images,), lambda a: op.arg_reduce("max", a, 1))
    yield case("argmax last 64", (tall,), lambda a: op.arg_reduce("max", a, 1))
    yield case("argmax last 10", (filled(nbytes // 40, 10),), lambda a: op.arg_reduce("max", a, 1))
    yield case("argmax 1-D", (x.reshape(-1),), lambda a: op.arg_reduce("max", a, 0))
    yield case("cumsum last", (x,), lambda a: op.cumulative("sum", a, 1))
    yield case("cumsum first", (x,), lambda a: op.cumulative("sum", a, 0))
    yield case("var last", (x,), lambda a: op.var(a, 1))
    yield case("var first", (x,), lambda a: op.var(a, 0))
    yield case("logsumexp last", (x,), LogSumExp((1,)))


def layers(nbytes: int) -> Iterator[Case]:
    """Norms, copies and lookups as networks have them."""
    rows = nbytes // 4 // COLS
    x = filled(rows, COLS)
    maps = filled(nbytes // 4 // 64 // 3136, 64, 56, 56)
    ones, halves = const(np.ones(64, np.float32)), const(np.full(64, 0.5, np.float32))
    yield case("log_softmax 4096", (x,), LogSoftmax(axis=1))
    yield case("softmax 50257", (filled(nbytes // 4 // 50257, 50257),), Softmax(axis=1))
    yield case("softmax first", (x,), Softmax(axis=0))
    yield case("softmax middle 32x4096", (x.reshape(-1, 32, COLS),), Softmax(axis=1))
    yield case("rms_norm 4096", (x,), lambda a: RMSNorm((1,))(a, const(np.ones(COLS, np.float32))))
    yield case("rms_norm 768", (filled(nbytes // 3072, 768),), lambda a: RMSNorm((1,))(a, const(np.ones(768, "f4"))))
    yield case("group_norm 32", (maps,), lambda a: GroupNorm(32)(a, ones, halves))
    yield case("instance_norm", (maps,), lambda a: InstanceNorm()(a, ones, halves))
    yield case("batch_norm", (maps,), lambda a: BatchNorm()(a, ones, halves, halves, ones))
    yield case("bias and relu, NHWC", (x.reshape(-1, 64),), lambda a: op.maximum(op.add(a, halves), 0.0))
    yield case("silu", (x,), Silu())
    yield case("where", (x, filled(rows, COLS)), lambda a, b: op.where(op.compare("GT", a, 0.0), a, b))
    yield case("clip", (x,), lambda a: op.clip(a, -1.0, 1.0))
    yield case("pad 1", (maps,), lambda a: op.pad(a, (0, 0, 1, 1), (0, 0, 1, 1)))
    yield case("slice by 2, last", (x,), lambda a: op.slice_axis(a, 1, step=2))
    yield case("slice by 2 of pixels", (x.reshape(-1, 64, 64),), lambda a: op.slice_axis(a, 1, 1, step=2))
    yield case("flip last", (x,), lambda a: op.flip(a, 1))
    yield case(
        "repeat pixels",
        (maps[: len(maps) // 4],),
        lambda a: Resize((112, 112), (2, 3), coordinates="asymmetric", nearest_mode="floor")(a),
    )
    yield case("pixel shuffle", (maps,), lambda a: shuffled(a, 2))
    order = np.random.default_rng(0).permutation(nbytes // 3072)
    yield case("embedding 768", (filled(nbytes // 3072, 768), order), Take(0))
    yield case("top 50 of 4096", (x[: rows // 8],), lambda a: TopK(50, 1)(a).results[0])


def shuffled(x: Node, r: int) -> Node:
    """[n, c r r, h, w] -> [n, c, h r, w r]."""
    n, c, h, w = x.shape
    parts = op.transpose(op.reshape(x, (n, c // (r * r), r, r, h, w)), (0, 1, 4, 2, 5, 3))
    return op.reshape(parts, (n, c // (r * r), h * r, w * r))


def narrow(nbytes: int) -> Iterator[Case]:
    """The same on elements of two bytes and one."""
    for dtype in (bf16, f16):
        x = filled(nbytes // 2 // COLS, COLS, dtype=dtype)
        name = f"{dtype} "
        yield case(name + "add", (x, x.copy()), op.add)
        yield case(name + "relu", (x,), Relu())
        yield case(name + "gelu", (x,), Gelu())
        yield case(name + "silu", (x,), Silu())
        yield case(name + "split and multiply", (x,), gated)
        yield case(name + "sum last", (x,), lambda a: op.reduce_sum(a, 1))
        yield case(name + "max last", (x,), lambda a: op.reduce_max(a, 1))
        yield case(name + "sum first", (x,), lambda a: op.reduce_sum(a, 0))
        yield case(name + "argmax last", (x,), lambda a: op.arg_reduce("max", a, 1))
        yield case(name + "softmax 4096", (x,), Softmax(axis=1))
        yield case(name + "layer_norm 4096", (x,), LayerNorm((1,)))
        yield case(name + "transpose", (x,), lambda a: op.transpose(a, (1, 0)))
        yield case(name + "to f32", (x,), lambda a: op.cast(a, f32))
    x = filled(nbytes // 4 // COLS, COLS)
    yield case("f32 to f16", (x,), lambda a: op.cast(a, f16))
    x = (np.arange(nbytes, dtype=np.uint32) % 251).astype(np.int8).reshape(-1, COLS)
    yield case("i8 add", (x, x.copy()), op.add)
    yield case("i8 max last", (x,), lambda a: op.reduce_max(a, 1))
    yield case("i8 argmax last", (x,), lambda a: op.arg_reduce("max", a, 1))
    yield case("i8 transpose", (x,), lambda a: op.transpose(a, (1, 0)))
    yield case("i8 to f32", (x[: len(x) // 2],), lambda a: op.cast(a, f32))
    whole = np.arange(nbytes // 8).reshape(-1, COLS)
    yield case("i64 to i32", (whole,), lambda a: op.cast(a, i32))
    yield case("i64 sum last", (whole,), lambda a: op.reduce_sum(a, 1))


def functions(nbytes: int) -> Iterator[Case]:
    """Elementary functions, activations and integers."""
    x = filled(nbytes // 4 // COLS, COLS)
    positive, other = np.abs(x) + np.float32(0.1), x.copy()
    for own in (ops.Exp(), ops.Erf(), ops.Sin(), ops.Sinh(), ops.Expm1()):
        yield case(own.name, (x,), own)
    for own in (ops.Log(), ops.Sqrt(), ops.Rsqrt(), ops.Log1p()):
        yield case(own.name, (positive,), own)
    for own in (HardSwish(), Mish(), LeakyRelu(), Softplus(), Elu(), Gelu("tanh")):
        yield case(str(own.name) + (" tanh" if isinstance(own, Gelu) else ""), (x,), own)
    yield case("div", (x, positive), op.div)
    yield case("pow", (positive, other), op.pow)
    yield case("pow 2", (x,), lambda a: op.pow(a, 2.0))
    yield case("pow 0.5", (positive,), lambda a: op.pow(a, 0.5))
    yield case("atan2", (x, positive), op.atan2)
    yield case("rem", (x, positive), op.rem)
    yield case("floor", (x,), ops.Floor())
    yield case("x > y", (x, other), lambda a, b: op.compare("GT", a, b))
    yield case("isnan", (x,), ops.IsNan())
    yield case("bool to f32", (np.resize(x > 0, (nbytes // 2 // COLS, COLS)),), lambda a: op.cast(a, f32))
    yield case("multiply-add", (x, positive, other), lambda a, b, c: op.add(op.mul(a, b), c))
    whole = np.arange(x.size, dtype=np.int32).reshape(x.shape)
    yield case("i32 add", (whole, whole.copy()), op.add)
    yield case("i32 mul", (whole, whole.copy()), op.mul)
    yield case("i32 div", (whole, np.maximum(whole % 97, 1)), op.div)
    yield case("i32 clamp", (whole,), lambda a: op.clip(a, 5, 1 << 20))
    yield case("i32 where", (whole, whole.copy()), lambda a, b: op.where(op.compare("GT", a, 7), a, b))
    yield case("i32 to f32", (whole,), lambda a: op.cast(a, f32))
    long = np.arange(nbytes // 8).reshape(-1, COLS)
    yield case("i64 add", (long, long.copy()), op.add)
    yield case("i64 to f32", (long,), lambda a: op.cast(a, f32))
    short = (np.arange(nbytes, dtype=np.uint32) % 251).astype(np.int8).reshape(-1, COLS)
    yield case("i8 relu", (short,), Relu())
    yield case("quantize", (x,), lambda a: op.cast(op.clip(ops.Floor()(op.mul(a, 31.0)), -128.0, 127.0), i8))
    double = filled(nbytes // 8 // COLS, COLS, dtype=f64)
    yield case("f64 add", (double, double.copy()), op.add)
    yield case("f64 exp", (double,), ops.Exp())
    yield case("f64 sum last", (double,), lambda a: op.reduce_sum(a, 1))


def shapes(nbytes: int) -> Iterator[Case]:
    """Odd sizes, other axes and broadcasts."""
    count = nbytes // 4
    x = filled(count // COLS, COLS)
    maps, images = filled(count // 64 // 3136, 64, 56, 56), x.reshape(-1, 32, 1 << 12)
    for cols in (4097, 1001, 17, 3):
        odd = filled(count // cols, cols)
        yield case(f"relu {cols}", (odd,), Relu())
        yield case(f"add a row of {cols}", (odd,), lambda a, n=cols: op.add(a, const(np.ones(n, np.float32))))
        yield case(f"sum last {cols}", (odd,), lambda a: op.reduce_sum(a, 1))
        yield case(f"sum first {cols}", (odd,), lambda a: op.reduce_sum(a, 0))
        yield case(f"softmax {cols}", (odd,), Softmax(axis=1))
        yield case(f"layer_norm {cols}", (odd,), LayerNorm((1,)))
        yield case(f"transpose {cols}", (odd,), lambda a: op.transpose(a, (1, 0)))
    for cols in (8, 10, 33, 49, 77, 197):
        odd = filled(count // cols, cols)
        yield case(f"softmax {cols}", (odd,), Softmax(axis=1))
        yield case(f"layer_norm {cols}", (odd,), LayerNorm((1,)))
    yield case("mean of pixels, NCHW", (maps,), lambda a: op.mean(a, (2, 3)))
    yield case("mean of channels, NCHW", (maps,), lambda a: op.mean(a, 1))
    yield case("L2 norm last", (x,), lambda a: ops.Sqrt()(op.reduce_sum(op.mul(a, a), 1)))
    yield case("normalized rows", (x,), lambda a: op.div(a, ops.Sqrt()(op.reduce_sum(op.mul(a, a), 1, keepdims=True))))
    yield case("min all", (x,), lambda a: op.reduce_min(a))
    yield case("min and max all", (x,), lambda a: op.add(op.reduce_max(a), op.reduce_min(a)))
    yield case("sum of squares, all", (x,), lambda a: op.reduce_sum(op.mul(a, a)))
    yield case("sum of products, all", (x, x.copy()), lambda a, b: op.reduce_sum(op.mul(a, b)))
    yield case("std last", (x,), lambda a: ops.Sqrt()(op.var(a, 1)))
    yield case("var all", (x,), lambda a: op.var(a))
    yield case("var of channels, NCHW", (maps,), lambda a: op.var(a, (0, 2, 3)))
    yield case("softmax 1-D", (x.reshape(-1),), Softmax(axis=0))
    yield case("standardized columns", (x,), standardized)
    yield case("logsumexp first", (x,), LogSumExp((0,)))
    yield case("softmax of pixels, NCHW", (maps,), Softmax(axis=1))
    yield case("layer_norm of pixels, NCHW", (maps,), channel_norm)
    yield case("any all", (np.zeros((nbytes // COLS, COLS), bool),), lambda a: op.reduce("or", a))
    yield case("sum first, i64", (np.arange(nbytes // 8).reshape(-1, COLS),), lambda a: op.reduce_sum(a, 0))
    yield case("mul by column", (x, filled(len(x), 1)), op.mul)
    yield case("mul by middle 32x4096", (images, filled(len(images), 1, 1 << 12)), op.mul)
    yield case("outer sum", (filled(count // COLS, 1), filled(1, COLS)), op.add)
    yield case("repeat rows", (x[: len(x) // 4],), lambda a: repeated(a, 4))
    yield case("slice of columns", (x,), lambda a: op.slice_axis(a, 1, 1, COLS - 1))
    yield case("slice of pixels, NCHW", (maps,), lambda a: op.slice_axis(op.slice_axis(a, 3, 4, 52), 2, 4, 52))
    yield case("stack last", (x[: len(x) // 2], x[len(x) // 2 :]), lambda a, b: op.stack((a, b), 2))
    yield case("split and multiply", (x,), gated)
    yield case("roll rows", (x,), lambda a: op.concat([op.slice_axis(a, 1, 1), op.slice_axis(a, 1, 0, 1)], 1))
    yield case("lower triangle", (x.reshape(-1, 512, 512),), triangle)
    yield case("fill", (), lambda: op.full((count // COLS, COLS), 3.0))
    yield case("iota", (), lambda: op.arange(count // 2))
    yield case("rotary embedding", (x.reshape(-1, 64, 64), filled(64, 32), filled(64, 32)), rotary)


def standardized(x: Node) -> Node:
    centered = op.sub(x, op.mean(x, 0, keepdims=True))
    return op.div(centered, ops.Sqrt()(op.add(op.var(x, 0, keepdims=True), 1e-5)))


def channel_norm(x: Node) -> Node:
    """A layer norm of the channels of each pixel of NCHW."""
    centered = op.sub(x, op.mean(x, 1, keepdims=True))
    return op.mul(centered, ops.Rsqrt()(op.add(op.var(x, 1, keepdims=True), 1e-5)))


def repeated(x: Node, times: int) -> Node:
    rows, cols = x.shape
    return op.reshape(op.broadcast_to(op.expand_dims(x, 1), (rows, times, cols)), (rows * times, cols))


def gated(x: Node) -> Node:
    """[..., 2 n] -> silu of the one half times the other."""
    half = x.shape[-1] // 2
    return op.mul(Silu()(op.slice_axis(x, -1, 0, half)), op.slice_axis(x, -1, half))


def triangle(x: Node) -> Node:
    rows, cols = op.arange(x.shape[-2]), op.arange(x.shape[-1])
    return op.where(op.compare("GE", op.expand_dims(rows, 1), cols), x, 0.0)


def rotary(x: Node, cos: Node, sin: Node) -> Node:
    half = x.shape[-1] // 2
    a, b = op.slice_axis(x, -1, 0, half), op.slice_axis(x, -1, half)
    turned = op.sub(op.mul(a, cos), op.mul(b, sin)), op.add(op.mul(b, cos), op.mul(a, sin))
    return op.concat(turned, -1)


def rounds(calls: Mapping[str, Call], seconds: float) -> dict[str, np.ndarray]:
    """Seconds of each call in each round; all run once per round, in turns, as the memory's speed moves."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < 5:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: np.array(own) for name, own in times.items()}


@dataclass(frozen=True)
class Result:
    """Median GB/s of the memory and of all engines, and Ingot's median share of the memory's speed in its round."""

    name: str
    share: float
    rates: dict[str, float]


def measure(one: Case, streams: Mapping[str, tuple[Call, int]], peers: bool, threads: int, seconds: float) -> Result:
    calls = {name: call for name, (call, _) in streams.items()} | {"ingot": compiled(one, threads)}
    if peers:
        calls |= {name: start(one.xs) for name, start in one.peers.items()}
    times = rounds(calls, seconds)
    moved = {name: streams[name][1] if name in streams else one.read + one.written for name in calls}
    rates = {name: moved[name] / own / 1e9 for name, own in times.items()}
    reading = one.read / rates["read"] / 1e9
    writing = one.written / rates["write"] / 1e9
    moving = (one.read + one.written) / np.max([rates[name] for name in streams], axis=0) / 1e9
    least = np.max([reading, writing, moving], axis=0)
    medians = {name: float(np.median(own)) for name, own in rates.items()}
    return Result(one.name, float(np.median(least / times["ingot"])), medians)


def main() -> None:
    parser = argparse.ArgumentParser(description="bandwidth-bound work against the machine's memory")
    parser.add_argument("filters", nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=128, help="of an operand")
    parser.add_argument("--seconds", type=float, default=0.3, help="per figure")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    nbytes = options.megabytes << 20
    lanes = host_machine().lanes(f32)
    kernels = {
        "read": (read_kernel(lanes), nbytes), "write": (write_kernel(lanes), nbytes),
        "copy": (copy_kernel(lanes), 2 * nbytes),
    }  # fmt: skip
    memory = {name: (stream_model(kernel, nbytes, options.threads), n) for name, (kernel, n) in kernels.items()}
    print(f"{cpu_name()}, {options.threads} threads, operands of {options.megabytes} MB; GB/s:")
    results: list[Result] = []
    for one in cases(nbytes):
        if options.filters and not any(f in one.name for f in options.filters):
            continue
        r = measure(one, memory, options.peers, options.threads, options.seconds)
        results.append(r)
        print(f"{r.name:28} {r.share:5.0%}  ", "  ".join(f"{n} {v:5.1f}" for n, v in r.rates.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"cpu": cpu_name(), "results": [asdict(r) for r in results]}, indent=1))


if __name__ == "__main__":
    main()
