"""TorchScript archives. They contain code that torch compiles, and pickles, so they are read in a separate process with
bounded memory and time, which returns only plain data.

    model.pt  ->  [ torch.jit.load, extract ]  ->  JSON and tensors  ->  Program
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path

from ingot.frontends.shared.subprocesses import limit_resources, run_in_subprocess
from ingot.frontends.torch.script.graph import Program, read
from ingot.support.errors import ImportModelError, IngotError, UnsupportedOp, UnsupportedOpError

_READER_SECONDS = 300
_READER_MEMORY_BYTES = 16 << 30  # of address space: torch alone takes a few GB
_MAX_MEMORY_RATIO = 16  # of an archive's unpacked size to its file size: torch stores contents uncompressed
_REPORT_FILE = "refused.json"
_READER_CODE = "from ingot.frontends.torch.script.archive import main; main()"


def load(path: Path) -> Program:
    """Raises as `extract` does, and ImportModelError for an archive that torch cannot read within the limits."""
    _check_size(path)
    with tempfile.TemporaryDirectory() as folder:
        arguments, env = [os.path.realpath(path), folder], {"OMP_NUM_THREADS": "1"}
        run_in_subprocess(_READER_CODE, arguments, "not a readable TorchScript archive", str(path), env=env)
        _raise_refused(Path(folder) / _REPORT_FILE, path)
        return read(Path(folder))


def _raise_refused(report: Path, path: Path) -> None:
    """Raise the error that the process reported for an archive that torch reads and Ingot refuses."""
    if not report.exists():
        return
    what, refused = json.loads(report.read_text())
    if refused:
        raise UnsupportedOpError([UnsupportedOp(*map(str, op)) for op in refused], model=str(path))
    raise ImportModelError(what, where=str(path))


def _check_size(path: Path) -> None:
    """Raise ImportModelError for an archive that unpacks to far more than its size."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked_size = sum(i.file_size for i in archive.infolist())
            code = (archive.read(i) for i in archive.infolist() if i.filename.endswith(".py") and i.file_size < 1 << 24)
            optimized = any(b"prim.ConstantMKLDNNTensor" in text for text in code)
        size = path.stat().st_size
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as e:
        raise ImportModelError(f"not a readable archive: {e}", where=str(path)) from e
    if optimized:
        raise ImportModelError(
            "an archive without its weights",
            got="one made by torch.jit.optimize_for_inference, which torch.jit.load refuses, too",
            where=str(path),
            fix="save the module as it was before",
        )
    if unpacked_size > _MAX_MEMORY_RATIO * size + (1 << 20):
        what = "an archive unpacks to too much"
        raise ImportModelError(what, expected=f"about {size} bytes", got=unpacked_size, where=str(path))


def main() -> None:
    """The process's entry point: argv is the archive, and a folder for the result."""
    path, folder = sys.argv[1:]
    size = os.path.getsize(path)
    limit_resources(_READER_SECONDS, _READER_MEMORY_BYTES + 4 * size, _MAX_MEMORY_RATIO * size + (64 << 20))

    import torch

    from ingot.frontends.torch.script.extract import extract
    from ingot.frontends.torch.script.graph import write

    torch.set_num_threads(1)
    try:
        module = torch.jit.load(path, map_location="cpu")
        write(extract(module), Path(folder))
    except IngotError as e:
        ops = [(op.name, op.where, op.reason) for op in e.ops] if isinstance(e, UnsupportedOpError) else []
        (Path(folder) / _REPORT_FILE).write_text(json.dumps((str(e), ops)))
    except Exception as e:  # torch raises errors of many kinds; the caller gets the last line
        text = str(e).strip().replace("\n", " ")
        sys.stderr.write(f"\n{text}\n")
        raise SystemExit(1) from None
