"""Image networks: timm's by name, torch-only ones (U-Net, generators, 3-D convolution), transformers' vision towers."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.models.base import Net, finish, generator, library


def images(channels: int, size: tuple[int, ...]):
    def make(batch: int, length: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch, channels, *size, generator=generator(7)),)

    return make


def image_net(module: nn.Module, channels: int, size: tuple[int, ...]) -> Net:
    make = images(channels, size)
    return Net(finish(module, make(4, 0)), make, ("image",), ({0: "batch"},))


def timm_model(arch: str) -> Net:
    timm = library("timm")
    torch.manual_seed(0)
    module = timm.create_model(arch, pretrained=False)
    channels, height, width = timm.data.resolve_data_config({}, model=module)["input_size"]
    return image_net(module, channels, (height, width))


class DoubleConv(nn.Sequential):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__(
            nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
        )  # fmt: skip


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015), 'same' padding, BatchNorm: image (N, 3, H, W) -> logits (N, 2, H, W).

    H and W are multiples of 16. `transposed` picks transposed convolutions (else bilinear resize) for the way up.
    """

    def __init__(self, width: int = 32, transposed: bool = True) -> None:
        super().__init__()
        widths = [width << i for i in range(5)]
        self.stem = DoubleConv(3, widths[0])
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in pairs)
        self.pool = nn.MaxPool2d(2)
        if transposed:
            self.rise = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in reversed(pairs))
        else:
            self.rise = nn.ModuleList(
                nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), nn.Conv2d(b, a, 1))
                for a, b in reversed(pairs)
            )
        self.up = nn.ModuleList(DoubleConv(2 * a, a) for a, _ in reversed(pairs))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(self.pool(x))
        for rise, up, skip in zip(self.rise, self.up, reversed(skips), strict=True):
            x = up(torch.cat([skip, rise(x)], dim=1))
        return self.head(x)


def unet(transposed: bool = True) -> Net:
    torch.manual_seed(0)
    return image_net(UNet(transposed=transposed), 3, (192, 192))


class Generator(nn.Sequential):
    """DCGAN's generator (Radford et al. 2015): latent (N, 100, 1, 1) -> image (N, 3, 64, 64)."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        widths = (100, 512, 256, 128, 64)
        for i, (inner, outer) in enumerate(pairwise(widths)):
            stride, padding = (1, 0) if i == 0 else (2, 1)
            layers += [nn.ConvTranspose2d(inner, outer, 4, stride, padding, bias=False), nn.BatchNorm2d(outer)]
            layers.append(nn.ReLU())
        super().__init__(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


def dcgan() -> Net:
    torch.manual_seed(0)
    return image_net(Generator(), 100, (1, 1))


class Video(nn.Sequential):
    """A small C3D (Tran et al. 2015): clip (N, 3, 8, 56, 56) -> logits (N, 10)."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv3d(3, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(), nn.MaxPool3d((1, 2, 2)),
            nn.Conv3d(32, 64, 3, padding=1), nn.BatchNorm3d(64), nn.ReLU(), nn.MaxPool3d(2),
            nn.Conv3d(64, 128, 3, padding=1, groups=2), nn.BatchNorm3d(128), nn.ReLU(),
            nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip


def c3d() -> Net:
    torch.manual_seed(0)
    return image_net(Video(), 3, (8, 56, 56))


class SuperResolution(nn.Module):
    """ESPCN (Shi et al. 2016) with a bicubic skip: image (N, 1, 64, 64) -> (N, 1, 192, 192)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 64, 5, padding=2), nn.PReLU(64),
            nn.Conv2d(64, 64, 3, padding=1), nn.InstanceNorm2d(64, affine=True), nn.PReLU(64),
            nn.Conv2d(64, 32, 3, padding=2, dilation=2, padding_mode="reflect"), nn.GroupNorm(4, 32), nn.SiLU(),
            nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3),
        )  # fmt: skip

    def forward(self, image: Tensor) -> Tensor:
        skip = nn.functional.interpolate(image, scale_factor=3.0, mode="bicubic", align_corners=False)
        return skip + self.body(image)


def espcn() -> Net:
    torch.manual_seed(0)
    return image_net(SuperResolution(), 1, (64, 64))


class Field(nn.Module):
    """Picks one field of a transformers output and fixes the keyword arguments."""

    def __init__(self, module: nn.Module, field: str) -> None:
        super().__init__()
        self.module, self.field = module, field

    def forward(self, image: Tensor) -> Tensor:
        return getattr(self.module(pixel_values=image), self.field)


def hf_vision(config: str, arch: str, field: str, size: int = 224, **options: object) -> Net:
    """A transformers vision model from its default configuration, `options` changed."""
    transformers = library("transformers")
    torch.manual_seed(0)
    module = getattr(transformers, arch)(getattr(transformers, config)(**options))
    return image_net(Field(module, field), 3, (size, size))
