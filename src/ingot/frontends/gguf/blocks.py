"""The block formats of ggml: a row of a tensor is cut into blocks, all of the same number of elements and bytes.

    weight = (level - zero) * scale + minimum

Levels are integers of few bits. A group of elements shares a scale and, in some formats, a minimum; a block has one
group, or the "K" formats' 8 or 16. `FORMATS` has a record for each format, in the numbering of ggml_type. Blocks are
uint8[n, bytes]. Formats of lookup tables (IQ*) are only named, so that they can be refused by name.

Source: ggml-quants.c and ggml-common.h of https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from types import MappingProxyType

import ml_dtypes
import numpy as np

from ingot.ir.types import DType, i8, u4, u8
from ingot.support.dataclass import dataclass

SUPERBLOCK = 256  # elements of a block of the K formats and the ternary ones
_CHUNK_BLOCKS = 1 << 15  # blocks that are decoded at once, so that temporary arrays stay small
Factors = tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]


@dataclass(frozen=True)
class BlockFormat:
    """levels: the type of the integers, None for a format of plain numbers. bits: the number of bits that they use.
    group: elements that share a scale. zero: the level of 0. unpack: uint8[n, bytes] -> levels[n, elements].
    scales: uint8[n, bytes] -> the factors of the scale, and those of the minimum where the format has one, each
    [n, groups], or [n, 1] of all groups of a block; a scale is their product in float32.
    """

    name: str
    code: int
    nbytes: int
    elements: int
    group: int
    levels: DType | None
    bits: int
    zero: int
    unpack: Callable[[np.ndarray], np.ndarray]
    scales: Callable[[np.ndarray], Factors]

    def bytes_of(self, elements: int) -> int:
        """The size in bytes of a number of elements, which are whole blocks."""
        return elements // self.elements * self.nbytes

    def decode_levels(self, blocks: np.ndarray) -> np.ndarray:
        """uint8[n, bytes] -> levels[n, elements], of the numpy type of `levels`."""
        assert self.levels is not None
        storage = np.dtype(np.int8 if self.levels.kind == "i" else np.uint8)
        return _chunked(self.unpack, blocks, self.elements, storage).view(self.levels.numpy)

    def dequantize(self, blocks: np.ndarray) -> np.ndarray:
        """uint8[n, bytes] -> f32[n, elements], bit for bit as ggml computes it."""
        return _chunked(self._dequantize, blocks, self.elements, np.dtype(np.float32))

    def _dequantize(self, blocks: np.ndarray) -> np.ndarray:
        values = self.unpack(blocks)
        if self.levels is None:
            return values.astype(np.float32)
        grouped = values.astype(np.float32).reshape(len(blocks), -1, self.group) - np.float32(self.zero)
        with np.errstate(all="ignore"):  # a damaged block may hold infinities
            terms = [
                reduce(np.multiply, (x.astype(np.float32) for x in group_factors))
                for group_factors in self.scales(blocks)
                if group_factors
            ]
            scaled_levels = grouped * terms[0][..., None]
            return (scaled_levels if len(terms) == 1 else scaled_levels + terms[1][..., None]).reshape(len(blocks), -1)


def _chunked(decode: Callable[[np.ndarray], np.ndarray], blocks: np.ndarray, width: int, dtype: np.dtype) -> np.ndarray:
    decoded = np.empty((len(blocks), width), dtype)
    step = max(1, _CHUNK_BLOCKS * 32 // width)
    for i in range(0, len(blocks), step):
        decoded[i : i + step] = decode(blocks[i : i + step])
    return decoded


# --- fields of bits


def _dense(fields: np.ndarray) -> np.ndarray:
    """uint8[n, k], contiguous: rows are copied as wholes."""
    if fields.shape[1] < 8:
        return np.ascontiguousarray(fields)
    rows = fields.view(np.dtype((np.void, fields.shape[1])))
    return np.ascontiguousarray(rows).view(np.uint8).reshape(fields.shape)


def _float16(field: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(field.view(np.float16))


def _fields(packed: np.ndarray, bits: int, line: int) -> np.ndarray:
    """Unsigned fields of `bits` bits: those in the lowest bits of `line` bytes, then those above them, and so on."""
    packed = _dense(packed)
    # eight bytes at once: what a shift moves across bytes is masked out
    word = np.dtype(np.uint64 if packed.shape[1] % 8 == 0 else np.uint8)
    mask = word.type(((1 << bits) - 1) * (0x0101010101010101 if word.itemsize == 8 else 1))
    words, lines = packed.view(word), np.dtype((np.void, line))  # lines are copied as wholes
    unpacked = np.empty((len(packed), packed.shape[1] // line, 8 // bits, line), np.uint8)
    by_shift = unpacked.view(lines)[..., 0]
    for i, shift in enumerate(range(0, 8, bits)):
        fields = words >> word.type(shift) if shift else words.copy()
        fields &= mask
        by_shift[:, :, i] = fields.view(np.uint8).view(lines)
    return unpacked.reshape(len(packed), -1)


def _bits(packed: np.ndarray) -> np.ndarray:
    """uint8[n, k] -> uint8[n, 8 k], the lowest bit of a byte first."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little")


def _signed(levels: np.ndarray, zero: int) -> np.ndarray:
    return levels.view(np.int8) - np.int8(zero)


# --- formats with a scale for each block of 32


def _scale_at(start: int) -> Callable[[np.ndarray], Factors]:
    """A scale in float16 at byte `start`."""
    return lambda b: ((_float16(b[:, start : start + 2]),), ())


def _scale_and_minimum(b: np.ndarray) -> Factors:
    return (_float16(b[:, :2]),), (_float16(b[:, 2:4]),)


def _five_bits(b: np.ndarray, start: int) -> np.ndarray:
    """32 levels of 5 bits: their high bits in 4 bytes, then their low bits in 16."""
    return _fields(b[:, start + 4 :], 4, 16) | _bits(b[:, start : start + 4]) << 4


# twice the numbers of an e2m1 float, by its code
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def _half_power(b: np.ndarray) -> Factors:
    """Half of the power of two whose biased exponent is the first byte."""
    exponent = b[:, :1].astype(np.uint32)
    bits = np.where(exponent < 2, np.uint32(0x00200000) << np.minimum(exponent, 1), (exponent - 1) << 23)
    return (bits.astype(np.uint32).view(np.float32),), ()


# --- formats of 256 elements


def _six_bits(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """12 bytes -> 8 scales and 8 minima of 6 bits, of Q4_K and Q5_K."""
    low, high, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, (rest & 15) | (low >> 2) & 0x30], axis=-1)
    return scales, np.concatenate([high & 63, (rest >> 4) | (high >> 2) & 0x30], axis=-1)


def _scales_q2(b: np.ndarray) -> Factors:
    packed = b[:, :16]
    return (packed & 15, _float16(b[:, 80:82])), (packed >> 4, -_float16(b[:, 82:84]))


def _levels_q3(b: np.ndarray) -> np.ndarray:
    """2 low bits, and one above them."""
    return _fields(b[:, 32:96], 2, 32) | _fields(b[:, :32], 1, 32) << 2


def _scales_q3(b: np.ndarray) -> Factors:
    six = _fields(b[:, 96:104], 4, 8) | _fields(b[:, 104:108], 2, 4) << 4
    return (_signed(six, 32), _float16(b[:, 108:110])), ()


def _scales_q45(b: np.ndarray) -> Factors:
    scales, minima = _six_bits(b[:, 4:16])
    return (scales, _float16(b[:, :2])), (minima, -_float16(b[:, 2:4]))


def _levels_q5(b: np.ndarray) -> np.ndarray:
    return _fields(b[:, 48:], 4, 32) | _fields(b[:, 16:48], 1, 32) << 4


def _levels_q6(b: np.ndarray) -> np.ndarray:
    return _signed(_fields(b[:, :128], 4, 64) | _fields(b[:, 128:192], 2, 32) << 4, 32)


def _scales_q6(b: np.ndarray) -> Factors:
    return (np.ascontiguousarray(b[:, 192:208]).view(np.int8), _float16(b[:, 208:210])), ()


def _digits(packed: np.ndarray, count: int) -> np.ndarray:
    """The first `count` ternary digits of each byte, a line for each place: a byte is a fraction of 256."""
    powers = np.array([1, 3, 9, 27, 81][:count], np.uint8)[:, None]
    fractions = packed[:, None] * powers  # modulo 256
    return (fractions.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(packed), -1)


def _levels_tq1(b: np.ndarray) -> np.ndarray:
    return np.concatenate([_digits(b[:, :32], 5), _digits(b[:, 32:48], 5), _digits(b[:, 48:52], 4)], axis=-1)


# --- the table


def _plain(name: str, code: int, dtype: np.dtype | type) -> BlockFormat:
    """Plain numbers."""
    dtype = np.dtype(dtype)
    return BlockFormat(
        name, code, dtype.itemsize, 1, 1, None, 0, 0, lambda b: np.ascontiguousarray(b).view(dtype), _no_scales
    )


def _no_scales(b: np.ndarray) -> Factors:
    raise AssertionError("plain numbers have no scales")


_RECORDS = (
    _plain("F32", 0, np.float32),
    _plain("F16", 1, np.float16),
    BlockFormat("Q4_0", 2, 18, 32, 32, u4, 4, 8, lambda b: _fields(b[:, 2:], 4, 16), _scale_at(0)),
    BlockFormat("Q4_1", 3, 20, 32, 32, u4, 4, 0, lambda b: _fields(b[:, 4:], 4, 16), _scale_and_minimum),
    BlockFormat("Q5_0", 6, 22, 32, 32, i8, 5, 0, lambda b: _signed(_five_bits(b, 2), 16), _scale_at(0)),
    BlockFormat("Q5_1", 7, 24, 32, 32, u8, 5, 0, lambda b: _five_bits(b, 4), _scale_and_minimum),
    BlockFormat("Q8_0", 8, 34, 32, 32, i8, 8, 0, lambda b: _dense(b[:, 2:]).view(np.int8), _scale_at(0)),
    BlockFormat("Q2_K", 10, 84, SUPERBLOCK, 16, u4, 2, 0, lambda b: _fields(b[:, 16:80], 2, 32), _scales_q2),
    BlockFormat("Q3_K", 11, 110, SUPERBLOCK, 16, u4, 3, 4, _levels_q3, _scales_q3),
    BlockFormat("Q4_K", 12, 144, SUPERBLOCK, 32, u4, 4, 0, lambda b: _fields(b[:, 16:], 4, 32), _scales_q45),
    BlockFormat("Q5_K", 13, 176, SUPERBLOCK, 32, u8, 5, 0, _levels_q5, _scales_q45),
    BlockFormat("Q6_K", 14, 210, SUPERBLOCK, 16, i8, 6, 0, _levels_q6, _scales_q6),
    _plain("I8", 24, np.int8),
    _plain("I16", 25, np.int16),
    _plain("I32", 26, np.int32),
    _plain("I64", 27, np.int64),
    _plain("F64", 28, np.float64),
    _plain("BF16", 30, ml_dtypes.bfloat16),
    BlockFormat("TQ1_0", 34, 54, SUPERBLOCK, SUPERBLOCK, u4, 2, 1, _levels_tq1, _scale_at(52)),
    BlockFormat("TQ2_0", 35, 66, SUPERBLOCK, SUPERBLOCK, u4, 2, 1, lambda b: _fields(b[:, :64], 2, 32), _scale_at(64)),
    # doubled e2m1 values from -12 to 12 need 5 bits as integers
    BlockFormat("MXFP4", 39, 17, 32, 32, i8, 5, 0, lambda b: _E2M1[_fields(b[:, 1:], 4, 16)], _half_power),
)
FORMATS: Mapping[int, BlockFormat] = MappingProxyType({f.code: f for f in _RECORDS})
# formats that are refused by name
UNREAD: Mapping[int, str] = MappingProxyType(
    {
        9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
        22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 40: "NVFP4", 41: "Q1_0",
    }
)  # fmt: skip
