"""The house's import rules, kept by walking every import of every file: see docs/README.md for the layers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ingot"

# From the bottom up: the layers that one may import beside itself and `support` (None: all below it), and what it is
LAYERS: dict[str, tuple[set[str] | None, str]] = {
    "support": (set(), "errors, flags, limits, the disk cache, progress"),
    "ir": (set(), "types, symbolic sizes, the graph; kernels; rewriting, text, interpreters"),
    "ops": ({"ir"}, "one class for each op: type rule, reference, gradient, lowering, index map, samples"),
    "optim": ({"ir", "ops"}, "`ingot.optim`: the optimizers"),
    "language": ({"ir", "ops"}, "language models: a record and weights as graphs of chunks, steps and loops"),
    "passes": ({"ir", "ops"}, "graph to graph: on MODEL ops, on CORE ops, fusion"),
    "autodiff": ({"ir", "ops", "passes"}, "reverse-mode differentiation"),
    "frontends": (
        {"ir", "ops", "language", "autodiff"},
        "models in: ONNX, PyTorch, StableHLO, TensorFlow, TFLite, Keras, GGUF",
    ),
    "runtime": (set(), "programs, artifacts, memory, threads, devices: all that `ingot.load` needs"),
    "exporters": ({"ir", "ops", "passes", "frontends", "runtime"}, "models out: StableHLO, TFLite"),
    "schedule": ({"ir", "ops"}, "from fused groups to loops and kernels, for CPUs, GPUs and circuits"),
    "targets": ({"ir"}, "kernels as code: LLVM, WebAssembly, C, Triton, Verilog"),
    "plan": ({"ir", "ops", "schedule", "runtime"}, "kernels and graphs as one program: storage, control flow, linking"),
    "pipeline": (None, "for each target its list of passes, schedules and code; tuning's database"),
    "driver": (None, "recognize a format, open it, compile it: by values and sizes, in stages, from the cache"),
    "debug": (None, "explain, compare, bisect"),
    "bench": (None, "measure beside other engines"),
    "tune": (None, "search for better choices"),
    "transform": (None, "models from models: quantize, prune, train, differentiate, attribute, shard"),
    "api": (None, "the public verbs, a file each"),
    "integrations": (None, "where others call Ingot: torch.compile, JAX's functions, ONNX's backends"),
    "__init__": (None, "`import ingot`: what is public"),
    "serving": (
        None,
        "models behind a URL: an ASGI application, OpenAI's routes, Triton's repositories, Ray Serve's deployments",
    ),
    "cli": (None, "the `ingot` command, a file for each subcommand"),
    "__main__": (None, "`python -m ingot`"),
}
# Loading an artifact must not pay for the compiler, nor a model that is found in the cache for its passes and LLVM.
LAZY = {
    ("api", "driver"),
    ("api", "exporters"),
    ("api", "transform"),
    ("api/load", "api"),  # what needs tokenizers
    ("cli", "cli"),  # a command imports no other one
    ("cli/compile", "pipeline"),  # what C for microcontrollers needs
    ("cli/export", "exporters"),  # what needs flatbuffers
    ("cli/export", "transform"),
    ("driver", "pipeline"),
    ("driver", "plan"),
    ("integrations/jax", "driver"),
    ("transform/quantize/run", "transform"),  # what needs ONNX
    ("serving/engines", "serving"),  # what needs uvicorn, Triton or Ray
    ("targets/cpu/workers", "targets"),  # LLVM, where code is generated in this process
}
# frontends: imported where they are used
EXTRAS = {
    "onnx", "torch", "stablehlo", "jax", "tensorflow", "tflite", "keras", "gguf", "huggingface", "language", "shared",
}  # fmt: skip
HARD = {"numpy", "llvmlite", "ml_dtypes"}
# outside packages beyond the hard dependencies, by the files that may import them at module level
THIRD_PARTY = {
    "frontends/onnx": {"onnx", "google"},
    "integrations/onnx": {"onnx"},
    "transform/quantize/onnx_model": {"onnx"},
    "frontends/torch": {"torch", "sympy"},
    "integrations/torch_autograd": {"torch"},
    "integrations/torch_compile": {"torch"},
    "integrations/torch_eager": {"torch"},
    "integrations/torch_flat": {"torch", "sympy"},
    "integrations/torch_packing": {"torch"},
    "integrations/torch_repeat": {"torch"},
    "frontends/jax": {"jax"},
    "exporters/tflite/writer": {"flatbuffers"},
    "frontends/keras": {"jax", "keras", "h5py"},
    "serving": {"starlette", "uvicorn", "prometheus_client", "pydantic"},
    "cli": {"typer", "rich"},
}


@dataclass(frozen=True)
class Import:
    """`module` imported by `file` (its path below src/ingot without the suffix); `local`: inside a function."""

    file: str
    line: int
    module: str
    local: bool
    typing: bool

    def __str__(self) -> str:
        return f"{self.file}.py:{self.line} imports {self.module}"


@cache
def _import_nodes(path: Path) -> tuple[tuple[ast.Import | ast.ImportFrom, bool, bool], ...]:
    """The imports of a file, each with whether it is in a function, and whether it is for types only."""
    results: list[tuple[ast.Import | ast.ImportFrom, bool, bool]] = []
    stack: list[tuple[ast.AST, bool, bool]] = [(ast.parse(path.read_text()), False, False)]
    while stack:
        node, local, typing = stack.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            results.append((node, local, typing))
        elif isinstance(node, ast.stmt | ast.Module | ast.excepthandler | ast.match_case):  # imports are statements
            local = local or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            typing = typing or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
            stack += [(child, local, typing) for child in ast.iter_child_nodes(node)]
    return tuple(results)


def _imports(path: Path) -> Iterator[Import]:
    file = path.relative_to(SOURCE).with_suffix("").as_posix().removesuffix("/__init__") or "__init__"
    for node, local, typing in _import_nodes(path):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, a.name, local, typing) for a in node.names)
        else:
            assert node.level == 0, f"{file}.py:{node.lineno}: imports are absolute"
            # `from ingot import ops` imports ingot.ops
            names = [f"ingot.{a.name}" for a in node.names] if node.module == "ingot" else [node.module or ""]
            yield from (Import(file, node.lineno, name, local, typing) for name in names)


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    results = [i for path in sorted(SOURCE.rglob("*.py")) for i in _imports(path)]
    assert len(results) > 200
    return results


def _layer(module: str) -> str:
    """ "ingot.ops.core.base" -> "ops"; names of the package itself (ingot.compile) -> "__init__"."""
    part = [*module.split("."), ""][1]
    return part if part in LAYERS else "__init__"


def _is_below(file: str, target: str) -> bool:
    layer = file.split("/")[0]
    lower_layers = [*LAYERS][: [*LAYERS].index(layer) + 1]
    visible = LAYERS[layer][0]
    return target in lower_layers if visible is None else target in {layer, "support"} | visible


def _is_lazy(i: Import) -> bool:
    return any(f"{i.file}/".startswith(f"{file}/") and _layer(i.module) == layer for file, layer in LAZY)


def test_layers_import_only_what_stands_below_them(imports: list[Import]):
    inside = [i for i in imports if i.module.split(".")[0] == "ingot"]
    wrong = [str(i) for i in inside if not _is_below(i.file, _layer(i.module))]
    assert not wrong, "\n".join(wrong)


def test_layers_see_only_what_stands_before_them_in_the_table():
    order = [*LAYERS]
    wrong = [(n, s) for n, (visible, _) in LAYERS.items() for s in visible or () if order.index(s) > order.index(n)]
    assert not wrong


def _modules() -> dict[str, Path]:
    """Every file of the package by the module that it is."""
    paths = {p.relative_to(SOURCE.parent).with_suffix("").as_posix(): p for p in SOURCE.rglob("*.py")}
    return {name.removesuffix("/__init__").replace("/", "."): path for name, path in paths.items()}


def test_no_modules_import_each_other_in_a_circle():
    """Imports for types and those inside functions count, too."""
    modules = _modules()
    remaining_imports = {name: {m for m in _imported(path, modules) if m != name} for name, path in modules.items()}
    while free := [name for name, needs in remaining_imports.items() if not needs]:
        for name in free:
            del remaining_imports[name]
        for needs in remaining_imports.values():
            needs.difference_update(free)
    # what remains is in a circle, or above one
    while roots := remaining_imports.keys() - set[str]().union(*remaining_imports.values()):
        for name in roots:
            del remaining_imports[name]
    assert not remaining_imports, "\n".join(
        f"{name} -> {', '.join(sorted(needs & remaining_imports.keys()))}" for name, needs in remaining_imports.items()
    )


def _imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node, _, _ in _import_nodes(path):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in modules)
        elif node.module and node.module in modules:
            inside = [f"{node.module}.{a.name}" for a in node.names]
            yield from (name if name in modules else node.module for name in inside)


def layers_map() -> str:
    """The table as docs/README.md shows it, from the top down."""
    rows = ["| layer | sees | what it is |", "|---|---|---|"]
    for name, (visible, text) in reversed(LAYERS.items()):
        scope = (
            "all below it" if visible is None else ", ".join(f"`{s}`" for s in LAYERS if s in visible) or "`support`"
        )
        rows.append(f"| `{name}` | {scope if name != 'support' else ''} | {text} |")
    return "\n".join(rows) + "\n"


def test_the_docs_show_the_table(request: pytest.FixtureRequest):
    page = SOURCE.parents[1] / "docs" / "README.md"
    text = page.read_text()
    begin, end = text.index("| layer |"), text.index("\n\n", text.index("| layer |")) + 1
    if request.config.getoption("--update-golden"):
        page.write_text(text[:begin] + layers_map() + text[end:])
        return
    assert text[begin:end] == layers_map(), "docs/README.md is old: pytest tests/test_layering.py --update-golden"


def test_only_pipelines_import_targets(imports: list[Import]):
    """What compiles joins targets and schedules; everybody else asks `pipeline.target`. Targets never load programs."""
    allowed = ("pipeline", "targets")
    wrong = [str(i) for i in imports if _layer(i.module) == "targets" and i.file.split("/")[0] not in allowed]
    assert not wrong, "\n".join(wrong)


def test_the_plan_knows_programs_but_not_how_they_run(imports: list[Import]):
    """And where their memory will be, which limits of it ask for."""
    allowed = {"ingot.runtime.program", "ingot.runtime.expr", "ingot.runtime.placement", "ingot.runtime"}
    read = [i for i in imports if i.file.startswith("plan/") and _layer(i.module) == "runtime"]
    wrong = [str(i) for i in read if i.module not in allowed]
    assert not wrong, "\n".join(wrong)


# rooms inside a layer -> the rooms of it that they may not import: what all targets share knows none of them, and no
# target's schedules know another's
APART = {
    "schedule": {"schedule/cpu", "schedule/gpu", "schedule/circuit"},
    "schedule/cpu": {"schedule/gpu", "schedule/circuit"},
    "schedule/gpu": {"schedule/cpu", "schedule/circuit"},
    "schedule/circuit": {"schedule/cpu", "schedule/gpu"},
    "passes/model": {"passes/core", "passes/fusion"},
    "passes/core": {"passes/model", "passes/fusion"},
    "passes/fusion": {"passes/model", "passes/core"},
    "ir": {"ir/kernel"},
    "ir/kernel": set(),
}


def _room(path: str) -> str:
    """ "schedule/cpu/rows/loops" -> "schedule/cpu": the room of `APART` that a file is in."""
    return max((room for room in APART if f"{path}/".startswith(f"{room}/")), key=len, default="")


def test_rooms_of_a_layer_stand_apart(imports: list[Import]):
    wrong = [
        str(i)
        for i in imports
        if i.module.startswith("ingot.")
        and _room(i.module.removeprefix("ingot.").replace(".", "/")) in APART.get(_room(i.file), set())
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_inside_functions_are_extras_only(imports: list[Import]):
    wrong = [
        str(i)
        for i in imports
        if i.local
        and i.module.split(".")[0] == "ingot"
        and not any(i.module.startswith(f"ingot.frontends.{extra}") for extra in EXTRAS)
        and i.module != "ingot.frontends"
        and not _is_lazy(i)
    ]
    assert not wrong, "\n".join(wrong)


def test_dataclasses_are_those_that_cost_little_to_make():
    """`from dataclasses import dataclass` compiles six methods of each class: use `ingot.support.dataclass`."""
    wrong = [
        str(path)
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "support" / "dataclass.py"
        for node, _, _ in _import_nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == "dataclasses"
        if any(a.name == "dataclass" for a in node.names)
    ]
    assert not wrong, "use ingot.support.dataclass in " + ", ".join(wrong)


def test_the_core_depends_on_numpy_llvmlite_and_ml_dtypes_alone(imports: list[Import]):
    wrong: list[str] = []
    for i in imports:
        package = i.module.split(".")[0]
        if package == "ingot" or package in sys.stdlib_module_names or i.local or i.typing:
            continue
        extra = set[str]().union(*(names for place, names in THIRD_PARTY.items() if i.file.startswith(place)))
        if package not in HARD | extra:
            wrong.append(str(i))
    assert not wrong, "\n".join(wrong)


def test_only_the_target_imports_llvmlite_and_the_runtime_needs_numpy_alone(imports: list[Import]):
    outside = [i for i in imports if i.module.split(".")[0] not in sys.stdlib_module_names | {"ingot"} and not i.typing]
    llvm = {i.file.split("/")[0] for i in outside if i.module.split(".")[0] == "llvmlite"}
    assert llvm <= {"targets"}
    small = [i for i in outside if i.file.split("/")[0] in ("runtime", "support") and not i.local]
    assert {i.module.split(".")[0] for i in small} <= {"numpy"}


# of the tests, what mirrors no room of the source
OTHER_TESTS = {"benchmarks", "conformance", "docs", "examples", "models", "tools"}


def test_tests_mirror_the_tree():
    """The tests of a room lie in the room of the same name, or in the one around it."""
    tests = Path(__file__).parent
    rooms = {p.parent.relative_to(tests) for p in tests.rglob("*.py")}
    mirrored = {room for room in rooms if room.parts and room.parts[0] not in OTHER_TESTS}
    wrong = sorted(room.as_posix() for room in mirrored if not any((SOURCE / room).glob("*.py")))
    assert not wrong, f"tests of rooms that are not there: {wrong}"


TOP_MODULES = 3  # of src/ingot itself, beside __init__ and __main__


def test_the_top_floor_holds_rooms():
    loose = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert len(loose) <= TOP_MODULES, sorted(loose)


LONGEST = 500  # lines of a file
MOST = 16  # files of a room, beside its __init__.py


def test_a_file_holds_one_idea():
    lines = {p.relative_to(SOURCE).as_posix(): len(p.read_text().splitlines()) for p in SOURCE.rglob("*.py")}
    long = sorted(name for name, count in lines.items() if count > LONGEST)
    assert not long, f"over {LONGEST} lines, split by idea: {long}"


def test_a_room_can_be_surveyed():
    rooms = {p.parent for p in SOURCE.rglob("*.py")}
    counts = {room.relative_to(SOURCE).as_posix(): len(list(room.glob("*.py"))) - 1 for room in rooms}
    full = {room: count for room, count in counts.items() if count > MOST}
    assert not full, f"over {MOST} files side by side: {full}"
