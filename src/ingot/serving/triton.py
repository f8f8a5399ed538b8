"""NVIDIA Triton: a model repository with compiled models for its Python backend, and its server, if installed.

REPOSITORY/NAME/config.pbtxt
REPOSITORY/NAME/VERSION/model.ingot, model.py
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ingot.runtime.executor import CompiledModel
from ingot.serving.configuration import configuration, text_format
from ingot.serving.protocol import DATATYPES
from ingot.serving.repository import check_name, check_served
from ingot.serving.rows import max_joint_rows
from ingot.serving.scheduler import Queueing
from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError, InputError
from ingot.support.files import atomic_write

ARTIFACT = "model.ingot"
_POLL_SECONDS = 0.2
_MODEL = '''"""Runs model.ingot, which lies beside this file, in Triton's Python backend."""
{source}
from ingot.serving.triton_backend import TritonPythonModel  # noqa: F401
'''


def write_model(
    repository: Path,
    name: str,
    version: str,
    model: CompiledModel,
    queueing: Queueing,
    *,
    batch: str | None,
    timeout: float,
    source: Path | None = None,
) -> Path:
    """Write one version of a model; its configuration is that of all versions. Returns the folder of the model.

    timeout: the seconds that a request may wait. source: the folder from which the backend imports Ingot; None: its
    installation. Raises InputError for a model that is several programs, has state, or has tensors of types that
    Triton's Python backend lacks.
    """
    check_name(name)
    check_served(model)
    program = model.program
    specs = (*program.inputs, *program.outputs)
    numpy_types = [dtype for dtype in DATATYPES if dtype != "bf16"]
    if unknown := [str(s) for s in specs if s.dtype not in numpy_types]:
        raise InputError("Triton's Python backend", expected=f"tensors of {', '.join(numpy_types)}", got=unknown)
    # Triton wants a size beside that of the batch
    max_rows = 0 if any(len(spec.shape) < 2 for spec in specs) else queueing.max_rows
    queueing = replace(queueing, max_rows=max_joint_rows(model, batch, max_rows))
    config = configuration(name, program.inputs, program.outputs, queueing, timeout=timeout)
    for tensor in (*config["input"], *config["output"]):
        if not tensor["dims"]:  # of a scalar: Triton refuses it, and takes one element in its place
            tensor |= {"dims": [1], "reshape": {"shape": []}}
    if not queueing.max_rows:
        del config["dynamic_batching"]
    # of all instances together
    config["parameters"] = [{"key": "threads", "value": {"string_value": str(model.threads)}}]
    folder = repository / name / version
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {folder}", got=error.strerror) from error
    model.save(folder / ARTIFACT)
    text = "" if source is None else f"\nimport sys\n\nsys.path.insert(0, {str(source)!r})\n"
    atomic_write(folder / "model.py", [_MODEL.format(source=text).encode()])
    atomic_write(repository / name / "config.pbtxt", [text_format(config).encode()])
    return repository / name


@dataclass(frozen=True)
class Triton:
    """An installed server: its binary, the folder of its backends, and the environment that it needs."""

    binary: Path
    backends: Path | None
    environment: Mapping[str, str]

    def command(
        self, repository: Path, host: str, port: int, *, grpc: int | None = None, metrics: int | None = None
    ) -> list[str]:
        """Its command line. grpc, metrics: ports for them; None: they are off."""
        words = [str(self.binary), f"--model-repository={repository}", f"--http-address={host}", f"--http-port={port}"]
        words += [f"--backend-directory={self.backends}"] if self.backends else []
        words += ["--allow-grpc=false"] if grpc is None else [f"--grpc-address={host}", f"--grpc-port={grpc}"]
        words += (
            ["--allow-metrics=false"] if metrics is None else [f"--metrics-address={host}", f"--metrics-port={metrics}"]
        )
        return words


def find_triton() -> Triton:
    """`tritonserver` on the path, or of the wheel nvidia-pytriton. Raises DeviceError if there is neither."""
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        return Triton(Path(on_path), None, {"PATH": _path()})
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        fix = "pip install --no-deps nvidia-pytriton, or run in NVIDIA's container; --to triton:FOLDER writes the files"
        raise DeviceError(
            "Triton", expected="tritonserver on the path, or the package nvidia-pytriton", got="neither", fix=fix
        )
    package = Path(spec.origin).parent
    server = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        stubs = sorted(p.name for p in (server / "python_backend_stubs").glob("*"))
        raise DeviceError("nvidia-pytriton's Python backend", expected=f"one for Python {version}", got=stubs)
    libraries = [server / "external_libs", server / "lib", package.parent / "nvidia_pytriton.libs"]
    environment = {"LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)), "PATH": _path()}
    backends = server / "backends"
    target = backends / "python" / stub.name
    if not target.exists():  # where the server looks for it
        target.symlink_to(stub)
    return Triton(server / "bin" / "tritonserver", backends, environment)


def _path() -> str:
    """A PATH with this Python first: the backend's processes use the first Python on it, and ignore PYTHONPATH."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def run(triton: Triton, repository: Path, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Run the server until it ends or this process is interrupted. ready: called with the URL when all models are
    loaded. Raises DeviceError if the server fails."""
    url = f"http://{host}:{port}"
    with subprocess.Popen(triton.command(repository, host, port), env={**os.environ, **triton.environment}) as process:
        try:
            while process.poll() is None:
                if _is_ready(url):
                    ready(url)
                    process.wait()
                else:
                    time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
    if process.returncode not in (0, -signal.SIGINT):
        fix = "its messages stand above"
        raise DeviceError(
            "Triton's server", expected="a server that runs", got=f"exit code {process.returncode}", fix=fix
        )


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=1):
            return True
    except OSError:
        return False
