"""Models of `diffusers` through torch.compile: schedulers that remove noise, gradients of an autoencoder."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]


@pytest.fixture
def diffusers(monkeypatch: pytest.MonkeyPatch) -> Any:
    if "torchvision" not in sys.modules:  # one of another PyTorch fails at import
        monkeypatch.setitem(sys.modules, "torchvision", None)
    return pytest.importorskip("diffusers")


def _denoised(unet: Any, scheduler: Any) -> Any:
    """Three steps with guidance, from the same noise each time."""
    generator, dtype = torch.Generator().manual_seed(0), unet.dtype
    x = torch.randn(1, 4, 8, 8, generator=generator).to(dtype) * scheduler.init_noise_sigma
    text = torch.randn(2, 5, 8, generator=generator).to(dtype)
    for time in scheduler.timesteps:
        y = scheduler.scale_model_input(torch.cat([x, x]), time)
        blind, seeing = unet(y, time, encoder_hidden_states=text).sample.chunk(2)
        x = scheduler.step(blind + 5 * (seeing - blind), time, x).prev_sample
    return x


def test_a_loop_of_a_compiled_unet(diffusers: Any) -> None:
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8,), norm_num_groups=4,
        down_block_types=("CrossAttnDownBlock2D",), up_block_types=("CrossAttnUpBlock2D",), cross_attention_dim=8,
        attention_head_dim=4,
    )  # fmt: skip
    unet = unet.eval().requires_grad_(False)
    nets = (copy.deepcopy(unet).double(), unet, torch.compile(unet, backend="ingot", fullgraph=True))
    for name in ("DDIMScheduler", "DPMSolverMultistepScheduler"):
        results: list[Any] = []
        for net in nets:
            scheduler = getattr(diffusers, name)(beta_schedule="scaled_linear")
            scheduler.set_timesteps(3)
            results.append(_denoised(net, scheduler).double())
        exact, eager, compiled = results
        errors = [float((y - exact).abs().max()) for y in (eager, compiled)]
        assert errors[1] < max(4 * errors[0], 1e-6 * float(exact.abs().max())), (name, errors)


def _gradients(net: Any, dtype: Any, *, is_compiled: bool) -> dict[str, Any]:
    net = copy.deepcopy(net).to(dtype)
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    y = (torch.compile(net, backend="ingot", fullgraph=True) if is_compiled else net)(x).sample
    ((y - x) ** 2).mean().backward()
    return {name: p.grad.double() for name, p in net.named_parameters()}


def test_gradients_of_an_autoencoder(diffusers: Any) -> None:
    """As near to those in float64 as eager PyTorch's. Those of the keys' biases are 0 but for rounding, as the softmax
    of scores that all change by the same stays as it is: between two float32 results they differ by any factor."""
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, sample_size=16,
        block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
    )  # fmt: skip
    exact = _gradients(vae, torch.float64, is_compiled=False)
    eager, compiled = (_gradients(vae, torch.float32, is_compiled=is_compiled) for is_compiled in (False, True))
    assert compiled.keys() == exact.keys()
    for name, gradient in exact.items():
        scale = float(gradient.abs().max())
        errors = [float((g[name] - gradient).abs().max()) for g in (eager, compiled)]
        if name.endswith("to_k.bias"):
            assert scale < 1e-15 and max(errors) < 1e-8
        else:
            assert errors[1] < max(4 * errors[0], 1e-5 * scale), name
