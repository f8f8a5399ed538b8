"""On a machine with an NVIDIA GPU: the joules of a call of ResNet-50 through `target="cuda"`, float16 and float32.

    python -m benchmarks.gpu.energy [--batch 32] [--windows 5] [--seconds 90] [--report report.json]

Each type: windows of at least 3 s by the GPU's counter, two of rest around them; then float16 from two threads. What
does not fit into --seconds is left out, and named.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path

import torch
from torch import nn

import ingot
from benchmarks.gpu.models import varied
from ingot.runtime import device
from ingot.support.energy.measure import MIN_SECONDS, Energy

RESTS = 2  # windows without calls
TOLERANCE = {"float16": 2e-3, "float32": 1e-4}  # of the largest magnitude


def _norm_after(conv: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.layers = nn.Sequential(
            _norm_after(nn.Conv2d(channels, width, 1, bias=False)),
            nn.ReLU(),
            _norm_after(nn.Conv2d(width, width, 3, stride, 1, bias=False)),
            nn.ReLU(),
            _norm_after(nn.Conv2d(width, out, 1, bias=False)),
        )
        is_same = stride == 1 and channels == out
        self.skip = nn.Identity() if is_same else _norm_after(nn.Conv2d(channels, out, 1, stride, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(x) + self.skip(x))


def resnet50() -> nn.Module:
    """He et al. 2015, with strides in the 3x3 convolutions; random weights."""
    layers: list[nn.Module] = [_norm_after(nn.Conv2d(3, 64, 7, 2, 3, bias=False)), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for number, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << number
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if number and not block else 1))
            channels = 4 * width
    return varied(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))).eval()


def facts(energy: Energy, dtype: str, batch: int, streams: int) -> dict[str, object]:
    row: dict[str, object] = {"dtype": dtype, "batch": batch, "streams": streams, "ms": 1e3 * energy.seconds}
    for c in energy.counters:
        row[c.name] = {"joules": c.joules, "spread": c.spread, "idle_watts": c.idle_watts, "idle_joules": c.idle_joules}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=90, help="for all")
    parser.add_argument("--report", type=Path)
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    gpu = asked.target.partition(":")[0] == "cuda"
    rows: list[dict[str, object]] = []
    joules: dict[str, float] = {}
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # float32 is compared with float32
    net, x = resnet50(), torch.randn(asked.batch, 3, 224, 224)
    for dtype, streams in (("float16", 1), ("float32", 1), ("float16", 2)):
        if streams > 1 or dtype == "float32":
            needed = (asked.windows + RESTS) * (MIN_SECONDS + 0.3) + (0 if streams > 1 else 5)
            if time.monotonic() + needed > end:
                print(f"left out: {dtype}, {streams} streams: {needed:.0f} s are needed", flush=True)
                continue
        kind = getattr(torch, dtype)
        own, image = copy.deepcopy(net).to(kind), x.to(kind)
        begin = time.monotonic()
        model = ingot.compile(own, (image,), target=asked.target)
        compile_seconds = time.monotonic() - begin
        if gpu:
            own, image = own.cuda(), image.cuda()
        with torch.no_grad():
            got, want = model(image).float(), own(image).float()
        deviation = ((got - want).abs().max() / want.abs().max()).item()
        assert want.std() > 1e-3 and deviation < TOLERANCE[dtype], deviation
        devices = {model.program.device}
        energy = device.energy_of(lambda model=model, image=image: model(image), devices, asked.windows, streams)
        print(f"ResNet-50, batch {asked.batch}, {dtype}, {streams} streams; compiled in {compile_seconds:.1f} s, "
              f"{deviation:.1e} from eager\n{energy}", flush=True)  # fmt: skip
        rows.append(facts(energy, dtype, asked.batch, streams))
        if energy.joules and streams == 1:
            joules[dtype] = energy.joules
    if len(joules) == 2:
        print(f"float32 takes {joules['float32'] / joules['float16']:.2f}x the energy of float16")
    if asked.report:
        asked.report.write_text(json.dumps(rows))
    return 0 if rows else 1


if __name__ == "__main__":
    raise SystemExit(main())
