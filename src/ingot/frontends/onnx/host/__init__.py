"""Nodes that no numeric program computes: strings and encoded images, done by numpy and pillow before, between and
behind the programs of a model."""

from ingot.frontends.onnx.host.stages import HostStage, NumericStage, Stages, hosted, stages_of

__all__ = ["HostStage", "NumericStage", "Stages", "hosted", "stages_of"]
