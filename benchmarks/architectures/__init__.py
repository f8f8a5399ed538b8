"""Architectures of transformers, timm, torchvision, torchaudio, diffusers and PyTorch Geometric, small and with random
weights, compiled and compared with eager PyTorch: at the example's sizes, and at others of a program with dynamic ones.

    python -m benchmarks.architectures --help
"""

from benchmarks.architectures import networks, sequence, text, vision
from benchmarks.architectures.case import TOLERANCE, Architecture, Net, check, difference, library

CASES: list[Architecture] = [*text.CASES, *vision.CASES, *sequence.CASES, *networks.CASES]

__all__ = ["CASES", "TOLERANCE", "Architecture", "Net", "check", "difference", "library"]
