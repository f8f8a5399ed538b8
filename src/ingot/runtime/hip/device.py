"""AMD's GPUs as a device: what `runtime/cuda` does, by another driver library."""

from __future__ import annotations

from ingot.runtime.cuda.device import CudaDevice, Loaded
from ingot.runtime.hip.library import hip_driver
from ingot.runtime.program import Program
from ingot.support.errors import ArtifactError, DeviceError
from ingot.support.native import Features


class HipDevice(CudaDevice):
    """See `ingot.runtime.device.Device`."""

    name = "hip"

    def refusal(self, needs: Features) -> ArtifactError | None:
        archs = (needs.arch, *needs.features)
        try:
            arch = hip_driver().arch
        except DeviceError as error:
            return ArtifactError(f"the program is for AMD GPUs ({', '.join(archs)}), and there is none here: {error}")
        if arch in archs:
            return None
        return ArtifactError(
            "the program was compiled for other GPUs", expected=", ".join(archs), got=arch,
            fix=f"compile with target='hip:{arch}'",
        )  # fmt: skip

    def load(self, program: Program, threads: int | None, device_memory: int | None = None) -> Loaded:
        self.check_memory(device_memory)
        driver = hip_driver()
        return Loaded(program, device_memory, driver, driver.arch)


DEVICE = HipDevice()
