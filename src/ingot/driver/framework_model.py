"""Compiled models that are called as the programs they come from, with these programs' own arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingot.runtime.other_sizes import OtherSizes
from ingot.support.errors import SizesError

if TYPE_CHECKING:
    import torch


class FrameworkModel:
    """A compiled model that is called with the arguments of the program it comes from, and returns its results.

    flatten: (args, kwargs) to the compiled model's inputs; unflatten: its outputs to what the program returns.
    """

    def __init__(
        self,
        compiled: Any,
        flatten: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]],
        unflatten: Callable[[Sequence[Any]], Any],
    ):
        self.compiled = compiled
        self._flatten, self._unflatten = flatten, unflatten
        self.others: OtherSizes | None = None  # where calls of other sizes go

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._unflatten(self.compiled.run(self._flatten(args, kwargs)))
        except SizesError as e:
            return self.compiled.elsewhere(self.others, e, lambda other: other(*args, **kwargs))

    def explain(self, *args: Any, **kwargs: Any) -> str:
        return self.compiled.explain(*self._flatten(args, kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)

    def __repr__(self) -> str:
        return repr(self.compiled).replace("CompiledModel", type(self).__name__, 1)

    def __reduce__(self) -> Any:
        return self.compiled.__reduce__()


class TorchModel:
    """A compiled PyTorch model: called with the model's own arguments, it returns the model's own structure."""

    def __init__(self, compiled: Any, call: Callable[..., Any], flatten: Callable[..., Sequence[Any]]):
        self.compiled = compiled
        self._call = call
        self._flatten = flatten
        self.others: OtherSizes | None = None  # where calls of other sizes go

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._call(*args, **kwargs)
        except SizesError as e:
            return self.compiled.elsewhere(self.others, e, lambda other: other(*args, **kwargs))

    def state(self) -> dict[str, torch.Tensor]:
        """As `CompiledModel.state`, in tensors."""
        from ingot.frontends.torch import to_torch

        return {name: to_torch(value) for name, value in self.compiled.state().items()}

    def explain(self, *args: Any, **kwargs: Any) -> str:
        return self.compiled.explain(*self._flatten(args, kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)

    def __repr__(self) -> str:
        return repr(self.compiled).replace("CompiledModel", "TorchModel", 1)

    def __reduce__(self) -> Any:
        return self.compiled.__reduce__()
