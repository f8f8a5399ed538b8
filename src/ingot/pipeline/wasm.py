"""WebAssembly: the CPU's passes and schedules for vectors of 128 bits, by LLVM, as a folder for browsers and node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ingot.ir.kernel import Kernel
from ingot.ir.types import i16
from ingot.pipeline.cpu import POLICY, cpu_passes
from ingot.pipeline.target import NamedPass, Options
from ingot.runtime import plan_json
from ingot.runtime.expr import show
from ingot.runtime.program import Program, TensorSpec
from ingot.schedule.choice import Measured
from ingot.schedule.cpu.lower import lower
from ingot.schedule.cpu.machine import PAIR_RATE, Machine
from ingot.support import flags, progress
from ingot.support.errors import CompileError, InputError
from ingot.support.files import atomic_write
from ingot.support.native import Code, Features
from ingot.targets.cpu.objects import KERNEL, compiled
from ingot.targets.cpu.printer.llvm import print_module
from ingot.targets.cpu.workers import start, submit
from ingot.targets.objects import Object, store
from ingot.targets.wasm.driver import DRIVER
from ingot.targets.wasm.link import link
from ingot.targets.wasm.package import Tensor, files

# what all browsers have had since 2023; there is no fused multiply-add
_FEATURES = ("bulk-memory", "mutable-globals", "nontrapping-fptoint", "sign-ext", "simd128")
# of an engine on a x86-64 or AArch64 core; fma: a product and a sum, as of pairs of 16 bits
MACHINE = Machine(
    vector_bits=128, registers=16, fma_per_cycle=1, gflops=15.0, l2=512 << 10, l3=8 << 20, int8_dot=i16,
    int8_rate=PAIR_RATE,
)  # fmt: skip
_NODES_PER_KERNEL = 4


class WasmTarget:
    """See `ingot.pipeline.target.Target`."""

    name = "wasm"
    policy = POLICY
    forms = ("llvm", "asm")
    lower = staticmethod(lower)
    merge_launches = None
    chain_kernels = None
    has_fixed_sizes = False
    overlaps_exchanges = False
    has_paged_attention = False

    def features(self, variant: str) -> Features:
        if variant:
            raise InputError("target", expected="wasm", got=f"wasm:{variant}")
        return Features("wasm32", _FEATURES, target="wasm")

    def prepare(self, nodes: int) -> None:
        start(nodes // _NODES_PER_KERNEL)

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> Machine:
        return replace(MACHINE, winograd=flags.winograd(), measured=measured)

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        return cpu_passes(options, self.machine(features, options.threads, {}))

    def assembler(self, features: Features) -> WasmAssembler:
        return WasmAssembler(features)

    def source(self, kernel: Kernel, features: Features, form: str) -> str:
        text = print_module([kernel], features)
        return text if form == "llvm" else submit(text, features, assembly=True).result().decode()

    @staticmethod
    def export(program: Program, path: Path, weights: Path | None = None) -> None:
        """Write the files of a package to the folder `path`, which is made if it is not there."""
        if weights is not None:
            raise InputError("weights", expected="none for wasm: they are a file of the folder", got=str(weights))
        if path.exists() and not path.is_dir():
            raise InputError("a folder for wasm", expected="a new folder, or one to write into", got=str(path))
        if exchanges := [s.label for s in program.steps if s.collective is not None]:
            raise CompileError("wasm", expected="a program of one device", got=exchanges[0])
        first = [s.initial.tobytes() for s in program.state]
        plan = plan_json.to_json(program)
        assert isinstance(plan, dict)
        plan |= {"weights_bytes": program.weights.nbytes, "state_bytes": sum(map(len, first)), "meta": {}}
        content = files(
            path.name, plan, program.code["wasm"].blob, [program.weights.data, *first],
            [_tensor(s) for s in program.inputs], [_tensor(s) for s in program.outputs],
        )  # fmt: skip
        path.mkdir(exist_ok=True)
        for name, parts in content.items():
            atomic_write(path / name, parts)


def _tensor(spec: TensorSpec) -> Tensor:
    return spec.name, spec.dtype, f"[{', '.join(map(show, spec.shape))}]"


class WasmAssembler:
    """Compiles kernels to objects while the next ones are being lowered, and links them with the driver."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._objects = [compiled(DRIVER, features)]

    def add(self, kernel: Kernel) -> None:
        self.include(self.begin(kernel))

    def begin(self, kernel: Kernel) -> Object:
        text = print_module([replace(kernel, name=KERNEL)], self._features)
        return compiled(text, self._features, kernel.name)

    def include(self, part: Object) -> None:
        self._objects.append(part)

    def finish(self) -> Code:
        """Wait for all objects and link them. Raises CompileError as `link` does."""
        objects: list[bytes] = []
        for part in self._objects:
            progress.report("machine code", len(objects), len(self._objects))
            objects.append(part.code.result())
        names = [part.name for part in self._objects]
        renamed = [{KERNEL: name} if name else {} for name in names]
        code = link(objects, self._features, list(filter(None, names)), renamed)
        store(self._objects)
        return code


TARGET = WasmTarget()
