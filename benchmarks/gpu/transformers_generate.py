"""`generate()` of transformers with a static cache on an NVIDIA GPU, compiled by Ingot and by Inductor.

    python -m benchmarks.gpu.transformers_generate [--only llama,qwen3,gemma3] [--engine eager,cudagraphs,ingot]
        [--way generate,forward] [--file generate.jsonl]
    python -m benchmarks.gpu.transformers_generate --file generate.jsonl --table

Weights are random, of a fixed seed, made on the GPU in bfloat16. `--way generate` lets `generate()` compile the step
(`CompileConfig`); `--way forward` compiles the forward pass itself, so that the prompt is read by a compiled program,
too, beside caches that the caller makes. The engines of a network make their first calls at the same time, each in a
process of its own, and are then timed one after another. Each appends one JSON line to the file: seconds of the first
call, tokens a second (the median of calls, the prompt included), busy milliseconds of the GPU and copies from device to
device a token, and the tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ingot.integrations.torch_compile import ingot_backend

ENGINES: dict[str, dict[str, Any]] = {
    "eager": {},
    "inductor": {"backend": "inductor"},
    "cudagraphs": {"backend": "inductor", "mode": "reduce-overhead"},
    "ingot": {"backend": ingot_backend},
}
WAYS = ("generate", "forward")
# a head of its own: with that of the embedding, random networks repeat the last token
TOKENS = {
    "vocab_size": 128256, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
# (configuration, network, sizes): of about 1.2 billion, 0.6 billion and 0.6 billion parameters, without the embedding
NETWORKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {
        **TOKENS, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5,
    }),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {
        **TOKENS, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128,
    }),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {
        **TOKENS, "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 14, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
    }),
}  # fmt: skip
SMALL = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
READY = "ready"  # the line of a process that has made its first calls; it goes on when it reads one


def measure(name: str, engine: str, way: str, options: argparse.Namespace) -> dict[str, Any]:
    """One network under one engine: the figures of its line."""
    import torch
    import transformers

    config, network, sizes = NETWORKS[name]
    sizes = {**sizes, **(SMALL if options.small else {})}
    device = torch.device(options.device)
    settings = getattr(transformers, config)(**sizes, max_position_embeddings=1024)
    torch.manual_seed(options.seed)
    torch.set_default_dtype(torch.bfloat16)
    with device:
        net = getattr(transformers, network)(settings).eval()
    torch.set_default_dtype(torch.float32)
    net.generation_config.eos_token_id = None
    ids = torch.randint(3, sizes["vocab_size"], (1, options.prompt), device=device)
    call = _generate(net, ids, ENGINES[engine], way, options)

    begin = time.perf_counter()
    tokens = call()
    _wait(device)
    first = time.perf_counter() - begin
    for _ in range(2 if engine != "eager" else 0):  # CUDA graphs are recorded by the second call
        call()
    _wait(device)
    print(READY, flush=True)
    sys.stdin.readline()
    times: list[float] = []
    again: list[int] = []
    for _ in range(options.calls if engine != "eager" else 2):
        begin = time.perf_counter()
        again = call()
        _wait(device)
        times.append(time.perf_counter() - begin)
    counters = torch._dynamo.utils.counters
    if engine == "cudagraphs" and (skips := counters["inductor"]["cudagraph_skips"]):
        raise RuntimeError(f"{skips} CUDA graphs of Inductor were skipped")
    return {
        "network": name, "engine": engine, "way": way, "parameters": sum(p.numel() for p in net.parameters()),
        "first_s": round(first, 1), "tokens_per_s": round(options.tokens / statistics.median(times), 1),
        "graphs": counters["stats"]["unique_graphs"], "same_again": again == tokens,
        **(_busy(call, options.tokens) if device.type == "cuda" and engine != "eager" else {}), "tokens": tokens,
    }  # fmt: skip


def _generate(net: Any, ids: Any, compiled: dict[str, Any], way: str, options: argparse.Namespace) -> Callable[[], Any]:
    """A call of `generate()`, to the list of the new tokens."""
    import torch
    import transformers

    settings: dict[str, Any] = {"max_new_tokens": options.tokens, "do_sample": False, "disable_compile": True}
    cache: Any = None
    if way == "forward":
        config = net.config.get_text_config(decoder=True)
        cache = transformers.StaticCache(config=config, max_cache_len=options.prompt + options.tokens)
        cache.early_initialization(1, config.num_key_value_heads, config.head_dim, net.dtype, net.device)
        settings["past_key_values"] = cache
        if compiled:
            net.forward = torch.compile(net.forward, **compiled)
    else:
        settings["cache_implementation"] = "static"
        if compiled:
            config = transformers.CompileConfig(**{"mode": None, **compiled})
            config._compile_all_devices = True  # pyright: ignore[reportAttributeAccessIssue]
            settings |= {"compile_config": config, "disable_compile": False}

    def call() -> list[int]:
        if cache is not None:
            cache.reset()
        with torch.no_grad():
            return net.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, ids.shape[1] :].tolist()

    return call


def _wait(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()


def _busy(call: Callable[[], Any], tokens: int) -> dict[str, Any]:
    """Of a token: the busy milliseconds of the GPU, its kernels, and the copies from device to device."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        call()
    averages = [e for e in trace.key_averages() if str(e.device_type).endswith("CUDA")]
    copies = sum(e.count for e in averages if "Memcpy DtoD" in e.key)
    return {
        "busy_ms": round(sum(e.self_device_time_total for e in averages) / 1e3 / tokens, 3),
        "kernels": round(sum(e.count for e in averages) / tokens, 1), "device_copies": round(copies / tokens, 2),
    }  # fmt: skip


def run(name: str, way: str, options: argparse.Namespace) -> None:
    """The engines of one network: their first calls side by side, then one after another. All are killed after
    `options.seconds`."""
    end = time.monotonic() + options.seconds
    command = [sys.executable, "-m", "benchmarks.gpu.transformers_generate", *sys.argv[1:], "--measure"]
    processes, errors = dict[str, subprocess.Popen[str]](), dict[str, IO[str]]()
    for engine in options.engine.split(","):
        errors[engine] = tempfile.TemporaryFile("w+")  # noqa: SIM115  a pipe that nobody reads would fill
        processes[engine] = subprocess.Popen(
            [*command, "--only", name, "--engine", engine, "--way", way], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=errors[engine], text=True, start_new_session=True,
        )  # fmt: skip
    for process in processes.values():
        _line(process, end)  # READY, or the end
    for engine, process in processes.items():
        error = ""
        try:
            out, _ = process.communicate("go\n", timeout=max(end - time.monotonic(), 1))
            line = out.strip().splitlines()[-1] if process.returncode == 0 else ""
            errors[engine].seek(0)
            error = (errors[engine].read().strip().splitlines() or ["no output"])[-1]
        except subprocess.TimeoutExpired:
            line, error = "", f"killed after {options.seconds:.0f} s"
        except OSError as refused:  # it has ended
            line, error = "", str(refused)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        errors[engine].close()
        line = line or json.dumps({"network": name, "engine": engine, "way": way, "error": error[:400]})
        with options.file.open("a") as lines:
            lines.write(line + "\n")
        print(line[:420], flush=True)


def _line(process: subprocess.Popen[str], end: float) -> None:
    """Wait for a line of a process, its end, or the time."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if selector.select(max(end - time.monotonic(), 0)):
            process.stdout.readline()


def table(file: Path) -> str:
    """The newest line of each as a table in Markdown. same: the first tokens that are those of eager."""
    newest: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        newest.setdefault((row["network"], row["way"]), {})[row["engine"]] = row
    rows = [
        "| network, way | engine | tokens/s | first call, s | busy ms, kernels, copies a token | same |",
        "|---" * 6 + "|",
    ]
    for (name, way), engines in newest.items():
        want = engines.get("eager", {}).get("tokens")
        for engine, row in engines.items():
            if "error" in row:
                rows.append(f"| {name}, {way} | {engine} | {row['error']} |")
                continue
            same = "" if want is None else f"{_same(row['tokens'], want)} of {len(want)}"
            busy = ", ".join(str(row[k]) for k in ("busy_ms", "kernels", "device_copies") if k in row)
            rows.append(f"| {name}, {way} | {engine} | {row['tokens_per_s']} | {row['first_s']} | {busy} | {same} |")
    return "\n".join(rows)


def _same(got: list[int], want: list[int]) -> int:
    """How many of the first tokens are equal."""
    return next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), len(want))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NETWORKS), help="networks, by comma")
    parser.add_argument("--engine", default="eager,cudagraphs,ingot", help="engines, by comma")
    parser.add_argument("--way", default="generate", help=f"of {', '.join(WAYS)}, by comma")
    parser.add_argument("--file", type=Path, default=Path("generate.jsonl"))
    parser.add_argument("--seconds", type=float, default=90.0, help="of one network and all of its engines")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="networks of two small layers")
    parser.add_argument("--table", action="store_true", help="print the table of the file")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.only, options.engine, options.way, options)))
    elif options.table:
        print(table(options.file))
    else:
        for way in options.way.split(","):
            for name in options.only.split(","):
                run(name, way, options)
        print(table(options.file))


if __name__ == "__main__":
    main()
