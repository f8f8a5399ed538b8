"""A model as C for a Cortex-M4, built by gcc and run in QEMU, its outputs checked.

    python examples/microcontroller.py net.onnx build/net
    apt install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm

The folder has the function (net.c, net.h), a program around it, start-up code and a Makefile; your own board needs the
first two.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def build(model: Path, folder: Path, target: str = "c:cortex-m4") -> str:
    """What the program prints in QEMU. Raises CalledProcessError if an output differs from the interpreter's."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ingot", "compile", model, "--target", target, "-o", folder / "net.c", "--example"]
    subprocess.run([*map(str, command), "--dim", "n=1"], check=True)
    make = ["make", "-C", str(folder), "run"]  # QEMU writes what the board says to standard error
    return subprocess.run(make, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="c:cortex-m4")
    options = parser.parse_args()
    print(build(options.model, options.folder, options.target))
