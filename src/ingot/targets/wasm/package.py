"""The files of a package for browsers and node: module, weights, an ES module and its types.

program   ->   FOLDER/{model.wasm, weights.bin, index.js, index.d.ts, runtime.js, package.json}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ingot.support.files import Part

_ARRAYS = {
    "f32": "Float32Array", "f64": "Float64Array", "i8": "Int8Array",
    "i16": "Int16Array", "u16": "Uint16Array", "f16": "Uint16Array", "bf16": "Uint16Array", "i32": "Int32Array",
    "u32": "Uint32Array", "i64": "BigInt64Array", "u64": "BigUint64Array", "i4": "Int8Array", "i2": "Int8Array",
}  # fmt: skip
_BITS = "Uint8Array"  # of other types, which have a byte or less
Tensor = tuple[str, str, str]
"""The name, the dtype and the shape, for people."""


def files(
    name: str, plan: Mapping[str, Any], module: bytes, weights: Sequence[Part], inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> dict[str, Sequence[Part]]:  # fmt: skip
    """Return the content of each file by its name. plan: JSON. weights: these and the first values of the state."""
    text = json.dumps(json.dumps(plan, separators=(",", ":")))  # a string: JSON.parse is faster than a literal
    package = {
        "name": re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-") or "model",
        "version": "1.0.0",
        "type": "module",
        "main": "./index.js",
        "types": "./index.d.ts",
        "exports": {".": {"types": "./index.d.ts", "default": "./index.js"}},
    }
    return {
        "model.wasm": [module],
        "weights.bin": weights,
        "runtime.js": [Path(__file__).with_name("runtime.js").read_bytes()],
        "index.js": [_INDEX.replace("PLAN", text).encode()],
        "index.d.ts": [_types(inputs, outputs).encode()],
        "package.json": [json.dumps(package, indent=2).encode(), b"\n"],
    }


_INDEX = """\
// Made by Ingot.
import { open } from "./runtime.js";

const plan = JSON.parse(PLAN);

export function load({ module, weights, progress } = {}) {
  return open(plan, {
    module: module ?? new URL("./model.wasm", import.meta.url),
    weights: weights ?? new URL("./weights.bin", import.meta.url),
  }, progress);
}
"""

_TYPES = """\
// Made by Ingot.
export type Source = string | URL | Response | ArrayBuffer | ArrayBufferView;
export interface Tensor<A> {
  data: A;
  shape: number[];
}
/** A typed array is enough where sizes are fixed; other floats than f32 and f64 are their bits. */
export interface Inputs {
INPUTS
}
export interface Outputs {
OUTPUTS
}
export interface Model {
  /** Synchronous, one call at a time. Outputs are copies. */
  run(inputs: Inputs): Outputs;
  /** Give what lasts from call to call its first values. */
  reset(): void;
}
export interface Options {
  /** By default the files beside this module. */
  module?: Source;
  weights?: Source;
  progress?: (received: number, total: number) => void;
}
export function load(options?: Options): Promise<Model>;
"""


def _types(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    def lines(tensors: Sequence[Tensor], choice: str) -> str:
        return "\n".join(
            f"  /** {_comment(dtype + shape)} */\n  {json.dumps(name)}: {choice.format(_ARRAYS.get(dtype, _BITS))};"
            for name, dtype, shape in tensors
        )

    input_lines = lines(inputs, "{0} | Tensor<{0}>")
    return _TYPES.replace("OUTPUTS", lines(outputs, "Tensor<{0}>")).replace("INPUTS", input_lines)


def _comment(text: str) -> str:
    return text.replace("*/", "* /")
