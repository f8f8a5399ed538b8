"""Several answers of a language model at once: the tokens of all of them beside those of one, and speculation.

    python -m benchmarks.streams gemma.gguf [--streams 1,2,4,8] [--tokens 64] [--threads 1] [--draft FILE] [--json FILE]

All take turns: `generate` of one prompt, the engine with each number of streams, speculation by lookup on a prompt that
asks for a text again, and by a draft model. Milliseconds are processor time, which other processes change less; of two
threads, it is what both spend. Each answer is compared with the one that its prompt has alone.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import ingot
from benchmarks.measure import cpu_name

TEXTS = (
    "The capital of France is", "Once upon a time", "In the year 1905", "A recipe for bread:", "Python is a language",
    "The moon", "My favourite book", "Rain falls",
)  # fmt: skip
LIST = "".join(
    f"{n}. The river {name} flows to the sea.\n" for n, name in enumerate(("Rhine", "Seine", "Elbe", "Po"), 1)
)
AGAIN = f"{LIST}\nThe same list again:\n{LIST}\nThe same list again:\n1."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", default="1,2,4,8")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--draft", type=Path, help="a smaller model with the same vocabulary")
    parser.add_argument("--proposals", type=int, default=3, help="of the draft in a step")
    parser.add_argument("--options", type=json.loads, default={}, help="of LanguageModel, as JSON")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    streams = [int(n) for n in a.streams.split(",")]
    lm = ingot.LanguageModel(a.model, context=a.context, threads=a.threads, **a.options)
    how: dict[str, Any] = {"temperature": 0, "max_tokens": a.tokens, "ignore_ends": True}
    ids = [lm.tokenizer.encode(TEXTS[n % len(TEXTS)] + " " * (n // len(TEXTS))) for n in range(max(streams))]
    again = lm.tokenizer.encode(AGAIN)
    seconds: dict[str, list[float]] = {}
    with ExitStack() as stack:
        engine = stack.enter_context(lm.engine(sequences=max(streams)))
        guess = stack.enter_context(lm.engine(sequences=1, speculate="prompt"))
        drafted = None
        if a.draft:
            draft = ingot.LanguageModel(a.draft, context=a.context, threads=a.threads, **a.options)
            drafted = stack.enter_context(lm.engine(sequences=1, draft=draft, proposals=a.proposals))

        def answers(engine: Any, prompts: list[list[int]]) -> list[list[int]]:
            found = [engine.submit(one, lm.request(**how)) for one in prompts]
            return [[token.id for piece in answer for token in piece.tokens] for answer in found]

        def timed(name: str, call: Any) -> Any:
            begin = time.process_time()
            result = call()
            seconds.setdefault(name, []).append(time.process_time() - begin)
            return result

        alone = [answers(engine, [one])[0] for one in ids]
        plain = answers(engine, [again])
        for _ in range(a.rounds):
            lm.reset()
            timed("generate", lambda: lm.generate(ids[0], **how))
            for n in streams:
                assert timed(f"{n} streams", lambda n=n: answers(engine, ids[:n])) == alone[:n]
            if drafted is not None:
                assert timed("draft", lambda: answers(drafted, ids[:1])) == alone[:1]
            assert timed("repetition", lambda: answers(engine, [again])) == plain
            assert timed("repetition, lookup", lambda: answers(guess, [again])) == plain
        accepted = {
            name: s.accepted_tokens / max(s.proposed_tokens, 1)
            for name, e in (("lookup", guess), ("draft", drafted))
            if e is not None and (s := e.statistics())
        }
    steps = {name: 1000 * median(values[-a.rounds :]) / a.tokens for name, values in seconds.items()}
    one = steps[f"{streams[0]} streams"] / streams[0]
    report: dict[str, Any] = {
        "cpu": cpu_name(), "model": a.model.name, "threads": a.threads, "options": a.options,
        "milliseconds": steps,
        "tokens_of_one": {n: one * n / steps[f"{n} streams"] for n in streams},
        "accepted": accepted,
        "speedup": {"lookup": steps["repetition"] / steps["repetition, lookup"]},
    }  # fmt: skip
    if drafted is not None:
        report["speedup"]["draft"] = one / steps["draft"]
    for name, value in steps.items():
        print(f"{name:20} {value:8.2f} ms of processor time for a token of each")
    for n in streams:
        print(f"{n} streams: {report['tokens_of_one'][n]:.2f}x the tokens of one")
    for name, gain in report["speedup"].items():
        print(f"{name}: {accepted[name]:.0%} of what was proposed, {gain:.2f}x the tokens")
    if a.json:
        a.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
