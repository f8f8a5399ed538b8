"""Nodes on strings and encoded images, which run on the host with numpy and pillow before, between and after the
compiled programs of a model."""

from ingot.frontends.onnx.host.stages import HostStage, NumericStage, Stages, hosted, stages_of

__all__ = ["HostStage", "NumericStage", "Stages", "hosted", "stages_of"]
