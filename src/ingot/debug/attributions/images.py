"""Images as inputs of a model, and arrays as images, by pillow."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np

from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.program import TensorSpec
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.support.files import open_regular

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class ImageAxes:
    """The axis of an image's channels, not counting the batch, and their number."""

    first: bool
    channels: int


def image_axes(shape: Sequence[object]) -> ImageAxes | None:
    """Of the shape of one example, [3, H, W] or [H, W, 3]; None if it does not look like an image."""
    if len(shape) != 3:
        return None
    candidates = [
        (channels, first) for channels, first in ((shape[0], True), (shape[2], False)) if channels in _CHANNELS
    ]
    if not candidates:
        return None
    channels, first = min(candidates, key=lambda c: c[0] == 4)  # an axis of 4 is more often a side than RGBA
    return ImageAxes(first, cast(int, channels))


def _pillow(what: str) -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(f"{what} needs pillow", fix="pip install 'ingot-compiler[images]'") from error
    return Image


def read_image(path: Path, spec: TensorSpec, mean: Sequence[float] = (), std: Sequence[float] = ()) -> np.ndarray:
    """The image in a file as an input [1, ...] of a model, resized to its height and width where these are fixed.

    Bytes stay as they are; floats are pixels / 255, less `mean`, over `std` of each channel. Raises InputError for a
    file that holds no image, an input that is none, and numbers that do not fit.
    """
    axes = image_axes(spec.shape[1:])
    if axes is None or not (spec.dtype == "u8" or spec.dtype[0] in "fb"):
        raise InputError(
            f"an image for {spec}", expected="an input [N, C, H, W] or [N, H, W, C] with 1, 3 or 4 channels"
        )
    for name, values in (("--mean", mean), ("--std", std)):
        if (
            len(values) not in (0, 1, axes.channels)
            or not np.isfinite(values).all()
            or (name == "--std" and 0 in values)
        ):
            count = "1 number" if axes.channels == 1 else f"1 or {axes.channels} numbers"
            what = f"{count}, none of them 0" if name == "--std" else count
            raise InputError(name, expected=f"{what}, for {spec}", got=list(values))
    library = _pillow(f"the image {path}")
    try:
        with open_regular(path) as file, library.open(file, formats=_FORMATS) as image:
            sides = spec.shape[2:] if axes.first else spec.shape[1:3]
            own_sides = zip(sides, image.size[::-1], strict=True)
            height, width = (side if isinstance(side, int) else image_side for side, image_side in own_sides)
            pixels = np.asarray(image.convert(_CHANNELS[axes.channels]).resize((width, height)))
    except library.DecompressionBombError as error:
        raise InputError(f"the image {path}", expected="an honest size", got=str(error)) from error
    except (OSError, SyntaxError, ValueError) as error:
        is_damaged = not isinstance(error, OSError) or error.strerror is None  # pillow's errors have no number
        got = "a file that is damaged or no image" if is_damaged else error.strerror
        raise InputError(f"cannot read {path}", expected="an image", got=got) from error
    pixels = pixels.reshape(height, width, axes.channels)
    if spec.dtype != "u8":
        pixels = (pixels / 255 - np.asarray(mean or 0)) / np.asarray(std or 1)
    pixels = pixels.transpose(2, 0, 1) if axes.first else pixels
    return np.ascontiguousarray(pixels[None].astype(numpy_dtype(spec.dtype)))


def as_pixels(example: np.ndarray, axes: ImageAxes) -> np.ndarray:
    """An example as bytes [H, W, 3]: its smallest value black, its largest white."""
    image = (example.transpose(1, 2, 0) if axes.first else example).astype(np.float64)[..., :3]
    finite = np.nan_to_num(image, nan=0, posinf=0, neginf=0)
    low, high = (finite.min(), finite.max()) if finite.size else (0, 1)
    scaled = (finite - low) / ((high - low) or 1)
    return np.broadcast_to((scaled * 255).round().astype(np.uint8), (*image.shape[:2], 3))


def data_uri(pixels: np.ndarray) -> str:
    """Bytes [H, W, 3 or 4] as a PNG in a URI."""
    file = io.BytesIO()
    _pillow("a page with images").fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
