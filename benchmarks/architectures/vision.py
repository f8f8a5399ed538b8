"""Images and video: classification, detection, segmentation, depth, flow, super-resolution, and images beside text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.architectures.case import Architecture, Call, Net, library, settled
from benchmarks.architectures.text import VOCABULARY, ids, mask, transformer
from benchmarks.models.base import generator

_BATCHES = ((2, 0), (3, 0))
_TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_VIT = {**_TINY, "image_size": 32, "patch_size": 8}
_STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
_RESNET = {"model_type": "resnet", "embedding_size": 8, **_STAGES}
_DETR = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_queries": 10,
}  # fmt: skip


def pixels(*size: int, name: str = "pixel_values") -> Callable[[int, int], Call]:
    def call(batch: int, length: int) -> Call:
        return {name: torch.randn(batch, *size, generator=generator(7))}

    return call


def _net(module: Any, call: Callable[[int, int], Call], batched: bool = True) -> Net:
    example = call(2, 0)
    axes = {name: {0: "batch"} for name, value in example.items() if isinstance(value, Tensor)}
    return Net(settled(module, example), call, axes if batched else None)


def _of(kind: str, arch: str, size: tuple[int, ...] = (3, 32, 32), base: dict[str, Any] | None = None, **options: Any):
    def build() -> Net:
        return _net(transformer(arch, {**(base or {}), **options}), pixels(*size))

    return Architecture(arch, kind, "transformers", build, _BATCHES)


def _resnet_config() -> Any:
    return library("transformers").ResNetConfig(**_RESNET, out_features=["stage2", "stage3", "stage4"])


def _swin_config(stages: int = 2) -> Any:
    return library("transformers").SwinConfig(
        **{**_SWIN, "depths": [1] * stages, "num_heads": [2] * stages},
        out_features=[f"stage{i + 1}" for i in range(stages)],
    )


def _behind(
    kind: str, arch: str, backbone: Callable[[], Any], size: tuple[int, ...], base: dict[str, Any], **options: Any
):
    """A network on a backbone with a configuration of its own."""

    def build() -> Net:
        settings = {**base, **options, "backbone_config": backbone()}
        if arch in ("DetrForObjectDetection", "ConditionalDetrForObjectDetection", "TableTransformerForObjectDetection",
                    "DeformableDetrForObjectDetection"):  # fmt: skip
            settings |= {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
        return _net(transformer(arch, settings), pixels(*size))

    return Architecture(arch, kind, "transformers", build, _BATCHES)


def _multimodal(
    arch: str, options: Callable[[], dict[str, Any]], size: tuple[int, ...] = (3, 32, 32), masked: bool = True
):
    def call(batch: int, length: int) -> Call:
        given = {"input_ids": ids(batch, length), "pixel_values": torch.randn(batch, *size, generator=generator(8))}
        if masked:
            given["attention_mask"] = mask(batch, length)
        return given

    def build() -> Net:
        module = transformer(arch, options())
        text = {0: "batch", 1: "length"}
        axes: dict[str, Any] = {"input_ids": text, "pixel_values": {0: "batch"}}
        if masked:
            axes["attention_mask"] = text
        return Net(settled(module, call(2, 16)), call, axes)

    return Architecture(arch, "image and text", "transformers", build, ((2, 16), (2, 11)))


def _two_towers() -> dict[str, Any]:
    text = {**_TINY, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": 2}
    return {"text_config": text, "vision_config": dict(_VIT), "projection_dim": 16}


def _vilt() -> dict[str, Any]:
    return {**_VIT, "vocab_size": VOCABULARY, "max_position_embeddings": 40, "max_image_length": 16}


def _timm(name: str, kind: str = "image", size: int = 64, **options: Any) -> Architecture:
    def build() -> Net:
        torch.manual_seed(0)
        return _net(library("timm").create_model(name, pretrained=False, **options), pixels(3, size, size, name="x"))

    return Architecture(f"timm:{name}", kind, "timm", build, _BATCHES)


def _torchvision(path: str, kind: str, size: tuple[int, ...], argument: str = "x", **options: Any) -> Architecture:
    def build() -> Net:
        torch.manual_seed(0)
        models = library("torchvision.models")
        family, _, name = path.rpartition(".")
        module = getattr(getattr(models, family) if family else models, name)(weights=None, **options)
        return _net(module, pixels(*size, name=argument))

    return Architecture(f"torchvision:{path}", kind, "torchvision", build, _BATCHES)


def _detector(name: str, size: int = 96, **options: Any) -> Architecture:
    """A detector of torchvision: a list of images to a dict of boxes, labels and scores for each."""

    def call(batch: int, length: int) -> Call:
        return {"images": [torch.rand(3, size, size, generator=generator(7 + i)) for i in range(2)]}

    def build() -> Net:
        torch.manual_seed(0)
        models = library("torchvision.models.detection")
        module = getattr(models, name)(weights=None, weights_backbone=None, **options)
        return Net(module.eval().requires_grad_(False), call)

    return Architecture(f"torchvision:{name}", "detection", "torchvision", build, _BATCHES)


def _raft() -> Net:
    torch.manual_seed(0)
    module = library("torchvision.models.optical_flow").raft_small(weights=None)

    def call(batch: int, length: int) -> Call:
        first, second = (torch.randn(batch, 3, 128, 128, generator=generator(i)) for i in (7, 8))
        return {"image1": first, "image2": second, "num_flow_updates": 3}

    return _net(module, call)


_image = partial(_of, "image")
_video = partial(_of, "video")
_segment = partial(_of, "segmentation")

CASES = [
    _image("ViTForImageClassification", base=_VIT),
    _image("DeiTForImageClassification", base=_VIT),
    _image("BeitForImageClassification", base=_VIT, use_relative_position_bias=True),
    _image("Dinov2Model", base=_TINY, image_size=32, patch_size=8),
    _image("Dinov2WithRegistersModel", base=_TINY, image_size=32, patch_size=8),
    _image("IJepaModel", base=_VIT),
    _image("SwinForImageClassification", base=_SWIN),
    _image("Swinv2ForImageClassification", base=_SWIN),
    _image("ConvNextForImageClassification", base=_STAGES, size=(3, 64, 64)),
    _image("ConvNextV2ForImageClassification", base=_STAGES, size=(3, 64, 64)),
    _image("ResNetForImageClassification", base=_STAGES, embedding_size=8, size=(3, 64, 64)),
    _image("RegNetForImageClassification", base=_STAGES, embedding_size=8, groups_width=4, size=(3, 64, 64)),
    _image("BitForImageClassification", base=_STAGES, embedding_size=8, num_groups=2, size=(3, 64, 64)),
    _image("PoolFormerForImageClassification", base=_STAGES, size=(3, 64, 64)),
    _image("FocalNetForImageClassification", image_size=32, patch_size=2, embed_dim=16, depths=[1, 1],
           hidden_sizes=[16, 32],
           focal_levels=[2, 2], focal_windows=[3, 3]),
    _image("CvtForImageClassification", embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 1, 1],
           cls_token=[False, False, True], num_channels=3, size=(3, 64, 64)),
    _image("LevitForImageClassification", image_size=64, hidden_sizes=[16, 32, 48], num_attention_heads=[2, 4, 6],
           depths=[1, 1, 1], key_dim=[8, 8, 8], size=(3, 64, 64)),
    _image("MobileNetV1ForImageClassification", depth_multiplier=0.25, size=(3, 64, 64)),
    _image("MobileViTForImageClassification", image_size=64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16,
           16, 24, 24, 32],
           num_attention_heads=2, size=(3, 64, 64)),
    _image("EfficientNetForImageClassification", image_size=64, width_coefficient=0.5, depth_coefficient=0.3,
           hidden_dim=640,
           size=(3, 64, 64)),
    _image("PvtV2ForImageClassification", image_size=64, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
           num_attention_heads=[1, 2, 3, 4], size=(3, 64, 64)),
    _image("HieraForImageClassification", image_size=[64, 64], embed_dim=16, depths=[1, 1, 1, 1], num_heads=[1, 2, 4,
           8],
           size=(3, 64, 64)),
    _image("PerceiverForImageClassificationLearned", num_latents=8, d_latents=32, d_model=64, num_blocks=1,
           num_self_attends_per_block=1, num_self_attention_heads=2, num_cross_attention_heads=1, image_size=32),
    _timm("mobilenetv4_conv_small"),
    _timm("volo_d1_224", size=224),
    _timm("cait_xxs24_224", size=224, depth=2),
    _timm("crossvit_tiny_240", size=240),
    _timm("twins_pcpvt_small", size=64, img_size=64),
    _timm("mambaout_femto"),
    _timm("starnet_s1"),
    _timm("ghostnetv2_100"),
    _timm("eca_halonext26ts", size=256),
    _timm("lambda_resnet26t", size=256),
    _timm("vit_tiny_r_s16_p8_224", size=224),
    _timm("tiny_vit_5m_224", size=224),
    _timm("csatv2", size=512),
    _torchvision("alexnet", "image", (3, 96, 96)),
    _torchvision("squeezenet1_1", "image", (3, 64, 64)),
    _torchvision("googlenet", "image", (3, 64, 64), aux_logits=False, init_weights=False),
    _torchvision("shufflenet_v2_x0_5", "image", (3, 64, 64)),
    _torchvision("segmentation.fcn_resnet50", "segmentation", (3, 64, 64), weights_backbone=None, num_classes=5),
    _torchvision("segmentation.deeplabv3_mobilenet_v3_large", "segmentation", (3, 64, 64), weights_backbone=None,
                 num_classes=5),
    _torchvision("segmentation.lraspp_mobilenet_v3_large", "segmentation", (3, 64, 64), "input", weights_backbone=None,
                 num_classes=5),
    _torchvision("video.r3d_18", "video", (3, 4, 32, 32)),
    _torchvision("video.r2plus1d_18", "video", (3, 4, 32, 32)),
    _torchvision("video.s3d", "video", (3, 16, 224, 224)),
    _detector("ssdlite320_mobilenet_v3_large", 320, num_classes=5),
    _detector("retinanet_resnet50_fpn", num_classes=5, min_size=96, max_size=96),
    _detector("fcos_resnet50_fpn", num_classes=5, min_size=96, max_size=96),
    _detector("fasterrcnn_mobilenet_v3_large_320_fpn", num_classes=5, min_size=96, max_size=96),
    Architecture("torchvision:raft_small", "optical flow", "torchvision", _raft, _BATCHES),
    _behind("detection", "DetrForObjectDetection", _resnet_config, (3, 64, 64), _DETR),
    _behind("detection", "ConditionalDetrForObjectDetection", _resnet_config, (3, 64, 64), _DETR),
    _behind("detection", "TableTransformerForObjectDetection", _resnet_config, (3, 64, 64), _DETR),
    _behind("detection", "DeformableDetrForObjectDetection", _resnet_config, (3, 64, 64), _DETR, num_feature_levels=3),
    _of("detection", "YolosForObjectDetection", (3, 32, 32), _TINY, image_size=[32, 32], patch_size=8,
        num_detection_tokens=5),
    _segment("SegformerForSemanticSegmentation", (3, 64, 64), depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32],
             num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=32),
    _behind("segmentation", "UperNetForSemanticSegmentation", partial(_swin_config, 4), (3, 64, 64), {}, hidden_size=32,
            num_labels=5, use_auxiliary_head=False, auxiliary_in_channels=64),
    _behind("segmentation", "Mask2FormerForUniversalSegmentation", partial(_swin_config, 4), (3, 64, 64), {},
            feature_size=32,
            mask_feature_size=32, hidden_dim=32, encoder_layers=2, decoder_layers=3, num_attention_heads=4,
            num_queries=6,
            encoder_feedforward_dim=48, dim_feedforward=48),
    _of("depth", "DPTForDepthEstimation", (3, 32, 32), _VIT, num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 24, 32], fusion_hidden_size=16),
    _of("depth", "GLPNForDepthEstimation", (3, 64, 64), depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32],
        num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16),
    _of("super-resolution", "Swin2SRForImageSuperResolution", (3, 32, 32), image_size=32, patch_size=1, embed_dim=16,
        depths=[1, 1], num_heads=[2, 2], window_size=4, upscale=2),
    _video("TimesformerForVideoClassification", (4, 3, 32, 32), _VIT, num_frames=4),
    _video("VivitForVideoClassification", (4, 3, 32, 32), _TINY, image_size=32, tubelet_size=[2, 8, 8], num_frames=4),
    _video("VideoMAEForVideoClassification", (4, 3, 32, 32), _VIT, num_frames=4),
    _multimodal("CLIPModel", _two_towers),
    _multimodal("SiglipModel", lambda: {k: v for k, v in _two_towers().items() if k != "projection_dim"}),
    _multimodal("ChineseCLIPModel", _two_towers),
    _multimodal("ViltModel", _vilt),
]  # fmt: skip
