"""Prove the compiler's rules, or show a counterexample.

    python tools/prove.py                                everything, in under a minute
    python tools/prove.py identities --only "power("     one group, one rule
    python tools/prove.py --verbose                      each verdict, with its method
    python tools/prove.py --all-floats logistic          a function on all 2^32 floats of f32, in minutes
    python tools/prove.py --all-floats sine --target cpu:x86-64-v3 --every 16      other code, one chunk in 16
    python tools/prove.py --all-floats tanh --target cpu:aarch64 --every 64        NEON, emulated

Groups: identities (of `passes.core.identities`, in each dtype), fast-math (each with the counterexample that keeps it
from the identities), structure (rules about shapes, views, positions and masks, per rank) and lowerings (the
polynomials of functions). A rule that is not proved ends the run with status 1. See docs/inside/proofs.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain, product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from ingot.ir.types import f16  # noqa: E402
from ingot.passes.core.identities import FAST_MATH, IDENTITIES  # noqa: E402
from tools.proofs import identities, instances, lowerings  # noqa: E402
from tools.proofs.verdict import State, Verdict, summary  # noqa: E402


def _identities(only: str) -> Iterator[Verdict]:
    pairs = product(identities.COMMUTATIVE, identities.DTYPES_PROVED)
    yield from (v for op, dtype in pairs if only in op.name and (v := identities.commutativity(op, dtype)))
    yield from identities.verdicts(i for i in IDENTITIES if only in i.text)


def _fast_math(only: str) -> Iterator[Verdict]:
    """What is proved of a rule of FAST_MATH is that it does not hold."""
    for v in identities.verdicts((i for i in FAST_MATH if only in i.text), (f16,)):
        yield replace(v, rule=f"not {v.rule}", state=_OPPOSITE[v.state])


_OPPOSITE: dict[State, State] = {"refuted": "proved", "proved": "refuted", "open": "open"}
GROUPS: dict[str, Callable[[str], Iterator[Verdict]]] = {
    "identities": _identities,
    "fast-math": _fast_math,
    "structure": lambda only: (v for v in instances.verdicts() if only in v.rule),
    "lowerings": lambda only: (v for v in lowerings.verdicts() if only in v.rule),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", nargs="*", help=f"of {', '.join(GROUPS)}; all by default")
    parser.add_argument("--only", default="", metavar="TEXT", help="rules whose name has TEXT")
    parser.add_argument("--verbose", action="store_true", help="each verdict, not only what is not proved")
    parser.add_argument("--json", action="store_true", help="each verdict as a line of JSON")
    parser.add_argument("--all-floats", nargs="+", choices=lowerings.ALL_FLOATS, default=[], metavar="FUNCTION")
    parser.add_argument(
        "--target", default="native", help="of --all-floats: code that this machine runs, or qemu (cpu:aarch64)"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of --all-floats: of N chunks of floats one")
    options = parser.parse_args(arguments)
    unknown = set(options.group) - set(GROUPS)
    if unknown:
        parser.error(f"no group is named {', '.join(sorted(unknown))}: expected {', '.join(GROUPS)}")
    if options.all_floats:
        values = range(0, 1 << 32, lowerings.CHUNK * options.every)
        found = [lowerings.all_floats(name, values, options.target) for name in options.all_floats]
    else:
        groups = (GROUPS[name](options.only) for name in options.group or GROUPS)
        found = list(chain.from_iterable(groups))
    if not found:
        parser.error(f"no rule of {', '.join(options.group or GROUPS)} has {options.only!r} in its name")
    unproved = [v for v in found if v.state != "proved"]
    for v in found if options.verbose or options.json or options.all_floats else unproved:
        print(json.dumps(asdict(v)) if options.json else v)
    if not options.json:
        print(f"{summary(found)}; {sum(v.seconds for v in found):.1f} s of processor time")
    return 1 if unproved else 0


if __name__ == "__main__":
    sys.exit(main())
