"""On a machine with two NVIDIA GPUs: programs over both of them, right and how fast, beside one GPU and PyTorch.

    python -m benchmarks.gpu.two_gpus [--parts exchange,tensor,data,errors] [--seconds 95] [--report FILE]
    python -m benchmarks.gpu.two_gpus --gpus 1                        on one GPU: sums over a group of one

Each part is a group of two processes with a share of the seconds, after which it is ended; what it has found by then is
told. exchange: sums of several sizes as programs. tensor: Llama (1.2 billion, bfloat16) split over both GPUs, beside
itself on one GPU and beside PyTorch with NCCL in a CUDA graph. data: steps of training with a fixed batch for each GPU,
beside a step on one GPU and DistributedDataParallel. ddp: DistributedDataParallel of a network that
`torch.compile(backend="ingot")` compiled, beside one GPU. memory: the split Llama within bounds of each GPU's memory.
errors: what a rank that ends does to the other, and ranks with different programs.

A line is a JSON object, written as soon as it is known. `--target native` is a rehearsal on CPUs, in small sizes.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# NVLink multicast stays off: a program that uses it can put GPUs that others share out of service
MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
# as Ingot sets them: here PyTorch loads NCCL first
NCCL = {"NCCL_RUNTIME_CONNECT": "0", "NCCL_GRAPH_REGISTER": "0"}
# shares of the seconds, if all run
PARTS = {"exchange": 0.15, "tensor": 0.45, "data": 0.35, "ddp": 0.35, "memory": 0.25, "errors": 0.15}
RANKS = 2
CASES = {"8x512": (8, 512, 0), "token": (1, 1, 513), "512": (1, 512, 0)}  # batch, tokens, places of the caches
MARKS: dict[str, tuple[str, int]] = {
    **{f"*.{name}.weight": ("tp", 0) for name in ("q", "k", "v", "gate", "up")},
    **{f"*.{name}.weight": ("tp", 1) for name in ("out", "down")},
    "words.weight": ("tp", 0),
}
Call = Callable[[], Any]


def tell(file: str, **facts: object) -> None:
    line = json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in facts.items()})
    print(line, flush=True)
    if file:
        with Path(file).open("a") as out:
            out.write(line + "\n")


class Rank:
    """What a process of a group needs. first: whether it tells."""

    def __init__(self, asked: argparse.Namespace, seconds: float) -> None:
        import torch

        from ingot.runtime.ranks.current import current

        os.environ.update(MULTICAST | NCCL)
        faulthandler.dump_traceback_later(max(seconds - 3, 1), exit=False)
        self.asked, self.torch, self.group = asked, torch, current()
        self.first, self.gpu = self.group.rank == 0, asked.target.startswith("cuda")
        self.began = time.perf_counter()

    def tell(self, **facts: object) -> None:
        if self.first:
            tell(self.asked.report, **facts, at_s=round(time.perf_counter() - self.began, 1))

    def meet(self) -> None:
        self.synchronize()
        self.group.gather(b".")

    def synchronize(self) -> None:
        if self.gpu:
            self.torch.cuda.synchronize()

    def there(self, x: Any) -> Any:
        return x.cuda() if self.gpu else x

    def time(self, call: Call, *, alone: bool = False) -> float:
        """Median milliseconds of a call and a synchronization, as often on each rank. alone: on the first rank only."""
        self.meet()
        times: list[float] = []
        for number in range(0 if alone and not self.first else self.asked.rounds + 3):
            self.synchronize()
            begin = time.perf_counter()
            call()
            self.synchronize()
            if number >= 3:
                times.append(1e3 * (time.perf_counter() - begin))
        self.meet()
        return statistics.median(times) if times else 0.0

    def tried(self, what: str, act: Callable[[], dict[str, object]]) -> None:
        """A line of what was found, or of why not."""
        try:
            self.tell(what=what, **act())
        except Exception as error:
            tell(self.asked.report, what=what, rank=self.group.rank, error=f"{type(error).__name__}: {error}"[:1500])
            raise

    def torch_group(self) -> Any:
        """torch.distributed, through a file beside the group's own."""
        import torch.distributed as dist

        if not dist.is_initialized():
            file = Path(os.environ["INGOT_CONTROL"]).with_name("torch")
            backend = "nccl" if self.gpu else "gloo"
            dist.init_process_group(
                backend, init_method=f"file://{file}", rank=self.group.rank, world_size=self.group.size
            )
        return dist


def deviation(got: Any, want: Any) -> float:
    return ((got.float() - want.float()).abs().max() / want.float().abs().max()).item()


# --- exchange


def exchange(asked: argparse.Namespace, seconds: float) -> None:
    """y = 2 (the sum of x over the ranks), of several sizes and types, beside PyTorch's sum alone."""
    rank = Rank(asked, seconds)
    torch = rank.torch
    from ingot import ops
    from ingot.driver.compile import Options, build_graph
    from ingot.ir.node import Graph, Input
    from ingot.ir.types import TensorType, bf16, f32
    from ingot.runtime.executor import CompiledModel

    dist, everyone = rank.torch_group(), tuple(range(rank.group.size))
    want = 2 * sum(1 + r for r in everyone)
    for dtype, own, counts in ((bf16, torch.bfloat16, (2048, 1 << 20, 1 << 24)), (f32, torch.float32, (1 << 20,))):
        for count in counts if rank.gpu else counts[:1]:

            def act(dtype: Any = dtype, own: Any = own, count: int = count) -> dict[str, object]:
                x = Input("x", TensorType(dtype, (count,)))()
                y = ops.mul(ops.AllReduce((everyone,))(ops.mul(x, 1.0)), 2.0)
                options = Options(asked.target, 1, cache=False)
                program = build_graph(lambda: Graph((x,), (y,)), options)
                model = CompiledModel(program, threads=1)
                value = rank.there(torch.full((count,), 1.0 + rank.group.rank, dtype=own))
                values = [model(value) for _ in range(4)]
                right = all(bool((v == want).all()) for v in values)
                ms = rank.time(lambda: model(value))
                ms_torch = rank.time(lambda: dist.all_reduce(value.clone()))
                return {"dtype": dtype.name, "mb": count * own.itemsize / 1e6, "right": right, "ms": ms,
                        "torch_ms": ms_torch}  # fmt: skip

            rank.tried("exchange", act)


# --- tensor


def halves(torch: Any, dist: Any, net: Any, rank: int) -> Any:
    """The network with this rank's half of its weights, and sums where Megatron has them."""
    import torch.nn.functional as F

    def part(x: Any, axis: int) -> Any:
        return torch.nn.Parameter(x.detach().chunk(RANKS, axis)[rank].contiguous())

    def sum_of(_module: Any, _inputs: Any, output: Any) -> Any:
        dist.all_reduce(output)
        return output

    for layer in net.layers:
        for name in ("q", "k", "v", "gate", "up"):
            getattr(layer, name).weight = part(getattr(layer, name).weight, 0)
        for name in ("out", "down"):
            getattr(layer, name).weight = part(getattr(layer, name).weight, 1)
            getattr(layer, name).register_forward_hook(sum_of)
        if layer.places:
            for name in ("keys", "values"):
                setattr(layer, name, getattr(layer, name).chunk(RANKS, 1)[rank].contiguous())
    head = part(net.words.weight, 0)

    def forward(ids: Any, at: Any) -> Any:
        x = F.embedding(ids, net.words.weight)
        for layer in net.layers:
            x = layer(x, at)
        own = net.norm(x[:, -1:]) @ head.T
        parts = [torch.empty_like(own) for _ in range(RANKS)]
        dist.all_gather(parts, own)
        return torch.cat(parts, -1)

    return forward


def graphed(rank: Rank, call: Call) -> Call:
    """A replay of the call's CUDA graph."""
    torch = rank.torch
    if not rank.gpu:
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def tensor(asked: argparse.Namespace, seconds: float) -> None:
    rank = Rank(asked, seconds)
    for name in asked.cases.split(","):
        rank.tried(f"tensor {name}", lambda name=name: tensor_case(rank, name))


def tensor_case(rank: Rank, name: str) -> dict[str, object]:
    import ingot
    from benchmarks.gpu import llama

    torch, asked = rank.torch, rank.asked
    batch, tokens, places = CASES[name]
    if not rank.gpu:
        llama.WIDTH, llama.HEADS, llama.SHARED, llama.HIDDEN, llama.WORDS = 64, 4, 2, 96, 300
        llama.HEAD, tokens, places = 16, min(tokens, 16), min(places, 17)
    torch.manual_seed(0)
    net, (ids, at) = llama.llama(tokens, places, asked.layers)
    ids = torch.randint(0, llama.WORDS, (batch, tokens))
    options: dict[str, Any] = {"target": asked.target, "cache": False, "threads": 1}
    begin = time.perf_counter()
    split = ingot.compile(net, (ids, at), mesh={"tp": RANKS}, shard=MARKS, **options)
    compile_s = time.perf_counter() - begin
    own = rank.there(ids), rank.there(at)
    with torch.no_grad():
        got = split(*own)
        kinds = [step.kernel for step in split.program.steps if step.collective is not None]
        found: dict[str, object] = {
            "layers": asked.layers, "compile_s": compile_s, "collectives": {k: kinds.count(k) for k in {*kinds}},
        }  # fmt: skip
        found["ms"] = rank.time(lambda: split(*own))
        times = split.profile(*own)
        taken = [sum(t for label, t in times if "devices" in label), sum(t for _, t in times)]
        found |= {"profiled_ms": 1e3 * taken[1], "in_collectives": taken[0] / taken[1]}
        rank.tell(what=f"tensor {name}, so far", **found)
        one = ingot.compile(net, (ids, at), **options) if rank.first else None
        if one is not None:
            found["deviation_from_one_gpu"] = deviation(got, one(*own))
        found["one_gpu_ms"] = rank.time(lambda: one(*own) if one is not None else None, alone=True)
        found["over_one_gpu"] = float(str(found["one_gpu_ms"])) / float(str(found["ms"]))
        rank.tell(what=f"tensor {name}, so far", **found)
        net = net.cuda() if rank.gpu else net
        if rank.first:
            found["deviation_from_eager"] = deviation(got, net(*own))
        found["torch_one_gpu_ms"] = rank.time(graphed(rank, lambda: net(*own)), alone=True)
        forward = halves(torch, rank.torch_group(), net, rank.group.rank)
        found["torch_deviation"] = deviation(forward(*own), got)
        found["torch_ms"] = rank.time(graphed(rank, lambda: forward(*own)))
    return {k: v for k, v in found.items() if v is not None}


# --- data


def loss_of(out: Any, y: Any) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(out.float().flatten(0, -2), y.flatten())


def gpt(torch: Any, words: int, length: int, layers: int, width: int, heads: int) -> Any:
    """GPT-2 (Radford et al., 2019) without dropout, and with an output layer of its own."""
    nn, F = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, places, _ = x.shape
            q, k, v = self.qkv(self.before(x)).view(batch, places, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(batch, places, width))
            return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.words(ids) + self.places
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    return Gpt()


def networks(torch: Any, small: bool) -> dict[str, Callable[[int], tuple[Any, Any, Any]]]:
    """For a number of samples: the network, a batch and targets."""

    def mlp(batch: int) -> tuple[Any, Any, Any]:
        net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
        return net, torch.randn(batch, 64), torch.randint(0, 10, (batch,))

    def resnet50(batch: int) -> tuple[Any, Any, Any]:
        import torchvision

        return torchvision.models.resnet50(), torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))

    def gpt2(batch: int) -> tuple[Any, Any, Any]:
        words, length = (100, 16) if small else (50257, 512)
        net = gpt(torch, words, length, *((1, 32, 2) if small else (12, 768, 12)))
        ids = torch.randint(0, words, (batch, length))
        return net, ids, ids.roll(-1, 1)

    return {"mlp": mlp, "gpt2": gpt2, "resnet50": resnet50}


BATCH = {"mlp": 8, "gpt2": 8, "resnet50": 64}  # of each GPU, unless the command line says otherwise


def data(asked: argparse.Namespace, seconds: float) -> None:
    rank = Rank(asked, seconds)
    for name in asked.networks.split(","):
        rank.tried(f"data {name}", lambda name=name: data_case(rank, name))


def data_case(rank: Rank, name: str) -> dict[str, object]:
    import ingot

    torch, asked = rank.torch, rank.asked
    make = networks(torch, not rank.gpu)[name]
    batch, index = asked.batch or BATCH[name], rank.group.rank
    precision = "bfloat16" if rank.gpu else "float32"

    def step_of(samples: int, **mesh: Any) -> tuple[Any, Any, Any]:
        torch.manual_seed(0)
        net, x, y = make(samples)
        options: dict[str, Any] = {"target": asked.target, "precision": precision, "threads": 1, **mesh}
        return ingot.train(net.train(), loss_of, ingot.optim.AdamW(lr=1e-4), (x,), (y,), **options), x, y

    begin = time.perf_counter()
    step, x, y = step_of(batch * RANKS, mesh={"dp": RANKS})
    found: dict[str, object] = {"batch": batch, "compile_s": time.perf_counter() - begin}
    own = tuple(rank.there(v[batch * index : batch * (index + 1)].contiguous()) for v in (x, y))
    found["losses"] = losses = [float(step(*own)[0]) for _ in range(5)]
    found["ms"] = rank.time(lambda: step(*own))
    found["collectives"] = sum(s.collective is not None for s in step.program.steps)
    rank.tell(what=f"data {name}, so far", **found)
    one = step_of(batch)[0] if rank.first else None
    found["one_gpu_ms"] = rank.time(lambda: one(*own) if one is not None else None, alone=True)
    found["samples_over_one_gpu"] = RANKS * float(str(found["one_gpu_ms"])) / float(str(found["ms"]))
    rank.tell(what=f"data {name}, so far", **found)
    if asked.whole and rank.first:  # the same step on one GPU
        whole, every = step_of(batch * RANKS)[0], tuple(map(rank.there, (x, y)))
        wanted = [float(whole(*every)[0]) for _ in range(5)]
        found["loss_deviation"] = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted, strict=True))
    rank.meet()
    step = eager_step(rank, make, batch, distributed(rank, norms=True))
    found |= {"ddp_losses": mean_losses(rank, step), "ddp_ms": rank.time(step)}
    found["loss_deviation_from_ddp"] = max(
        abs(a - b) / abs(b)
        for a, b in zip(losses, found["ddp_losses"], strict=True)  # type: ignore[call-overload]
    )
    return found


def eager_step(rank: Rank, make: Callable[[int], tuple[Any, Any, Any]], batch: int, wrap: Callable[[Any], Any]) -> Call:
    """A step of PyTorch's with fused AdamW, in bfloat16 by autocast; wrap: of the network."""
    torch, index = rank.torch, rank.group.rank
    torch.manual_seed(0)
    net, x, y = make(batch * RANKS)
    net = net.train()
    own = tuple(rank.there(v[batch * index : batch * (index + 1)].contiguous()) for v in (x, y))
    if rank.gpu:
        net = net.cuda()
        if x.dim() == 4:
            net, own = (
                net.to(memory_format=torch.channels_last),
                (own[0].contiguous(memory_format=torch.channels_last), own[1]),
            )
    wrapped = wrap(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, **({"fused": True} if rank.gpu else {}))

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=rank.gpu):
            loss = loss_of(wrapped(own[0]), own[1])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def mean_losses(rank: Rank, step: Call) -> list[float]:
    """Of five steps, over the ranks."""
    losses: list[float] = []
    for _ in range(5):
        loss = step()
        rank.torch_group().all_reduce(loss)
        losses.append(float(loss) / RANKS)
    return losses


def distributed(rank: Rank, *, norms: bool = False) -> Callable[[Any], Any]:
    """DistributedDataParallel. norms: those of batches over the batches of both GPUs."""
    nn = rank.torch.nn
    rank.torch_group()
    if norms and rank.gpu:
        return lambda net: nn.parallel.DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(net))
    return nn.parallel.DistributedDataParallel


# --- ddp


def ddp(asked: argparse.Namespace, seconds: float) -> None:
    rank = Rank(asked, seconds)
    for name in asked.networks.split(","):
        rank.tried(f"ddp {name}", lambda name=name: ddp_case(rank, name))


def ddp_case(rank: Rank, name: str) -> dict[str, object]:
    from ingot.integrations.torch_compile import ingot_backend

    torch, make, batch = rank.torch, networks(rank.torch, not rank.gpu)[name], rank.asked.batch or BATCH[name]
    wrap = distributed(rank)
    eager = eager_step(rank, make, batch, wrap)
    found: dict[str, object] = {"batch": batch, "eager_losses": mean_losses(rank, eager), "eager_ms": rank.time(eager)}
    rank.tell(what=f"ddp {name}, so far", **found)
    del eager
    begin = time.perf_counter()
    both = eager_step(rank, make, batch, lambda net: torch.compile(wrap(net), backend=ingot_backend))
    found["losses"] = mean_losses(rank, both)
    found["first_steps_s"] = time.perf_counter() - begin
    found["ms"] = rank.time(both)
    rank.tell(what=f"ddp {name}, so far", **found)
    one = eager_step(rank, make, batch, lambda net: torch.compile(net, backend=ingot_backend)) if rank.first else None
    found["one_gpu_ms"] = rank.time(lambda: one() if one is not None else None, alone=True)
    found["samples_over_one_gpu"] = RANKS * float(str(found["one_gpu_ms"])) / float(str(found["ms"]))
    pairs = zip(found["losses"], found["eager_losses"], strict=True)  # type: ignore[call-overload]
    found["loss_deviation_from_eager"] = max(abs(a - b) / abs(b) for a, b in pairs)
    return found


# --- memory


def memory(asked: argparse.Namespace, seconds: float) -> None:
    rank = Rank(asked, seconds)
    rank.tried("memory", lambda: memory_case(rank))


def memory_case(rank: Rank) -> dict[str, object]:
    """Bounds of each GPU below the model's size: with 0.8 of it the halves fit, with 0.4 they are streamed."""
    import ingot
    from benchmarks.gpu import llama

    torch, asked = rank.torch, rank.asked
    torch.manual_seed(0)
    net, (ids, at) = llama.llama(512, 0, asked.layers)
    ids = torch.randint(0, llama.WORDS, (1, 512))
    nbytes = sum(p.nbytes for p in {*net.parameters()})
    own = rank.there(ids), rank.there(at)
    found: dict[str, object] = {"model_mb": nbytes / 1e6}
    results: list[Any] = []
    for share in (None, 0.8, 0.4):
        bound = None if share is None else int(share * nbytes)
        split = ingot.compile(
            net, (ids, at), mesh={"tp": RANKS}, shard=MARKS, target=asked.target, threads=1, device_memory=bound
        )
        with torch.no_grad():
            results.append(split(*own).clone())
            found[f"ms of {share}"] = rank.time(lambda split=split: split(*own))
        found[f"free_mb of {share}"] = torch.cuda.mem_get_info()[0] / 1e6
        found["same"] = all(bool((result == results[0]).all()) for result in results)
        rank.tell(what="memory, so far", **found)
        del split
    return found


# --- errors


def errors(asked: argparse.Namespace, seconds: float) -> None:
    """Programs that differ are refused when they are loaded. The second rank ends between two calls: the first one's
    next call has to end with an error."""
    rank = Rank(asked, seconds)
    torch = rank.torch
    from ingot import ops
    from ingot.driver.compile import Options, build_graph
    from ingot.ir.node import Graph, Input
    from ingot.ir.types import TensorType, f32
    from ingot.runtime.executor import CompiledModel

    def graph_of(kind: str) -> Graph:
        x = Input("x", TensorType(f32, (1024,)))()
        return Graph((x,), (ops.mul(ops.AllReduce(((0, 1),), kind)(ops.mul(x, 1.0)), 2.0),))

    begin = time.perf_counter()
    try:
        kind = "sum" if rank.first else "max"
        CompiledModel(build_graph(lambda: graph_of(kind), Options(asked.target, 1, cache=False)), threads=1)
        rank.tell(what="different programs", error="no error")
    except Exception as error:
        told = f"{type(error).__name__}: {error}"[:300]
        rank.tell(what="different programs", ended_s=time.perf_counter() - begin, told=told)
    graph = graph_of("sum")
    model = CompiledModel(build_graph(lambda: graph, Options(asked.target, 1, cache=False)), threads=1)
    value = rank.there(torch.ones(1024))
    model(value)
    rank.synchronize()
    if not rank.first:
        os._exit(9)
    begin = time.perf_counter()
    try:
        for _ in range(3):
            model(value)
            rank.synchronize()
            time.sleep(0.2)
        rank.tell(what="errors", error="no error")
    except Exception as error:
        told = f"{type(error).__name__}: {error}"[:300]
        rank.tell(what="errors", ended_s=time.perf_counter() - begin, told=told)


def topology() -> str:
    try:
        return subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--networks", default="gpt2")
    parser.add_argument("--batch", type=int, default=0, help="of each GPU, in training")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--whole", action="store_true", help="also compare with the whole batch on one GPU")
    parser.add_argument("--seconds", type=float, default=95)
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--gpus", type=int, default=RANKS, choices=(1, RANKS), help="1: of exchange, a group of one")
    parser.add_argument("--report", default="")
    asked = parser.parse_args(arguments)
    os.environ.update(MULTICAST | NCCL)
    from ingot import launch

    os.environ.setdefault("INGOT_WORKERS", str(max(1, min(12, (os.cpu_count() or 2) // RANKS))))  # that make code
    gpus = range(asked.gpus) if asked.target.startswith("cuda") else None
    if gpus is not None:
        print(topology(), flush=True)
    parts = asked.parts.split(",") if asked.gpus > 1 else ["exchange"]
    total, end, failed = sum(PARTS[p] for p in parts), time.perf_counter() + asked.seconds, 0
    for number, part in enumerate(parts):
        left = end - time.perf_counter()
        share = left * PARTS[part] / total if number < len(parts) - 1 else left
        total -= PARTS[part]
        begin = time.perf_counter()
        try:
            launch(globals()[part], asked.gpus, (asked, share), gpus=gpus, seconds=share)
        except Exception as error:
            expected = part == "errors" and "exit code 9" in str(error)
            failed += not expected
            if not expected:
                print(f"{part}: {type(error).__name__}: {str(error)[-2500:]}", flush=True)
        tell(asked.report, what=f"end of {part}", seconds=time.perf_counter() - begin)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
