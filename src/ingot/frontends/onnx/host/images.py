"""Encoded images as pixels, by pillow."""

from __future__ import annotations

import io

import numpy as np

from ingot.frontends.onnx.host.node import HostNode, Kind, host_op
from ingot.support.errors import InputError

_FORMATS = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")


@host_op("ImageDecoder", kind=Kind.ALWAYS, string_results=set())
def image_decoder(n: HostNode, encoded: np.ndarray) -> np.ndarray:
    """u8[height,width,channels]; empty where the stream is no image of the formats that ONNX names.

    Raises InputError without pillow, and for an image above pillow's limit on pixels (a decompression bomb).
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as e:
        raise InputError(f"{n.where} needs pillow", fix="pip install 'ingot-compiler[images]'") from e
    mode = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}.get(n.attr("pixel_format", "RGB"))
    if mode is None:
        raise n.fail("pixel_format RGB, BGR or Grayscale", n.attr("pixel_format"))
    channels = 1 if mode == "L" else 3
    try:
        with Image.open(io.BytesIO(encoded.astype(np.uint8).tobytes()), formats=_FORMATS) as image:
            pixels = np.asarray(image.convert(mode), np.uint8)
    except Image.DecompressionBombError as e:
        raise n.fail("an image of an honest size", e) from e
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        return np.zeros((0, 0, channels), np.uint8)
    pixels = pixels.reshape(*pixels.shape[:2], channels)
    return np.ascontiguousarray(pixels[..., ::-1]) if n.attr("pixel_format", "RGB") == "BGR" else pixels
