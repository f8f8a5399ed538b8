"""TorchScript archives. They are read in a process of their own, as they hold code that torch compiles and pickles:
with bounded memory and time, and nothing of them but plain data comes back.

    model.pt  ->  [ torch.jit.load, extract ]  ->  JSON and tensors  ->  Program
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ingot.frontends.torch.script.graph import Program, read
from ingot.support.errors import ImportModelError

_SECONDS = 300
_MEMORY = 16 << 30  # of addresses: torch alone takes a few GB
_LARGEST_RATIO = 16  # of an archive's contents to its size: torch stores them as they are
_BOOT = "from ingot.frontends.torch.script.archive import main; main()"


def load(path: Path) -> Program:
    """Raises ImportModelError for an archive that torch does not read, or not within bounds."""
    _check_size(path)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-c", _BOOT, os.path.realpath(path), folder]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired as e:
            raise ImportModelError(
                "reading a TorchScript archive takes too long", expected=f"at most {_SECONDS} s", where=str(path)
            ) from e
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise ImportModelError(f"not a readable TorchScript archive: {lines[-1][:2000]}", where=str(path))
        return read(Path(folder))


def _check_size(path: Path) -> None:
    """Raise ImportModelError for an archive that unpacks to far more than it is."""
    try:
        with zipfile.ZipFile(path) as archive:
            whole = sum(i.file_size for i in archive.infolist())
        size = path.stat().st_size
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as e:
        raise ImportModelError(f"not a readable archive: {e}", where=str(path)) from e
    if whole > _LARGEST_RATIO * size + (1 << 20):
        what = "an archive unpacks to too much"
        raise ImportModelError(what, expected=f"about {size} bytes", got=whole, where=str(path))


def main() -> None:
    """In the process: argv is the archive and a folder for what was in it."""
    import resource

    path, folder = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    size = os.path.getsize(path)
    memory = _MEMORY + 4 * size
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    most = _LARGEST_RATIO * size + (64 << 20)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    import torch

    from ingot.frontends.torch.script.extract import extract
    from ingot.frontends.torch.script.graph import write

    torch.set_num_threads(1)
    try:
        module = torch.jit.load(path, map_location="cpu")
        write(extract(module), Path(folder))
    except Exception as e:  # torch's own errors are of many kinds; the caller gets the last line
        text = str(e).strip().replace("\n", " ")
        sys.stderr.write(f"\n{text}\n")
        raise SystemExit(1) from None
