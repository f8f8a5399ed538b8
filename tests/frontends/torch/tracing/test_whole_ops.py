"""Ops that torch would decompose while it traces."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ingot.frontends.torch.tracing import whole_ops  # noqa: E402
from ingot.integrations.torch_compile import ingot_backend  # noqa: E402


def test_attention_of_an_expanded_mask_gets_a_contiguous_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs torch has no fused kernel for a mask whose last stride is 0; here the CPU stands in for one."""
    strides: list[int] = []
    original = whole_ops._attention._op_dk

    def record(key: Any, query: Any, k: Any, v: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        if whole_ops.whole_attention.on:  # dynamo traces outside of it, too
            strides.append(mask.stride(-1))
        return original(key, query, k, v, mask, *args, **kwargs)

    monkeypatch.setattr(whole_ops, "_NEED_CONTIGUOUS_MASKS", {"cpu"})
    monkeypatch.setattr(whole_ops._attention, "_op_dk", record)
    torch.manual_seed(0)
    mask = (torch.arange(16) < 11)[None, None, :, None].expand(2, 1, 16, 16)
    operands = [torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3)]
    attend = torch.nn.functional.scaled_dot_product_attention
    compiled = torch.compile(lambda q, k, v: attend(q, k, v, mask)[:, :, :11], backend=ingot_backend, fullgraph=True)
    results = [f(*operands) for f in (lambda q, k, v: attend(q, k, v, mask)[:, :, :11], compiled)]
    gradients = [torch.autograd.grad(y.square().sum(), operands) for y in results]
    assert set(strides) == {1}
    torch.testing.assert_close(*results)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
