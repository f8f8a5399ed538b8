"""What to try next, from where the time of an explained run goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.debug.build import Build

if TYPE_CHECKING:
    from ingot.debug.explain import Explanation

_MIN_SHARE = 0.1  # of the time, of a kernel that is worth an advice of its own
_LOW_PEAK = 0.4  # of the multiply-add peak: a product below it may have better tiles
_NEAR_MEMORY = 0.6  # of the bandwidth
_MIN_PRODUCTS = 0.5  # of the time, in products, for which another number format pays
_MAX_ADVICES = 4


def advice(e: Explanation, build: Build) -> tuple[str, ...]:
    """Sentences, the most useful first; none where nothing stands out."""
    found: list[str] = []
    on_cpu = not build.program.is_on_gpu
    products = [r for r in e.rows if r.flops]
    for r in sorted(products, key=lambda r: -r.seconds)[:2]:
        is_slow = r.flops_share < _LOW_PEAK and r.bytes_share < _NEAR_MEMORY
        if on_cpu and r.share >= _MIN_SHARE and is_slow and r.kind == "contraction":
            found.append(f"{r.name}: {r.flops_share:.0%} of the peak and {r.share:.0%} of the time: try `ingot tune`")
    if build.precision == "float32" and sum(r.share for r in products) >= _MIN_PRODUCTS:
        has_bf16 = not on_cpu or "avx512bf16" in build.features.features or "bf16" in build.features.features
        formats = 'precision="bfloat16" or `ingot quantize`' if has_bf16 else "`ingot quantize`"
        found.append(f"{sum(r.share for r in products):.0%} of the time is in products of float32: try {formats}")
    memory = sum(r.share for r in e.rows if not r.flops and r.bytes_share >= _NEAR_MEMORY)
    if memory >= _MIN_SHARE:
        found.append(f"{memory:.0%} of the time moves bytes at the memory's rate: only fewer bytes make it faster")
    outside = 1 - e.seconds / e.call_seconds if e.call_seconds else 0.0
    if outside >= _LOW_PEAK:
        found.append(f"{outside:.0%} of a call is spent around the kernels: try larger batches")
    return tuple(found[:_MAX_ADVICES])


__all__ = ["advice"]
