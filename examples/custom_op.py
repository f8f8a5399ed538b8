"""An op that Ingot lacks, taught in your program: registered once, compiled, fused and differentiated as any other.

    python examples/custom_op.py

squareplus (Barron 2021): (x + sqrt(x^2 + b)) / 2. docs/how-to/custom-ops.md has ONNX, JAX, and functions of Python and
C.
"""

from __future__ import annotations

import numpy as np
import torch

import ingot
from ingot import ops


@torch.library.custom_op("example::squareplus", mutates_args=())
def squareplus(x: torch.Tensor, b: float) -> torch.Tensor:
    return (x + torch.sqrt(x * x + b)) / 2


squareplus.register_fake(lambda x, b: torch.empty_like(x))

ingot.register_op(
    "squareplus",
    infer=lambda x, b: x,
    reference=lambda x, b: (x + np.sqrt(x * x + b)) / 2,
    lower=lambda x, b: ops.mul(ops.add(x, ops.Sqrt()(ops.add(ops.mul(x, x), b))), 0.5),
    torch="example::squareplus",
    samples=[(np.linspace(-3, 3, 7, dtype=np.float32),)],
    sample_attributes={"b": 4.0},
)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return squareplus(self.layer(x), 4.0)


def run() -> tuple[torch.Tensor, torch.Tensor]:
    """What Ingot and PyTorch give."""
    net, x = Net().eval(), torch.randn(5, 16)
    compiled = ingot.compile(net, (x,))
    print(compiled.explain(x))  # the op is in the product's kernel
    with torch.no_grad():
        return compiled(x), net(x)


if __name__ == "__main__":
    torch.testing.assert_close(*run())
    print("as PyTorch")
