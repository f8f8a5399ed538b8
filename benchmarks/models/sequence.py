"""Audio encoders, recurrent networks and other sequence models."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models.base import Axes, Net, disturb, finish, generator, library


class WhisperEncoder(nn.Module):
    """Whisper's encoder on any length: mel (N, 80, L) -> (N, L / 2, D), L even.

    transformers' own forward admits only the full 30 s; the layers are the same, the positions are sliced.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.conv1: nn.Conv1d = encoder.conv1
        self.conv2: nn.Conv1d = encoder.conv2
        self.positions: nn.Embedding = encoder.embed_positions
        self.layers: nn.ModuleList = encoder.layers
        self.norm: nn.LayerNorm = encoder.layer_norm

    def forward(self, mel: Tensor) -> Tensor:
        x = nn.functional.gelu(self.conv1(mel))
        x = nn.functional.gelu(self.conv2(x)).permute(0, 2, 1)
        x = x + self.positions.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, None)
        return self.norm(x)


def features(channels: int):
    def make(batch: int, length: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch, channels, length, generator=generator(7)),)

    return make


def whisper_tiny() -> Net:
    transformers = library("transformers")
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, decoder_layers=1, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536,
    )  # fmt: skip
    module = transformers.WhisperModel(config).get_encoder().eval().requires_grad_(False)
    disturb(module)
    axes: Axes = {0: "batch", 2: "length"}
    return Net(WhisperEncoder(module).eval(), features(80), ("mel",), (axes,), granularity=2)


class Waveform(nn.Module):
    """wave (N, L) -> last_hidden_state (N, frames, D)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, wave: Tensor) -> Tensor:
        return self.module(wave).last_hidden_state


def hf_wave(config: str, arch: str, **options: object) -> Net:
    transformers = library("transformers")
    torch.manual_seed(0)
    module = getattr(transformers, arch)(getattr(transformers, config)(**options)).eval().requires_grad_(False)
    disturb(module)

    def make(batch: int, length: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch, length, generator=generator(7)),)

    return Net(Waveform(module).eval(), make, ("wave",), ({0: "batch", 1: "length"},))


class Recurrent(nn.Module):
    """A recurrent stack: x (N, L, size) -> every step's output (N, L, hidden * directions)."""

    def __init__(
        self, kind: Callable[..., nn.RNNBase], size: int, hidden: int, layers: int, bidirectional: bool
    ) -> None:
        super().__init__()
        self.rnn = kind(size, hidden, layers, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


def recurrent(kind: str, hidden: int = 512, layers: int = 2, bidirectional: bool = False) -> Net:
    torch.manual_seed(0)
    module = Recurrent(getattr(nn, kind), hidden, hidden, layers, bidirectional).eval().requires_grad_(False)

    def make(batch: int, length: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch, length, hidden, generator=generator(7)),)

    return Net(module, make, ("x",), ({0: "batch", 1: "length"},), fixed=frozenset({"length"}))


class CausalBlock(nn.Module):
    """One residual block of a TCN (Bai et al. 2018): dilated causal convolutions, (N, C, L) -> (N, C, L)."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv1 = nn.Conv1d(width, width, 3, dilation=dilation)
        self.conv2 = nn.Conv1d(width, width, 3, dilation=dilation)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.leaky_relu(self.norm(self.conv1(self.pad(x))))
        return x + torch.tanh(self.conv2(self.pad(y)))


def tcn() -> Net:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(16, 64, 1), *(CausalBlock(64, 1 << i) for i in range(5)), nn.Conv1d(64, 8, 1))
    make = features(16)
    axes: Axes = {0: "batch", 2: "length"}
    return Net(finish(module, make(4, 128)), make, ("x",), (axes,))


def transformer_encoder() -> Net:
    """torch's own nn.TransformerEncoder, post-norm, with the key padding mask: x (N, L, 256), mask (N, L) bool."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, activation="relu")
    module = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval().requires_grad_(False)
    disturb(module)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return self.module(x, src_key_padding_mask=padding)

    def make(batch: int, length: int) -> tuple[Tensor, ...]:
        ends = torch.tensor([length - (row * 7) % max(1, length // 2) for row in range(batch)])
        padding = torch.arange(length)[None, :] >= ends[:, None]
        return torch.randn(batch, length, 256, generator=generator(7)), padding

    axes: Axes = {0: "batch", 1: "length"}
    return Net(Masked().eval(), make, ("x", "padding"), (axes, axes))


class Recommender(nn.Module):
    """DLRM (Naumov et al. 2019): dense (N, 13), sparse ids (N, 8) -> click probability (N, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU())
        self.tables = nn.ModuleList(nn.Embedding(1000, 32) for _ in range(8))
        self.top = nn.Sequential(nn.Linear(32 + 36, 128), nn.ReLU(), nn.Linear(128, 1), nn.Sigmoid())
        self.pairs: Tensor
        self.register_buffer("pairs", torch.tril_indices(9, 9, offset=-1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        stack = torch.stack([x, *rows], dim=1)
        dots = torch.einsum("nid,njd->nij", stack, stack)
        return self.top(torch.cat([x, dots[:, self.pairs[0], self.pairs[1]]], dim=1))


def dlrm() -> Net:
    torch.manual_seed(0)
    module = Recommender().eval().requires_grad_(False)

    def make(batch: int, length: int) -> tuple[Tensor, ...]:
        rng = generator(7)
        return torch.randn(batch, 13, generator=rng), torch.randint(0, 1000, (batch, 8), generator=rng)

    return Net(module, make, ("dense", "sparse"), ({0: "batch"}, {0: "batch"}))
