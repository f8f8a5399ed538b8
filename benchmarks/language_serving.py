"""`ingot serve MODEL` under requests at a fixed rate, through OpenAI's client.

    python -m benchmarks.language_serving model.gguf --seconds 600 --shares 0.5,0.9
    python -m benchmarks.language_serving                      a tiny model with random weights

First clients that ask again at once find out how many requests a second the server can do. Then requests come at random
(Poisson) at each share of that rate: percentiles of the time to the first token and between tokens, refusals, whether
each answer is the one that its prompt has alone (temperature 0), and the server's resident memory over time.

`--faults 0.2` adds a fault to each fifth request: clients that are killed, malformed bodies, too long prompts, and more
requests at once than the queue holds. Each must get its error in OpenAI's form, or the run fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openai

WORDS = ("a", "the", "of", "in", "model", "compiler", "kernel", "memory", "light", "water", "stone", "river", "north")
PROMPTS = 24  # different ones
WARM_SECONDS = 10.0
PERCENTILES = (50, 90, 99)
QUEUE = 8  # waiting requests, where it is to be full
# the status, type and code of each fault's error
ERRORS = {
    "malformed body": (400, "invalid_request_error", None), "wrong type": (400, "invalid_request_error", None),
    "too long prompt": (400, "invalid_request_error", "context_length_exceeded"),
    "full queue": (503, "server_error", "overloaded"),
}  # fmt: skip


@dataclass
class Figures:
    first: list[float] = field(default_factory=list[float])
    between: list[float] = field(default_factory=list[float])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    resident: list[int] = field(default_factory=list[int])
    tokens: int = 0


class Load:
    """Requests to one server. tokens: of an answer."""

    def __init__(self, url: str, model: str, words: int, tokens: int) -> None:
        self._api = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
        self._model, self._tokens = model, tokens
        chance = random.Random(0)
        self.prompts = [" ".join(chance.choices(WORDS, k=words)) for _ in range(PROMPTS)]
        self._alone: dict[str, str] = {}

    async def ask(self, prompt: str, figures: Figures) -> None:
        last, text = time.perf_counter(), ""
        is_first = True
        try:
            stream = await self._api.completions.create(
                model=self._model, prompt=prompt, max_tokens=self._tokens, temperature=0, stream=True, logprobs=0,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            async for chunk in stream:
                choice = chunk.choices[0]
                count = len((choice.logprobs.tokens if choice.logprobs else None) or ())
                text += choice.text
                if not count:
                    continue
                now = time.perf_counter()
                figures.tokens += count
                if is_first:
                    figures.first.append(now - last)
                    is_first = False
                else:
                    figures.between += [(now - last) / count] * count
                last = now
        except openai.APIStatusError as error:
            figures.outcomes[f"refused with {error.status_code}"] += 1
            return
        same = self._alone.setdefault(prompt, text) == text
        figures.outcomes["as alone" if same else "other than alone"] += 1

    async def fault(self, kind: str, prompt: str, figures: Figures) -> None:
        create: Any = self._api.completions.create
        how: dict[str, Any] = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": self._tokens,
            "extra_body": {"ignore_eos": True},
        }
        try:
            if kind == "killed client":
                stream = await create(**how, stream=True)
                await anext(aiter(stream))
                await stream.close()
            elif kind == "malformed body":
                await self._api.post("/completions", content=b"{", cast_to=object)
            elif kind == "wrong type":
                await create(**how | {"extra_body": {"temperature": "hot"}})
            elif kind == "too long prompt":
                await create(**how | {"prompt": " ".join(WORDS) * 10_000})
            else:
                waiting = [create(**how) for _ in range(4 * QUEUE)]
                errors = [e for e in await asyncio.gather(*waiting, return_exceptions=True) if e is not None]
                for error in errors:
                    if isinstance(error, BaseException):
                        raise error
        except openai.APIStatusError as error:
            body = error.body if isinstance(error.body, dict) else {}
            got = error.status_code, body.get("type"), body.get("code")
            is_full = kind == "killed client" and got == ERRORS["full queue"]
            is_right = (is_full or got == ERRORS.get(kind)) and {*body} == {"message", "type", "param", "code"}
            figures.outcomes[f"{kind}: {error.status_code}" if is_right else f"{kind}: WRONG {got}"] += 1
            return
        figures.outcomes[f"{kind}: {'no error' if kind in ('killed client', 'full queue') else 'WRONG none'}"] += 1

    async def alone(self) -> None:
        figures = Figures()
        for prompt in self.prompts:
            await self.ask(prompt, figures)
        if [*figures.outcomes] != ["as alone"]:
            raise SystemExit(f"single requests end as {dict(figures.outcomes)}")

    async def capacity(self, clients: int, seconds: float) -> float:
        """Requests a second."""
        end, figures = time.monotonic() + seconds, Figures()

        async def client(seed: int) -> None:
            chance = random.Random(seed)
            while time.monotonic() < end:
                await self.ask(chance.choice(self.prompts), figures)

        start = time.monotonic()
        await asyncio.gather(*(client(i) for i in range(clients)))
        return sum(figures.outcomes.values()) / (time.monotonic() - start)

    async def at_rate(self, rate: float, seconds: float, server: int, faults: float = 0.0) -> Figures:
        """faults: their number for each request."""
        figures, chance = Figures(), random.Random(1)
        end, tasks = time.monotonic() + seconds, set[asyncio.Task[None]]()

        async def watch() -> None:
            while True:
                figures.resident.append(resident_bytes(server))
                await asyncio.sleep(seconds / 20)

        watching = asyncio.create_task(watch())
        while time.monotonic() < end:
            prompt = chance.choice(self.prompts)
            calls = [self.ask(prompt, figures)]
            if chance.random() < faults:
                calls.append(self.fault(chance.choice(["killed client", *ERRORS]), prompt, figures))
            for call in calls:
                task = asyncio.create_task(call)
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(chance.expovariate(rate))
        await asyncio.gather(*tasks)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        return figures


def resident_bytes(process: int) -> int:
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * 4096


def show(share: float, rate: float, figures: Figures, seconds: float) -> None:
    def percentiles(values: list[float]) -> str:
        found = np.percentile(values, PERCENTILES) * 1e3 if values else [float("nan")] * len(PERCENTILES)
        return ", ".join(f"p{p} {value:.1f} ms" for p, value in zip(PERCENTILES, found, strict=True))

    mib = [value / (1 << 20) for value in figures.resident]
    print(f"{share:.2f} of what it can do, {rate:.2f} requests/s for {seconds:.0f} s: {dict(figures.outcomes)}")
    print(f"  first token     {percentiles(figures.first)}")
    print(f"  between tokens  {percentiles(figures.between)};  {figures.tokens / seconds:.1f} tokens/s")
    middle = mib[len(mib) // 2 :] or mib
    print(f"  memory          {mib[0]:.0f} MiB at first, then {min(middle):.0f} to {max(middle):.0f} MiB", flush=True)


async def measure(load: Load, server: int, shares: list[float], clients: int, seconds: float, faults: float) -> None:
    await load.alone()
    capacity = await load.capacity(clients, WARM_SECONDS)
    print(f"{clients} clients that ask again at once: {capacity:.2f} requests/s")
    for share in shares:
        figures = await load.at_rate(share * capacity, seconds, server, faults)
        show(share, share * capacity, figures, seconds)
        if wrong := [outcome for outcome in figures.outcomes if "WRONG" in outcome or outcome == "other than alone"]:
            raise SystemExit(f"wrong: {wrong}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=60, help="at each rate")
    parser.add_argument("--shares", default="0.5,0.9")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--words", type=int, default=16, help="of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--faults", type=float, default=0.0, help="for each request")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model
        if model is None:
            from tests.language import tiny

            model = tiny.write(Path(folder) / "tiny.gguf")
        words = [sys.executable, "-m", "ingot", "serve", str(model), "--name", "model", "--port", "0", "--json"]
        words += ["--sequences", str(arguments.sequences)]
        words += ["--queue", str(QUEUE)] if arguments.faults else []
        words += [] if arguments.threads is None else ["--threads", str(arguments.threads)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                url = json.loads(server.stdout.readline())["url"]
                load = Load(url, "model", arguments.words, arguments.tokens)
                shares = [float(text) for text in arguments.shares.split(",")]
                seconds, faults = arguments.seconds, arguments.faults
                asyncio.run(measure(load, server.pid, shares, arguments.sequences, seconds, faults))
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
