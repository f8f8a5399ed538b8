"""Packages that ship models and call ONNX Runtime, with `import onnxruntime` as Ingot's module: the results are equal.

Each runs in two processes, with ONNX Runtime and with Ingot. To run a test, `pip install` the package and what
`MODULES` says that it needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

MODULES = {
    "rapidocr_onnxruntime": ("cv2", "pyclipper", "shapely", "yaml"),
    "silero_vad": ("torch",),
    "ddddocr": ("cv2", "PIL"),
    "nudenet": ("cv2",),
    "magika": ("click", "dotenv"),
}
_PRELUDE = """
import json, sys, types, warnings
warnings.filterwarnings("ignore")
if sys.argv[1] == "ingot":
    import ingot.integrations.onnxruntime as ort
    capi = types.ModuleType("onnxruntime.capi")
    capi._pybind_state = ort
    sys.modules |= {"onnxruntime": ort, "onnxruntime.capi": capi}
import numpy as np
"""
_TEXT = """
from PIL import Image, ImageDraw, ImageFont
def picture(text, size, points):
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).text((12, 8), text, "black", ImageFont.load_default(points))
    return image
"""
PROGRAMS = {
    "rapidocr_onnxruntime": _TEXT
    + """
from rapidocr_onnxruntime import RapidOCR
found, _ = RapidOCR()(np.array(picture("Compilers at work\\nline 42", (420, 110), 36)))
print(json.dumps([[np.round(box).tolist(), text] for box, text, _ in found]))
""",
    "silero_vad": """
import torch
from silero_vad import get_speech_timestamps, load_silero_vad
import silero_vad.sequence_vad
from pathlib import Path
rng = np.random.default_rng(0)
t = np.arange(3 * 16000) / 16000
voice = sum(np.sin(2 * np.pi * f * t) for f in (140, 280, 700, 1200)) * (np.sin(2 * np.pi * 3 * t) > 0) / 5
audio = torch.from_numpy((voice + rng.normal(0, 0.02, t.size)).astype(np.float32))
model = load_silero_vad(onnx=True)
probabilities = model.audio_forward(audio, 16000).numpy()[0]
stamps = get_speech_timestamps(audio, load_silero_vad(onnx=True), threshold=0.2)
files = Path(silero_vad.__file__).parent / "data"
vad = silero_vad.sequence_vad.SileroVADSequence(files / "silero_vad_16k_sequence.onnx")
sequence = vad.audio_forward(audio.numpy())
print(json.dumps([np.round(probabilities, 3).tolist(), stamps, np.round(sequence, 3).tolist()]))
""",
    "ddddocr": _TEXT
    + """
import io, ddddocr
data = io.BytesIO()
picture("k7mX", (160, 64), 40).save(data, "png")
texts = [ddddocr.DdddOcr(show_ad=False, old=old).classification(data.getvalue()) for old in (False, True)]
print(json.dumps([texts, ddddocr.DdddOcr(det=True, ocr=False, show_ad=False).detection(data.getvalue())]))
""",
    "nudenet": """
from nudenet import NudeDetector
rng = np.random.default_rng(3)
image = np.full((240, 320, 3), (120, 150, 200), np.uint8)
yy, xx = np.mgrid[:240, :320]
image[((xx - 160) / 45) ** 2 + ((yy - 90) / 60) ** 2 < 1] = (150, 180, 230)
for x in (142, 178):
    image[(xx - x) ** 2 + (yy - 80) ** 2 < 40] = (30, 30, 40)
detector = NudeDetector()
raw = detector.onnx_session.run(None, {detector.input_name: rng.random((1, 3, 320, 320), np.float32)})
print(json.dumps([[[d["class"], d["box"]] for d in detector.detect(image)], np.round(raw[0][0, :, ::300], 2).tolist()]))
""",
    "magika": """
from magika import Magika
samples = [b"def f(x):\\n    return x + 1\\n", b"<html><body>hi</body></html>", b"int main(void) { return 0; }"]
found = [Magika().identify_bytes(data * 9) for data in samples]
print(json.dumps([[str(r.output.label), round(float(r.score), 3)] for r in found]))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("package", MODULES)
def test_a_package_gives_the_same_results(package: str):
    missing = [name for name in (package, *MODULES[package]) if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    results = []
    for engine in ("onnxruntime", "ingot"):
        words = [sys.executable, "-c", _PRELUDE + PROGRAMS[package], engine]
        done = subprocess.run(words, capture_output=True, text=True, timeout=110)
        assert done.returncode == 0, done.stderr[-3000:]
        results.append(json.loads(done.stdout.splitlines()[-1]))
    assert results[0] == results[1] and results[0]
