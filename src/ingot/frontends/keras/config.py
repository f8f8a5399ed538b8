"""The layers that a Keras file describes, checked before Keras builds them: the file is untrusted.

A configuration may name code (Lambda layers), other packages, and layers that only TensorFlow computes. All of these
are refused together, by name. Configurations of Keras 1 and 2 lose arguments that Keras 3 does not know, where these
have no effect.
"""

from __future__ import annotations

import inspect
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ingot.support.errors import ImportModelError, UnsupportedOp, UnsupportedOpError

_CODE_REASON = "it is code, which is not run: write it as a layer of Keras"
_STRINGS_REASON = "of strings and tables: do it before the model, on the host"
_FOREIGN_REASON = "another framework's model inside: compile that one"
_TENSORFLOW_REASON = "an operation of TensorFlow itself: write it as keras.ops in Keras 3"
_REFUSED = {
    **dict.fromkeys(("Lambda", "__lambda__"), _CODE_REASON),
    **dict.fromkeys(
        ("TextVectorization", "StringLookup", "IntegerLookup", "Hashing", "HashedCrossing", "FeatureSpace"),
        _STRINGS_REASON,
    ),
    **dict.fromkeys(("TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer"), _FOREIGN_REASON),
    **dict.fromkeys(("TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer"), _TENSORFLOW_REASON),
}
# the modules whose classes a model is made of; others of Keras download, write files and call functions
_KERAS_MODULES = (
    "layers|models|initializers|regularizers|constraints|activations|dtype_policies|ops|quantizers|random|saving|engine"
)
_KERAS_NAME = re.compile(rf"keras(\.src)?\.({_KERAS_MODULES})(\.\w+)*")
# names in the module keras itself
_TOP_LEVEL_NAMES = ("Sequential", "Functional", "Model", "DTypePolicy", "FloatDTypePolicy", "QuantizedDTypePolicy")
_MAX_CONFIG_BYTES = 64 << 20
# the largest expansion of deflate
_MAX_DEFLATE_RATIO = 1032


def archived(path: Path) -> dict[str, Any]:
    """The configuration in a `.keras` file. Raises ImportModelError for an archive that is damaged or hostile."""
    try:
        with zipfile.ZipFile(path) as archive:
            for item in archive.infolist():
                name = item.filename
                if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or ":" in name:
                    raise _damaged(path, f"a member {name!r} outside of it")
                if item.file_size > _MAX_DEFLATE_RATIO * item.compress_size + 4096:
                    raise _damaged(path, f"a member {name!r} that nothing inflates to")
            if archive.getinfo("config.json").file_size > _MAX_CONFIG_BYTES:
                raise _damaged(path, "a configuration of more than 64 MB")
            config = json.loads(archive.read("config.json"))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, RecursionError, NotImplementedError) as e:
        raise _damaged(path, f"no configuration ({e})") from e
    return _mapping(path, config)


def legacy(path: Path) -> dict[str, Any]:
    """The configuration in an HDF5 file of Keras 1 and 2. Raises ImportModelError where there is none."""
    import h5py  # an extra

    with h5py.File(path, "r") as file:
        text = file.attrs.get("model_config")
    if text is None:
        fix = "save the whole model: model.save('model.keras')"
        raise ImportModelError("weights without a model", where=str(path), fix=fix)
    try:
        return _mapping(path, json.loads(text))
    except (ValueError, RecursionError, TypeError) as e:
        raise _damaged(path, f"no configuration ({e})") from e


def _mapping(path: Path, config: object) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise _damaged(path, "a configuration that is no object")
    config.pop("compile_config", None)
    return config


def _damaged(path: Path, got: str) -> ImportModelError:
    return ImportModelError("not a readable Keras file", got=got, where=str(path), fix="save the model again")


def check(config: Mapping[str, Any], path: str) -> None:
    """Raises UnsupportedOpError that names every layer which is code, of another package, or only for TensorFlow."""
    unsupported: list[UnsupportedOp] = []
    for node in _nodes(config):
        name, module = node.get("class_name"), node.get("module")
        inner = node.get("config")
        where = inner.get("name", "") if isinstance(inner, Mapping) else ""
        reason = _REFUSED.get(name, "") if isinstance(name, str) else "a class without a name"
        if not reason and module is not None and not _is_own(module, name):
            reason = f"of {module}, not of Keras: its code is not in the file"
        registered = node.get("registered_name")
        if not reason and isinstance(registered, str) and ">" in registered:
            reason = f"registered as {registered}: its code is not in the file"
        if reason:
            unsupported.append(UnsupportedOp(str(name), f"layer {where}" if where else "", reason))
    if unsupported:
        raise UnsupportedOpError(unsupported, model=path, fix="leave these layers out of the model that is saved")


def _is_own(module: object, name: object) -> bool:
    if module == "builtins":
        return name == "function"  # an activation, by its name
    if module == "keras":
        return name in _TOP_LEVEL_NAMES
    return isinstance(module, str) and _KERAS_NAME.fullmatch(module) is not None


def _nodes(config: object) -> Iterator[Mapping[str, Any]]:
    """Every object of the configuration that describes an instance of a class."""
    stack = [config]
    while stack:
        value = stack.pop()
        if isinstance(value, Mapping):
            if "class_name" in value:
                yield value
            stack += value.values()
        elif isinstance(value, list):
            stack += value


def modernized(config: dict[str, Any], layers: Any, path: str) -> None:
    """Rewrite an old configuration, in place, to one that the classes of `layers` (keras.layers) accept.

    Arguments that a class does not have are taken out where they are None, False or 1, which old versions wrote for
    what was not used: DepthwiseConv2D's groups, recurrences' time_major. Others are Keras's to refuse. Slashes in
    layers' names become underscores.

    Raises UnsupportedOpError that names every layer of a class that Keras does not have.
    """
    named = [(str(n["class_name"]), n["config"]) for n in _nodes(config) if isinstance(n.get("config"), Mapping)]
    strange = {
        (name, str(inner["name"])) for name, inner in named if "name" in inner and not _is_known(name, inner, layers)
    }
    if strange:
        reason = "a class of the model's own: its code is not in the file"
        ops = [UnsupportedOp(name, f"layer {where}", reason) for name, where in sorted(strange)]
        raise UnsupportedOpError(ops, model=path, fix="write these as layers of Keras, and save the model again")
    _rename(config, {str(inner["name"]) for _, inner in named if "/" in str(inner.get("name"))})
    for node in _nodes(config):
        cls = getattr(layers, str(node["class_name"]), None)
        inner = node.get("config")
        if not inspect.isclass(cls) or not isinstance(inner, dict):
            continue
        policy = inner.get("dtype")
        if isinstance(policy, Mapping) and policy.get("class_name") == "Policy" and "module" not in policy:
            inner["dtype"] = policy.get("config", {}).get("name", "float32")
        known_keys = {name for base in cls.__mro__ for name in _parameters(base)} | _COMMON_LAYER_KEYS
        for name in [n for n, v in inner.items() if n not in known_keys and _is_neutral(v)]:
            del inner[name]


def _is_known(name: str, inner: Mapping[str, Any], layers: Any) -> bool:
    return hasattr(layers, name) or name in _TOP_LEVEL_NAMES or "layers" in inner or name == "Policy"


def _rename(config: Any, names: set[str]) -> None:
    """Replace slashes by underscores in these names, wherever they occur."""
    stack = [config] if names else []
    while stack:
        value = stack.pop()
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in list(entries):
            if isinstance(inner, dict | list):
                stack.append(inner)
            elif isinstance(inner, str) and inner in names:
                value[key] = inner.replace("/", "_")


def _is_neutral(value: object) -> bool:
    return value is None or value is False or (type(value) is int and value == 1)


_COMMON_LAYER_KEYS = {"name", "dtype", "trainable", "autocast", "batch_input_shape", "batch_shape", "input_shape",
                   "input_dim", "implementation", "layers", "build_input_shape"}  # fmt: skip


def _parameters(cls: type) -> list[str]:
    try:
        return list(inspect.signature(cls.__init__).parameters)
    except (TypeError, ValueError):
        return []
