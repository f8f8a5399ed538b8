"""Chat templates: messages to the text that a model expects, by `jinja2` in its sandbox, as in `transformers`.

    Template(source, tokenizer.special).render([{"role": "user", "content": "Hello"}])

A template is an untrusted program from a file. It can access only its values, cannot change them, and is limited in
steps and characters: loops, macros, sums and repetitions are counted.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from ingot.support.errors import ImportModelError, InputError

_SOURCE_CHARACTERS = 1 << 20
_CHARACTERS = 1 << 24  # the limit of a text, or of the elements of a list, while a template runs
_STEPS = 1 << 18  # the limit of loop iterations; a macro call counts as several
_LOOP_COST, _MACRO_COST = 1, 16
# filters of jinja2 and methods of str that multiply the size of their operand
_GROWING = {
    "replace",
    "join",
    "indent",
    "ljust",
    "rjust",
    "center",
    "zfill",
    "expandtabs",
    "batch",
    "slice",
    "truncate",
}
_EXTRA = "pip install 'ingot-compiler[language]'"

# for a model that was not trained on any template
PLAIN = """{{ bos_token }}{% for m in messages %}
{{ {'user': 'User', 'assistant': 'Assistant'}.get(m.role, m.role) ~ ': ' ~ m.content ~ '\n' }}
{%- endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""
PLAIN_STOP = "\nUser:"
_QUEUE_METHODS = ("append", "pop")
_DATE = "%B %d, %Y"  # without a time: prompts that begin alike share pages
_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]


class Template:
    """special: the texts of special tokens by name. Raises ImportModelError for an invalid template."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        if len(source) > _SOURCE_CHARACTERS:
            raise ImportModelError(
                "the chat template", expected=f"at most {_SOURCE_CHARACTERS} characters", got=len(source)
            )
        self.source, self._special = source, dict(special)
        self._steps = 0
        try:
            self._template = _environment(self._step).from_string(source)
        except Exception as error:  # a syntax error, or a RecursionError
            raise ImportModelError(f"the chat template is not readable: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **values: Any,
    ) -> str:
        """The text of messages. values: further variables of the template, such as `enable_thinking`. Raises InputError
        for messages that the template refuses."""
        check_messages(messages)
        # a copy by JSON: a template only sees dicts, lists, texts and numbers
        chat = [_without_nulls(message) for message in messages]
        context = {"messages": chat, "tools": list(tools) if tools else None, "documents": None}
        # as some templates of before `tools` call them
        context |= {"functions": json.dumps(context["tools"], indent=4), "datetime": _strftime_now(_DATE), **values}
        try:
            plain = json.loads(json.dumps(context))
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError("messages", expected="what JSON holds", got=str(error)) from error
        variables = {**self._special, "add_generation_prompt": add_generation_prompt, "continue_final_message": False}
        variables |= plain
        self._steps = 0
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(variables):
                parts.append(part)
                size += len(part)
                if size > _CHARACTERS:
                    raise InputError("the chat template", expected=f"at most {_CHARACTERS} characters", got="more")
        except InputError:
            raise
        except Exception as error:  # templates raise whatever they like
            fix = "give the messages in the order and form that the model's card shows"
            raise InputError(f"the chat template refuses the messages: {error}", fix=fix) from error
        return "".join(parts)

    def _step(self, cost: int) -> str:
        self._steps += cost
        if self._steps > _STEPS:
            raise InputError("the chat template", expected=f"at most {_STEPS} steps", got="more")
        return ""


def _without_nulls(message: Message) -> dict[str, Any]:
    """A message without None values, which many templates would print, and with its reasoning under all names that
    templates use."""
    fields = {key: value for key, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in _REASONING if name in fields), None)
    return fields if reasoning is None else {"thinking": reasoning, **fields, "reasoning_content": reasoning}


def check_messages(messages: Any) -> None:
    expected = '[{"role": "user", "content": "..."}, ...]'
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InputError("messages", expected=expected, got=repr(messages)[:80])
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError("messages", expected=expected, got=repr(message)[:80])


@functools.cache
def _classes() -> tuple[Any, ...]:
    try:
        from jinja2 import nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ImportModelError("chat templates need the package jinja2", fix=_EXTRA) from error

    class Generation(Extension):
        """{% generation %}...{% endgeneration %} marks training data; it is rendered unchanged."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    class Bounded(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            """for x in y: body  ->  for x in y: __step(1); body   a ~ b  ->  __concat(a, b)   [a]  ->  __built([a])
            n.ids.append(x)  ->  __queue(n, "ids", "append", x)"""

            def call(function: str, arguments: list[Any], at: Any) -> Any:
                return nodes.Call(nodes.Name(function, "load"), arguments, [], None, None).set_lineno(at.lineno)

            tree = super()._parse(source, name, filename)
            for node in [*tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))]:
                cost = nodes.Const(_LOOP_COST if isinstance(node, nodes.For) else _MACRO_COST)
                node.body.insert(0, nodes.Output([call("__step", [cost], node)]).set_lineno(node.lineno))
            for node in [*tree.find_all(nodes.Concat)]:
                _replace(tree, node, call("__concat", node.nodes, node))
            for node in [*tree.find_all((nodes.List, nodes.Dict))]:
                if node.items:
                    _replace(tree, node, call("__built", [node], node))
            for node in [*tree.find_all(nodes.Call)]:
                method: Any = node.node
                owner = method.node if isinstance(method, nodes.Getattr) and method.attr in _QUEUE_METHODS else None
                if isinstance(owner, nodes.Getattr):
                    arguments = [owner.node, nodes.Const(owner.attr), nodes.Const(method.attr), *node.args]
                    _replace(tree, node, call("__queue", arguments, node))
            return tree

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "%" and isinstance(left, str | bytes):
                raise InputError("the chat template", expected="texts by ~ and join", got="a format")
            if operator == "**" and not -64 <= right <= 64:
                raise _too_large()
            if operator == "*":
                for a, b in ((left, right), (right, left)):
                    if isinstance(b, int) and _length(a) * abs(b) > _CHARACTERS:
                        raise _too_large()
            return _checked(super().call_binop(context, operator, left, right))

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
            method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
            owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
            if isinstance(owner, str):
                _check_growth(name, owner, (*args, *kwargs.values()))
            return _checked(super().call(__context, __obj, *args, **kwargs))

    return Bounded, Generation, loopcontrols


def _environment(step: Callable[[int], str]) -> Any:
    """The names and filters that `transformers` provides to templates, without those that no known template uses."""
    bounded, generation, loopcontrols = _classes()
    env = bounded(trim_blocks=True, lstrip_blocks=True, extensions=[generation, loopcontrols])
    for unsafe in ("center", "format", "pprint", "urlize", "xmlattr", "random", "filesizeformat", "wordwrap"):
        env.filters.pop(unsafe, None)
    env.filters = {name: _bounded_filter(name, f) for name, f in env.filters.items()} | {"tojson": _tojson}
    kept_globals = ("range", "dict", "namespace", "joiner", "cycler")
    env.globals = {name: value for name, value in env.globals.items() if name in kept_globals}
    env.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}
    env.globals |= {"__step": step, "__concat": _concat, "__built": _checked, "__queue": _queue}
    return env


def _replace(tree: Any, old: Any, new: Any) -> None:
    """Replace a node in a jinja2 tree."""
    stack = [tree]
    while stack:
        parent = stack.pop()
        for field in parent.fields:
            value = getattr(parent, field, None)
            if value is old:
                setattr(parent, field, new)
                return
            if isinstance(value, list) and any(item is old for item in value):
                value[:] = [new if item is old else item for item in value]
                return
        stack += parent.iter_child_nodes()


def _bounded_filter(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        _check_growth(name, next((a for a in args if isinstance(a, str | list)), ""), (*args, *kwargs.values()))
        return _checked(f(*args, **kwargs))

    return call


def _check_growth(name: str, text: Any, arguments: Sequence[Any]) -> None:
    """Raise InputError if a filter or method could multiply a text or a list beyond the limit."""
    if name in _GROWING:
        sizes = (abs(a) if isinstance(a, int) else _length(a) for a in arguments if a is not text)
        if max(_length(text), 1) * max(sizes, default=0) > _CHARACTERS:
            raise _too_large()
    if name in ("format", "format_map") and re.search(r":[^}]*(\{|\d{4})|\.\d{4}", str(text)):
        raise _too_large()


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _size(value: Any, sizes: dict[int, int]) -> int:
    """The number of characters and elements of a value, recursively; repeated parts count repeatedly."""
    if isinstance(value, str | bytes):
        return len(value)
    if not isinstance(value, list | tuple | dict):
        if type(value).__name__ != "Namespace":  # jinja2's only other container
            return 1
        value = object.__getattribute__(value, "_Namespace__attrs")
    if id(value) not in sizes:
        sizes[id(value)] = 0  # ends the recursion for a value that contains itself
        parts = (*value, *value.values()) if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(_size(part, sizes) for part in parts)
    return sizes[id(value)]


def _checked(value: Any) -> Any:
    """The same value. Raises InputError for one that is too large."""
    is_large = value.bit_length() > 4096 if isinstance(value, int) else _size(value, {}) > _CHARACTERS
    if is_large:
        raise _too_large()
    return value


def _too_large() -> InputError:
    return InputError("the chat template", expected=f"texts of at most {_CHARACTERS} characters", got="more")


def _concat(*parts: Any) -> str:
    return _checked("".join(map(str, map(_checked, parts))))


def _queue(owner: Any, name: str, method: str, *arguments: Any) -> Any:
    """n.ids.append(x), n.ids.pop(i): a new list for a namespace, since values that templates share do not change."""
    values = object.__getattribute__(owner, "_Namespace__attrs") if type(owner).__name__ == "Namespace" else {}
    if not isinstance(values.get(name), list):
        raise InputError("the chat template", expected=f"{method} of a list of a namespace", got="of another value")
    rest = [*values[name]]
    result = getattr(rest, method)(*arguments)
    values[name] = _checked(rest)
    return result


def _raise(message: object) -> None:
    raise ValueError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter."""
    if isinstance(indent, int) and not 0 <= indent <= 64:
        raise _too_large()
    if separators is not None:
        separators = tuple(separators)
    if isinstance(value, Generator):  # of `map` and `select`
        value = _checked([*value])
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
