"""Random models of NNSmith (Liu et al., ASPLOS 2023), by seed, as a folder of files that tools/fuzz.py compares.

    pip install nnsmith                            # beside torch and onnx; Ingot is not needed
    python tools/nnsmith_models.py FOLDER 0:10000
    python tools/fuzz.py models 0:10000 --folder FOLDER        # on this machine or another

A seed gives FOLDER/SEED.onnx and FOLDER/SEED.npz: `input/NAME`, and PyTorch's results, `output/0`, ... NNSmith solves
for attributes and sizes that the operators accept, and searches inputs that keep values finite. Seeds whose files are
there are passed over. Those that NNSmith or torch's exporter gives up have no file, nor have those behind one that ends
its process: run it again.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import resource
import signal
import sys
import warnings
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

_SIZES = (4, 8, 12, 16, 24)  # of operators
_PART = 20  # seeds of one process, as solver and exporter keep memory
_MEMORY, _SECONDS = 4 << 30, 60  # of a process, and processor time of a seed


def models_of_nnsmith():  # types of a package that is not always there
    """(the class of its ONNX models, the operators whose export works)."""
    import torch.onnx
    from nnsmith.materialize import Model  # pyright: ignore[reportMissingImports]
    from nnsmith.narrow_spec import auto_opset  # pyright: ignore[reportMissingImports]

    # NNSmith was written for the exporter that reads TorchScript
    torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)
    kind = Model.init("onnx", backend_target="cpu")
    kind.add_seed_setter()
    return kind, auto_opset(kind, None)


def make(kind, operators, seed: int, folder: Path) -> None:
    from nnsmith.graph_gen import model_gen  # pyright: ignore[reportMissingImports]
    from nnsmith.util import set_seed  # pyright: ignore[reportMissingImports]

    set_seed(seed)
    size = _SIZES[seed % len(_SIZES)]
    made = model_gen(opset=operators, method="symbolic-cinit", seed=seed, max_nodes=size, timeout_ms=10000)
    model = kind.from_gir(made.make_concrete())
    model.refine_weights()
    oracle = model.make_oracle()
    given = {f"input/{name}": array for name, array in oracle.input.items()}
    results = {f"output/{i}": array for i, array in enumerate(oracle.output.values())}
    np.savez(folder / f"{seed}.npz", allow_pickle=False, **given, **results)
    (folder / f"{seed}.onnx").write_bytes(model.onnx_model.SerializeToString())


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"{_SECONDS} s of processor time")


def make_all(kind, operators, seeds: range, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    signal.signal(signal.SIGPROF, _out_of_time)
    for seed in seeds:
        if (folder / f"{seed}.onnx").exists():
            continue
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        try:
            make(kind, operators, seed, folder)
        except Exception as error:  # NNSmith's, z3's, torch's and its exporter's have no common class
            print(f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0][:100]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seeds", help="FIRST:LAST")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    kind, operators = models_of_nnsmith()
    first, last = map(int, given.seeds.split(":"))
    context = multiprocessing.get_context("fork")  # what was imported is there
    running: list[BaseProcess] = []
    for seed in range(first, last, _PART):
        seeds = range(seed, min(seed + _PART, last))
        running.append(context.Process(target=make_all, args=(kind, operators, seeds, given.folder)))
        running[-1].start()
        while len(running) >= given.jobs:
            wait([p.sentinel for p in running])
            running = [p for p in running if p.is_alive()]
    for process in running:
        process.join()
    made = sum((given.folder / f"{seed}.onnx").exists() for seed in range(first, last))
    print(f"{made} models of {len(operators)} kinds of operators; {last - first - made} given up")
    return 0


if __name__ == "__main__":
    sys.exit(main())
