"""NVIDIA's management library through ctypes: what reading a GPU's energy counter needs.

See the NVML API reference for each function.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p

LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96


class NvmlError(Exception):
    """In the library's own words."""


class Nvml:
    """The library, initialized. Raises OSError where it is not installed, NvmlError without a driver."""

    def __init__(self, path: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(path)
        self._library.nvmlErrorString.restype = c_char_p
        self._library.nvmlErrorString.argtypes = [c_int]
        self._call("nvmlInit_v2")

    def device(self, bus_id: str) -> int:
        """The handle of the GPU with a PCI bus id, "0000:17:00.0"."""
        handle = c_void_p()
        self._call("nvmlDeviceGetHandleByPciBusId_v2", c_char_p(bus_id.encode()), byref(handle))
        return handle.value or 0

    def name(self, device: int) -> str:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("nvmlDeviceGetName", c_void_p(device), text, c_uint(_NAME_BYTES))
        return text.value.decode(errors="replace")

    def millijoules(self, device: int) -> int:
        """Since the driver was loaded."""
        energy = c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", c_void_p(device), byref(energy))
        return energy.value

    def _call(self, function: str, *args: object) -> None:
        try:
            code = getattr(self._library, function)(*args)
        except AttributeError as error:
            raise NvmlError(f"the driver is too old: it has no {function}") from error
        if code:
            raise NvmlError((self._library.nvmlErrorString(code) or b"an unknown error").decode(errors="replace"))
