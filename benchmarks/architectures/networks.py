"""Diffusion models, graph networks, recommenders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.architectures.case import Architecture, Call, Net, library, settled
from benchmarks.models.base import generator

_BATCHES = ((2, 0), (3, 0))


def noise(*shape: int, seed: int = 7) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def _named(module: nn.Module, call: Callable[[int, int], Call], sizes: tuple[int, int] = (2, 0)) -> Net:
    example = call(*sizes)
    axes = {k: {0: "batch"} for k, v in example.items() if isinstance(v, Tensor) and v.dim() and v.shape[0] == sizes[0]}
    return Net(settled(module, example), call, axes)


# --- diffusion


def _diffuser(name: str, call: Callable[[int, int], Call], **options: Any) -> Architecture:
    def build() -> Net:
        torch.manual_seed(0)
        return _named(getattr(library("diffusers"), name)(**options), call)

    return Architecture(name, "diffusion", "diffusers", build, _BATCHES)


def _step(*size: int, **more: tuple[int, ...]) -> Callable[[int, int], Call]:
    """A noisy sample, its time, and what the step is conditioned on."""

    def call(batch: int, length: int) -> Call:
        extra = {k: noise(batch, *shape, seed=9) for k, shape in more.items()}
        return {"sample": noise(batch, *size), "timestep": torch.tensor(37)} | extra

    return call


def _transformer(*size: int, **more: tuple[int, ...]) -> Callable[[int, int], Call]:
    def call(batch: int, length: int) -> Call:
        extra = {k: noise(batch, *shape, seed=9) for k, shape in more.items()}
        return {"hidden_states": noise(batch, *size), "timestep": torch.full((batch,), 37.0)} | extra

    return call


def _dit(batch: int, length: int) -> Call:
    return {
        "hidden_states": noise(batch, 4, 8, 8),
        "timestep": torch.full((batch,), 37),
        "class_labels": torch.arange(batch),
    }


def _flux(batch: int, length: int) -> Call:
    return {
        "hidden_states": noise(batch, 16, 4), "encoder_hidden_states": noise(batch, 6, 32, seed=9),
        "pooled_projections": noise(batch, 32, seed=10), "timestep": torch.full((batch,), 0.5),
        "img_ids": torch.arange(48).reshape(16, 3).float(), "txt_ids": torch.zeros(6, 3),
    }  # fmt: skip


_BLOCKS = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
_CROSS = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
}
_HEADS = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1}


# --- graphs

_NODES, _EDGES = 12, 40


def _graph(nodes: int, length: int) -> Call:
    edges = torch.randint(0, nodes, (2, _EDGES if nodes == _NODES else 61), generator=generator(7))
    return {"x": noise(nodes, 8), "edge_index": edges}


def _geometric(name: str, **options: Any) -> Architecture:
    """Messages along edges, PyTorch Geometric's; the numbers of nodes and of edges are both open."""

    def build() -> Net:
        torch.manual_seed(0)
        models = library("torch_geometric.nn.models")
        module = getattr(models, name)(in_channels=8, hidden_channels=16, num_layers=2, out_channels=5, **options)
        return Net(settled(module, _graph(_NODES, 0)), _graph, {"x": {0: "nodes"}, "edge_index": {1: "edges"}})

    return Architecture(f"PyG:{name}", "graph network", "torch_geometric", build, ((_NODES, 0), (19, 1)))


# --- recommenders


class DeepFM(nn.Module):
    """Guo et al. 2017: linear terms, products of all pairs of fields' vectors, and a network on them."""

    first: Tensor

    def __init__(self, fields: int = 6, rows: int = 50, width: int = 8):
        super().__init__()
        self.linear, self.table = nn.Embedding(fields * rows, 1), nn.Embedding(fields * rows, width)
        self.deep = nn.Sequential(nn.Linear(fields * width, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
        self.register_buffer("first", torch.arange(fields) * rows)

    def forward(self, ids: Tensor) -> Tensor:
        at = ids + self.first
        x = self.table(at)
        pairs = 0.5 * (x.sum(1).square() - x.square().sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.linear(at).sum(1) + pairs + self.deep(x.flatten(1)))


class DeepCross(nn.Module):
    """DCN-v2 (Wang et al. 2021): x0 * (W x + b) + x, thrice, beside a network."""

    def __init__(self, dense: int = 7, width: int = 16):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(40, width) for _ in range(3))
        total = dense + 3 * width
        self.cross = nn.ModuleList(nn.Linear(total, total) for _ in range(3))
        self.deep = nn.Sequential(nn.Linear(total, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(total + 16, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        start = torch.cat([dense, *(t(ids[:, i]) for i, t in enumerate(self.tables))], 1)
        x = start
        for layer in self.cross:
            x = start * layer(x) + x
        return self.head(torch.cat([x, self.deep(start)], 1)).squeeze(1)


class Sequential(nn.Module):
    """SASRec (Kang and McAuley 2018): what a user saw, in order, to scores of all items."""

    def __init__(self, items: int = 60, width: int = 16):
        super().__init__()
        self.items, self.places = nn.Embedding(items, width, padding_idx=0), nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, seen: Tensor) -> Tensor:
        length = seen.shape[1]
        x = self.items(seen) + self.places(torch.arange(length))
        causal = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        return self.layers(x, mask=causal)[:, -1] @ self.items.weight.T


class TwoTowers(nn.Module):
    """Retrieval (Covington et al. 2016): a user's history in bags, items, and scores of the best."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.history, self.items = nn.EmbeddingBag(80, width, mode="mean"), nn.Embedding(80, width)
        self.user = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width))

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        users = nn.functional.normalize(self.user(self.history(seen)), dim=1)
        best = torch.topk(users @ nn.functional.normalize(self.items.weight, dim=1).T, 10)
        return best.values, best.indices


class Factors(nn.Module):
    """Neural collaborative filtering (He et al. 2017)."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.users, self.items = (nn.Embedding(30, 2 * width) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(2 * width, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.head = nn.Linear(2 * width, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        (mf_u, mlp_u), (mf_i, mlp_i) = self.users(user).chunk(2, 1), self.items(item).chunk(2, 1)
        return self.head(torch.cat([mf_u * mf_i, self.deep(torch.cat([mlp_u, mlp_i], 1))], 1)).sigmoid()


def _own(
    kind: str, make: Callable[[], nn.Module], call: Callable[[int, int], Call], axes: Any = None, sizes: Any = _BATCHES
):
    def build() -> Net:
        torch.manual_seed(0)
        net = _named(make(), call, sizes[0])
        return net if axes is None else Net(net.module, call, axes)

    return Architecture(make.__name__, kind, "torch", build, sizes)


def _ids(*shape: int, rows: int) -> Callable[[int, int], Tensor]:
    return lambda batch, length: torch.randint(1, rows, (batch, *shape), generator=generator(7))


CASES = [
    _diffuser("UNet2DModel", _step(3, 16, 16), sample_size=16, **_BLOCKS, down_block_types=("DownBlock2D",
              "AttnDownBlock2D"),
              up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4),
    _diffuser("UNet2DConditionModel", _step(4, 16, 16, encoder_hidden_states=(5, 32)), sample_size=16, **_BLOCKS,
              **_CROSS,
              cross_attention_dim=32, attention_head_dim=4),
    _diffuser("UNet1DModel", _step(2, 32), sample_size=32, in_channels=2, out_channels=2, block_out_channels=(16, 16),
              extra_in_channels=32, layers_per_block=1, down_block_types=("DownBlock1DNoSkip", "DownBlock1D"),
              up_block_types=("UpBlock1D", "UpBlock1DNoSkip"), mid_block_type="UNetMidBlock1D"),
    _diffuser("UNet3DConditionModel", _step(4, 2, 16, 16, encoder_hidden_states=(5, 32)), sample_size=16, **_BLOCKS,
              down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D",
              "CrossAttnUpBlock3D"),
              cross_attention_dim=32, attention_head_dim=4),
    _diffuser("AutoencoderKL", lambda n, _: {"sample": noise(n, 3, 32, 32)}, **_BLOCKS, latent_channels=4,
              down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2),
    _diffuser("VQModel", lambda n, _: {"sample": noise(n, 3, 32, 32)}, **_BLOCKS, latent_channels=3,
              num_vq_embeddings=16,
              down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2),
    _diffuser("AutoencoderTiny", lambda n, _: {"sample": noise(n, 3, 32, 32)}, encoder_block_out_channels=(8, 8),
              decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)),
    _diffuser("DiTTransformer2DModel", _dit, **_HEADS, in_channels=4, out_channels=4, sample_size=8, patch_size=2,
              num_embeds_ada_norm=10, norm_num_groups=4),
    _diffuser("PixArtTransformer2DModel",
              lambda n, _: {"hidden_states": noise(n, 4, 8, 8), "encoder_hidden_states": noise(n, 5, 32, seed=9),
                            "timestep": torch.full((n,), 37)},
              **_HEADS, in_channels=4, out_channels=4, sample_size=8, patch_size=2, cross_attention_dim=32,
              caption_channels=32,
              norm_num_groups=4, use_additional_conditions=False),
    _diffuser("SD3Transformer2DModel", _transformer(4, 8, 8, encoder_hidden_states=(5, 32), pooled_projections=(16,)),
              **_HEADS,
              sample_size=8, patch_size=2, in_channels=4, out_channels=4, joint_attention_dim=32,
              caption_projection_dim=32,
              pooled_projection_dim=16, pos_embed_max_size=8),
    _diffuser("FluxTransformer2DModel", _flux, **_HEADS, num_single_layers=1, in_channels=4, joint_attention_dim=32,
              pooled_projection_dim=32, axes_dims_rope=(4, 4, 8), patch_size=1, guidance_embeds=False),
    _diffuser("AuraFlowTransformer2DModel", _transformer(4, 8, 8, encoder_hidden_states=(5, 32)), sample_size=8,
              patch_size=2,
              in_channels=4, out_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=16,
              num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=32, pos_embed_max_size=16),
    _diffuser("PriorTransformer",
              lambda n, _: {"hidden_states": noise(n, 16), "timestep": torch.tensor(3), "proj_embedding": noise(n, 16,
              seed=8),
                            "encoder_hidden_states": noise(n, 7, 16, seed=9)},
              **_HEADS, embedding_dim=16, num_embeddings=7, additional_embeddings=4),
    _diffuser("T2IAdapter", lambda n, _: {"x": noise(n, 3, 32, 32)}, channels=[8, 16], num_res_blocks=1,
              downscale_factor=4),
    _geometric("GCN"),
    _geometric("GraphSAGE"),
    _geometric("GIN"),
    _geometric("GAT", heads=2),
    _geometric("EdgeCNN"),
    _own("recommender", DeepFM, lambda n, _: {"ids": _ids(6, rows=50)(n, 0)}),
    _own("recommender", DeepCross, lambda n, _: {"dense": noise(n, 7), "ids": _ids(3, rows=40)(n, 0)}),
    _own("recommender", Sequential, lambda n, length: {"seen": _ids(length, rows=60)(n, 0)}, {"seen": {0: "batch",
         1: "length"}},
         ((2, 12), (3, 19))),
    _own("recommender", TwoTowers, lambda n, length: {"seen": _ids(length, rows=80)(n, 0)}, {"seen": {0: "batch",
         1: "length"}},
         ((2, 12), (3, 19))),
    _own("recommender", Factors, lambda n, _: {"user": _ids(rows=30)(n, 0), "item": _ids(rows=30)(n, 0)}),
]  # fmt: skip
