"""Ops of torch.library that the user registered with Ingot."""

from __future__ import annotations

from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.table import Handler, schema_of
from ingot.frontends.torch.values import Complex, Context, Number
from ingot.ir.node import Node
from ingot.ops import custom


def registered_handler(name: str) -> Handler | None:
    """The handler of "library.op.overload": tensors are its operands, in order; other arguments are attributes, with
    the names and defaults of its schema."""
    registration = custom.find("torch", name)
    if registration is None:
        return None

    def handler(c: Context, *args: object, **named: object) -> object:
        operands: list[Node] = []
        attributes: dict[str, object] = {}
        for n, argument in enumerate(schema_of(name).arguments):
            value = args[n] if n < len(args) else named.get(argument.name, argument.default_value)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Complex | Number):
                    raise Unsupported(f"{argument.name}: neither a tensor of real numbers nor known when compiling")
            if isinstance(value, Node):
                operands.append(value)
            elif isinstance(value, tuple) and value and all(isinstance(v, Node) for v in value):
                operands += value
            else:
                attributes[argument.name] = value
        node = custom.apply(registration, operands, attributes, c.loc)
        return node if len(node.types) == 1 else node.results

    return handler
