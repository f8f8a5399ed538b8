"""A Keras file to a StableHLO program, in a separate process: `run` with FILE and FOLDER.

Keras fixes its backend at import, and a file is untrusted. FOLDER gets program.mlir, weights.safetensors and form.json,
or error.json with the error; stdin has the requested sizes.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from ingot.frontends.keras import config
from ingot.support import safetensors
from ingot.support.errors import ImportModelError, IngotError, UnsupportedOpError
from ingot.support.log import warn_if_untested

# the largest expansion of a compressed dataset
_MAX_DEFLATE_RATIO = 1032


def main(source: Path, folder: Path, dynamic: Any) -> None:
    program = _program(source, folder, dynamic)
    (folder / "program.mlir").write_text(program.text)
    safetensors.write(folder / "weights.safetensors", program.weights)
    form = {"names": program.names, "shapes": program.shapes, "outputs": program.outputs, "bounds": program.bounds}
    (folder / "form.json").write_text(json.dumps(form))


def _program(source: Path, folder: Path, dynamic: Any) -> Any:
    model = load(source, folder)
    from ingot.frontends.keras.program import program_of

    return program_of(model, dynamic)


def load(source: Path, folder: Path) -> Any:
    """The model of a file, whose configuration is checked first; `folder` may get a copy. Raises ImportModelError,
    UnsupportedOpError."""
    with source.open("rb") as file:
        old = file.read(4) == b"\x89HDF"
    described = config.legacy(_checked_hdf5(source)) if old else config.archived(source)
    config.check(described, str(source))
    import keras

    warn_if_untested("keras", keras.__version__)
    if old:
        source = _modern(source, folder, described, keras)
    else:
        _check_weights(source)
    try:
        return keras.models.load_model(source, compile=False, safe_mode=True)
    except Exception as e:  # damaged files may raise anything
        raise ImportModelError(f"Keras cannot load the model: {e}", fix="load and save it with Keras 3") from e


def _modern(source: Path, folder: Path, described: dict[str, Any], keras: Any) -> Path:
    """A copy of an old file whose configuration Keras 3 understands."""
    import h5py

    config.modernized(described, keras.layers, str(source))
    copy = folder / "model.h5"
    shutil.copyfile(source, copy)
    with h5py.File(copy, "r+") as file:
        file.attrs["model_config"] = json.dumps(described)
    return copy


def _check_weights(source: Path) -> None:
    import io
    import zipfile

    with zipfile.ZipFile(source) as archive:
        for name in archive.namelist():
            if name.endswith(".h5"):
                _checked_hdf5(io.BytesIO(archive.read(name)))


def _checked_hdf5(source: Any) -> Any:
    """`source`, checked: it must not refer to other files or declare more data than it can hold."""
    import h5py

    try:
        with h5py.File(source, "r") as file:
            _check_group(file)
    except (OSError, RuntimeError, KeyError, ValueError) as e:
        raise ImportModelError(f"not a readable HDF5 file: {e}", fix="save the model again") from e
    return source


def _check_group(file: Any) -> None:
    import h5py

    stack, visited = [file], set()
    while stack:
        group = stack.pop()
        if group.id in visited:  # ids are equal for one object under several names
            continue
        visited.add(group.id)
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"{name!r} is a link")
            item = group[name]
            if isinstance(item, h5py.Group):
                stack.append(item)
            elif isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
                raise ValueError(f"{name!r} reads another file")
            elif (
                isinstance(item, h5py.Dataset) and item.nbytes > _MAX_DEFLATE_RATIO * item.id.get_storage_size() + 4096
            ):
                raise ValueError(f"{name!r} is of {item.nbytes} bytes, which the file does not hold")


def _error_report(error: IngotError) -> dict[str, Any]:
    if isinstance(error, UnsupportedOpError):
        return {"unsupported": [[op.name, op.where, op.reason] for op in error.ops], "fix": error.fix}
    return {"kind": type(error).__name__, "text": str(error)}


def run() -> None:
    """The process's entry point: argv is the file and FOLDER."""
    target = Path(sys.argv[2])
    try:
        try:
            main(Path(sys.argv[1]), target, json.loads(sys.stdin.read() or "null"))
        except ImportError as e:  # extras
            fix = "pip install 'ingot-compiler[keras]'"
            raise ImportModelError(f"reading Keras files needs keras, h5py and jax: {e}", fix=fix) from e
    except IngotError as e:
        (target / "error.json").write_text(json.dumps(_error_report(e)))
