"""A machine with energy counters and a clock of its own, under a folder in place of /sys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


def _replace(path: Path, text: str) -> None:
    """As a file of /sys, which is never empty for a thread that reads it."""
    written = path.with_name(f"{path.name}.written")
    written.write_text(text)
    written.replace(path)


@dataclass
class Machine:
    """Time goes on by `sleep` and by calls; counters follow its power, in steps of `step` seconds."""

    sysfs: Path
    idle_watts: float = 10.0
    busy_watts: float = 40.0
    step: float = 0.0
    time: float = 0.0
    joules: float = 0.0
    writers: list[Callable[[Machine], None]] = field(default_factory=list)
    written_at: float = 0.0  # when the counters were last written

    def clock(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.advance(seconds, self.idle_watts)

    def advance(self, seconds: float, watts: float) -> None:
        """In pieces that end where the counters make a step."""
        while seconds > 0:
            piece = seconds
            if self.step:
                piece = min(seconds, max(1e-9, self.written_at + self.step - self.time))
            self.time += piece
            self.joules += piece * watts
            seconds -= piece
            if not self.step or self.time >= self.written_at + self.step - 1e-12:
                self.written_at = self.time
                for write in self.writers:
                    write(self)

    def window(self, call_seconds: float) -> Callable[[float], int]:
        def run(seconds: float) -> int:
            end, calls = self.time + seconds, 0
            while not calls or self.time < end:
                self.advance(call_seconds, self.busy_watts)
                calls += 1
            return calls

        return run

    def zone(self, name: str, label: str, limit: int = 1 << 40, share: float = 1.0, first: int = 0) -> Path:
        """A RAPL zone that counts a share of the machine's energy."""
        folder = self.sysfs / "class/powercap" / name
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{label}\n")
        (folder / "max_energy_range_uj").write_text(f"{limit}\n")

        def write(machine: Machine) -> None:
            _replace(folder / "energy_uj", f"{(first + round(machine.joules * share * 1e6)) % limit}\n")

        write(self)
        self.writers.append(write)
        return folder / "energy_uj"

    def sensor(self, chip: str, **files: object) -> Path:
        folder = self.sysfs / "class/hwmon" / chip
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / name).write_text(f"{value}\n")
        return folder
