"""`ingot.LanguageModel`."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from ingot.language.engine import Answer, Engine, Stepper, open_engine
from ingot.language.engine.paging import Steps, page_count
from ingot.language.session import SAMPLING, Sampling, Session
from ingot.language.text.arguments import check_ids, is_several, stop_texts, token_ids
from ingot.language.text.generation import Request, generate, joined_answer, parts
from ingot.language.text.grammar import Grammars
from ingot.language.text.template import Message, Template
from ingot.language.text.tokenizer import Tokenizer
from ingot.runtime import artifact
from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.runtime.state import entropy
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError, ImportModelError, InputError
from ingot.support.garbage import no_collection

# where neither the caller nor the file says how to sample: llama.cpp's defaults
_SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
_SCORE_TOKENS = 32  # tokens of a call that scores: each has as many logits as there are words
_DEFAULT_TOKENS = 256  # of a text, unless the caller says otherwise
_SEQUENCES = 8  # at once
_UNLIMITED = 1 << 62  # more than there can be


@dataclass(frozen=True)
class Score:
    """ids: the tokens of the text. logprobs: f64, the logarithm of the probability of each token except the first."""

    ids: list[int]
    logprobs: np.ndarray

    @property
    def total(self) -> float:
        return float(self.logprobs.sum())

    @property
    def perplexity(self) -> float:
        """e to the mean of minus the logprobs."""
        return float(np.exp(-self.logprobs.mean()))


class LanguageModel:
    """A language model that generates text.

        lm = ingot.LanguageModel("model.gguf")
        lm.generate("The capital of France is", max_tokens=16)
        lm.chat([{"role": "user", "content": "Hello"}])

    The prefix that a call shares with the previous one is not computed again. Calls may come from any thread; they run
    one after another. Ctrl-C ends a call.

    context: the maximum number of tokens of a sequence. name: of the file. tokenizer: converts texts to ids and back.
    template: the source of the chat template, which may be set.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        context: int | None = None,
        cache: str = "float16",
        adapters: str | os.PathLike[str] | Mapping[Any, float] | Sequence[Any] = (),
        target: str = "native",
        precision: str = "float32",
        activations: str = "float32",
        threads: int | None = None,
        sequences: int | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        """Compile a model, or take it from the disk cache.

        Args:
            model: a GGUF file, the first of its parts, or a folder of Hugging Face with config.json and safetensors.
            context: the most tokens of a sequence, prompt and answer; by default 4096, or what the model has if that is
                less. Memory for it is taken at once.
            cache: the type of cached keys and values: "float32", "float16", "bfloat16", "int8", "float8_e4m3fn" or
                "float8_e5m2".
            adapters: LoRA adapters to merge into the weights: a GGUF file, or a folder of PEFT; several as a list, or
                with scales as a mapping. The matrices that they change are stored in float32.
            target, precision, activations, threads: as in `ingot.compile`.
            sequences: answers that are computed at once, by `engine` and by `generate` of several prompts; by default
                the program is for one, and a second one is compiled when these are called.
            cache_bytes: of keys and values of all sequences together; by default enough for all of them at full length,
                at most 1 GiB.

        Raises ImportModelError for a file that is malformed or of a model that is not supported, and InputError for
        arguments that do not fit.
        """
        with no_collection():
            from ingot.driver.compile import Options  # not above: `ingot.load` does without the compiler
            from ingot.driver.language import language_programs

            options = Options(target, thread_count(threads), precision=precision, activations=activations)
            self._program_of = language_programs(Path(model), context, cache, adapters, options)
        what = "generate" if sequences is None else Steps(sequences, cache_bytes)
        self._start(self._program_of(what), threads)

    @classmethod
    def _of_program(cls, program: Program, threads: int | None) -> LanguageModel:
        self = cls.__new__(cls)
        self._program_of = None
        self._start(program, threads)
        return self

    def _start(self, program: Program, threads: int | None) -> None:
        try:
            facts = json.loads(program.meta[artifact.LANGUAGE])
            self.name, self.context = str(facts["name"]), int(facts["context"])
            self._kind, rewinds = str(facts["kind"]), bool(facts["rewinds"])
            self._vocabulary = int(facts["vocabulary"])
            self._defaults = {k: facts["sampling"][k] for k in SAMPLING if k in facts.get("sampling", {})}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError("a language model", expected="its description", got=str(error)) from error
        self._facts, self._threads = facts, threads
        self._shared_engines: dict[Any, Engine] = {}
        self._model = CompiledModel(program, threads=threads)
        generates = self._kind == "generate" and self._model.refused is None
        self._session = Session(self._model, self.context, rewinds) if generates else None
        self._template: Template | None = None  # that was set
        self._read_templates: dict[str, Template] = {}

    # --- text

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises ImportModelError for a model without one that Ingot reads, and without the package `tokenizers`."""
        f = self._facts
        if "tokenizer" not in f:
            fix = "pass lists of token ids instead of texts"
            raise ImportModelError(f.get("refused") or f"{self.name} has no tokenizer", fix=fix)
        return Tokenizer.from_json(f["tokenizer"], f["special"], f["ends"])

    @property
    def template(self) -> str | None:
        """The source of the chat template, in Jinja's language; None for a model without one."""
        return self._template.source if self._template else self._facts.get("templates", {}).get("default")

    @template.setter
    def template(self, source: str) -> None:
        self._template = Template(source, self.tokenizer.special)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, **values: Any
    ) -> str:
        """The text of messages by the chat template. values: what else the template reads, `enable_thinking` for
        example."""
        template = self._template or self._template_of_file(bool(tools))
        return template.render(messages, tools=tools, **values)

    def _template_of_file(self, has_tools: bool) -> Template:
        """Some files have one for chats with tools."""
        templates: Mapping[str, str] = self._facts.get("templates", {})
        name = "tool_use" if has_tools and "tool_use" in templates else "default"
        source = templates.get(name, next(iter(templates.values()), None))
        if source is None:
            fix = "set lm.template (--template), or use generate (/v1/completions), which goes on with a text"
            raise InputError(f"{self.name} has no chat template", fix=fix)
        if source not in self._read_templates:
            self._read_templates[source] = Template(source, self.tokenizer.special)
        return self._read_templates[source]

    def generate(
        self,
        prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
        *,
        max_tokens: int | None = _DEFAULT_TOKENS,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        schema: Any = None,
        regex: str | None = None,
        grammar: str | None = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: int | None = None,
        ignore_ends: bool = False,
        stream: bool = False,
        speculate: str | None = None,
        draft: LanguageModel | None = None,
    ) -> Any:
        """Generate the continuation of a prompt: a text for a text, a list of token ids for a list of token ids.

        Args:
            prompt: a text, in which special tokens may stand, or token ids as they are; or a list of such prompts,
                which are computed together, for a list of results.
            max_tokens: the most tokens of the answer; None: until the model ends it or the context is full.
            temperature: 0 takes the most likely token each time. None stands for the value that the file recommends,
            else temperature 0.8, top_k 40, top_p 0.95, min_p 0.05; the values 1, 0, 1 and 0 disable them.
            repetition_penalty, presence_penalty, frequency_penalty: see docs/inside/language.md. seed: the same seed
            gives the same tokens; None: another one each time. stop: texts that end the answer and are no part of it.
            schema: a JSON schema (a dict, a text, a class of pydantic, or True for any JSON) that the answer keeps to;
                regex: a regular expression; grammar: one of Lark. An answer that `max_tokens` ends is a beginning.
            logit_bias: what is added to the logits of token ids.
            logprobs: so many alternatives of each token, with logprobs by the model itself. The result is then a
                `Generation`: its tokens, text and why it ended; 0: logprobs without alternatives.
            ignore_ends: go on behind tokens that end an answer.
            stream: return an iterator of the parts of the answer: texts, ids, or with `logprobs` `AnswerPart`s.
            speculate, draft: as in `engine`: the same tokens, several at a time where they can be guessed.

        Raises InputError for arguments that do not fit, and for a prompt longer than the context.
        """
        options = {name: value for name, value in locals().items() if name not in ("self", "prompt")}
        if is_several(prompt):
            return self._answers([*map(self._prompt_ids, prompt)], isinstance(prompt[0], str), **options)
        return self._answer(self._prompt_ids(prompt), isinstance(prompt, str), **options)

    def _prompt_ids(self, prompt: Any) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_values: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        **options: Any,
    ) -> Any:
        """The answer to messages, each with a "role" and a "content", as a text; a str is one of a user's.

        Args:
            tools: functions that the model may call, as JSON schemas in the form of OpenAI's; calls come in the answer,
                in the model's own words.
            template_values: what else the chat template reads, {"enable_thinking": False} for example.
            max_tokens, options: as in `generate`.
        """
        chat: Sequence[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        text = self.prompt(chat, tools, **(template_values or {}))
        ids = self.tokenizer.encode(text, framed=False)  # the template writes what a sequence begins with
        return self._answer(ids, True, max_tokens=max_tokens, **options)

    def _answer(
        self,
        ids: Sequence[int],
        is_text: bool,
        *,
        logprobs: int | None = None,
        stream: bool = False,
        speculate: str | None = None,
        draft: LanguageModel | None = None,
        **options: Any,
    ) -> Any:
        """See `generate`. is_text: the result is one."""
        request = self.request(stream=stream, logprobs=logprobs, **options)
        if self._session is None or speculate is not None or draft is not None:
            pieces = self._shared_engine(speculate, draft).submit(ids, request).until_left()
        else:
            tokenizer = self.tokenizer if is_text or request.stop or request.constraint else None
            self._session.check(ids)  # now, not when the first part of a stream is asked for
            pieces = generate(self._session, tokenizer, ids, request)
        kind = "pieces" if logprobs is not None else "text" if is_text else "ids"
        return parts(pieces, kind) if stream else joined_answer(pieces, kind, len(ids))

    def _answers(
        self,
        prompts: Sequence[Sequence[int]],
        is_text: bool,
        *,
        logprobs: int | None = None,
        stream: bool = False,
        speculate: str | None = None,
        draft: LanguageModel | None = None,
        **options: Any,
    ) -> list[Any]:
        if stream:
            raise InputError("stream", expected="one prompt", got=f"a list of {len(prompts)}", fix="lm.engine().submit")
        engine = self._shared_engine(speculate, draft)
        answers: list[Answer] = []
        try:
            for ids in prompts:
                answers.append(engine.submit(ids, self.request(logprobs=logprobs, **options)))
            kind = "pieces" if logprobs is not None else "text" if is_text else "ids"
            return [joined_answer(answer, kind, answer.prompt_tokens) for answer in answers]
        finally:
            for answer in answers:
                answer.cancel()

    # --- many at once

    def engine(
        self,
        *,
        sequences: int | None = None,
        cache_bytes: int | None = None,
        queue: int = 64,
        prefill_chunk: int = 64,
        speculate: str | None = None,
        draft: LanguageModel | None = None,
        proposals: int = 3,
    ) -> Engine:
        """What answers many requests at once, on a thread of its own; see docs/inside/language.md.

        Args:
            sequences, cache_bytes: as of the model, by default the model's own, or 8 sequences.
            queue: requests that may wait beside those that are computed.
            prefill_chunk: tokens of prompts that a step reads beside a token of each answer.
            speculate: "prompt" proposes what came behind the last tokens when they were there before. draft: a smaller
                model with the same vocabulary proposes. proposals: of one step, at most. Answers have the same tokens.
        """
        model, tokenizer = self._stepper(sequences, cache_bytes), self.tokenizer if "tokenizer" in self._facts else None
        of_draft = None if draft is None else draft._stepper(model[0].sequences, None, is_whole=True)
        return open_engine(
            model, tokenizer, queue=queue, prefill_chunk=prefill_chunk, speculate=speculate, draft=of_draft,
            proposals=proposals,
        )  # fmt: skip

    def _stepper(
        self, sequences: int | None, cache_bytes: int | None, *, is_whole: bool = False
    ) -> tuple[Stepper, Mapping[str, Any]]:
        """(a program of steps with its own caches, its metadata). is_whole: with pages for all sequences at full
        length."""
        self._check_generates()
        facts = self._facts
        saved_sequences = int(facts["sequences"]) if self._kind == "steps" else None
        pages = 0 if saved_sequences is None or not is_whole else saved_sequences * page_count(self.context)
        is_as_saved = saved_sequences is not None and sequences in (None, saved_sequences) and cache_bytes is None
        if is_as_saved and int(facts["pages"]) >= pages:
            program = self._model.program
        elif self._program_of is None:
            fix = "LanguageModel(the file that it was compiled from, sequences=...), then save"
            what = "a saved model has the number of sequences that it was compiled for"
            raise InputError(what, got=saved_sequences, fix=fix)
        else:
            count = saved_sequences or _SEQUENCES if sequences is None else sequences
            program = self._program_of(Steps(count, _UNLIMITED if is_whole else cache_bytes))
            facts = json.loads(program.meta[artifact.LANGUAGE])
        return Stepper(CompiledModel(program, threads=self._threads)), facts

    def _shared_engine(self, speculate: str | None, draft: LanguageModel | None) -> Engine:
        """Of calls of `generate`."""
        key = speculate, draft
        if key not in self._shared_engines:
            self._shared_engines[key] = engine = self.engine(queue=_UNLIMITED, speculate=speculate, draft=draft)
            weakref.finalize(self, engine.close)
        return self._shared_engines[key]

    def request(
        self,
        *,
        max_tokens: int | None = _DEFAULT_TOKENS,
        stop: str | Sequence[str] | None = None,
        schema: Any = None,
        regex: str | None = None,
        grammar: str | None = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: int | None = None,
        ignore_ends: bool = False,
        stream: bool = True,
        **sampling: Any,
    ) -> Request:
        """For an engine: the options of `generate`, checked. A request with a schema or a grammar is of one answer."""
        constraints = [c for c in (schema, regex, grammar) if c is not None]
        if len(constraints) > 1:
            raise InputError("schema, regex, grammar", expected="one of them", got="several")
        constraint = self._grammars.constraint(schema, regex, grammar) if constraints else None
        return Request(
            self.context if max_tokens is None else max_tokens, self._sampling(sampling),
            () if ignore_ends else self._ends,
            stop_texts(stop), logit_bias or {}, logprobs, constraint, stream,
        )  # fmt: skip

    def _sampling(self, options: Mapping[str, Any]) -> Sampling:
        """The requested options; for the others, the values that the file recommends."""
        if unknown := options.keys() - {*SAMPLING}:
            expected = f"those of generate, such as {', '.join(SAMPLING)}"
            raise InputError("options", expected=expected, got=sorted(unknown))
        requested = {name: value for name, value in options.items() if value is not None}
        return Sampling(**{"seed": entropy() >> 1, **(self._defaults or _SAMPLING), **requested})

    @property
    def _ends(self) -> tuple[int, ...]:
        return tuple(int(i) for i in self._facts.get("ends", ()))

    # --- what is not generated

    def embed(self, texts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]) -> np.ndarray:
        """f32[texts, width], of length 1; of one text f32[width]. A text is a str or a list of token ids. A decoder
        gives the mean of its tokens, unless the file says otherwise."""
        if isinstance(texts, str) or (len(texts) and isinstance(texts[0], int | np.integer)):
            return self.embed(cast(Any, [texts]))[0]
        model = self._model if self._kind == "embed" else self._embedder
        rows: list[np.ndarray] = []
        for text in cast(Sequence[str | Sequence[int]], texts):
            ids = self._prompt_ids(text)
            if not 1 <= len(ids) <= self.context:
                raise InputError("a text", expected=f"1 to {self.context} tokens", got=len(ids), fix="embed its parts")
            check_ids(ids, self.vocabulary)
            rows.append(np.asarray(model.run([np.array([ids]), np.array([len(ids)])])[0])[0])
        width = cast(int, model.outputs[0].shape[-1])
        return np.stack(rows) if rows else np.empty((0, width), np.float32)

    def score(self, text: str | Sequence[int]) -> Score:
        """The log-probability of each token of a text."""
        self._check_generates()
        ids = self._prompt_ids(text)
        if not 2 <= len(ids) <= self.context + 1:
            fix = f"LanguageModel(..., context={len(ids) - 1}), or score its parts" if len(ids) > 2 else None
            raise InputError("the text", expected=f"2 to {self.context + 1} tokens", got=len(ids), fix=fix)
        check_ids(ids, self.vocabulary)
        parts: list[np.ndarray] = []
        for start in range(0, len(ids) - 1, _SCORE_TOKENS):
            end = min(start + _SCORE_TOKENS, len(ids) - 1)
            inputs = [np.array(x) for x in ([ids[start:end]], [start], [ids[start + 1 : end + 1]])]
            parts.append(np.asarray(self._scorer.run(inputs)[0])[0])
        return Score(ids, np.concatenate(parts).astype(np.float64))

    def save(self, path: str | os.PathLike[str], *, embeds: bool = True, scores: bool = True) -> None:
        """Write one file that `ingot.load` reads, and `ingot chat`: the program with its weights, the tokenizer, the
        chat template. It runs on CPUs with the same vector extensions.

        embeds, scores: whether what is loaded has the programs of `embed` and `score`, which are compiled now; they
        read the same weights. An encoder only embeds.
        """
        names: list[Literal["embed", "score"]] = [*(["embed"] if embeds else []), *(["score"] if scores else [])]
        program, programs = self._model.program, self._program_of
        if programs is None:
            program = replace(program, others={n: other for n, other in program.others.items() if n in names})
        elif not self.is_encoder:
            program = artifact.with_others(program, {name: programs(name) for name in names})
        artifact.save(program, Path(path))

    def __repr__(self) -> str:
        return f"LanguageModel({self.name!r}, context={self.context}, vocabulary={self._vocabulary})"

    @property
    def program(self) -> CompiledModel:
        """The program that generates, or for an encoder the program that embeds."""
        return self._model

    @property
    def threads(self) -> int:
        return self._model.threads

    @property
    def is_encoder(self) -> bool:
        """Whether the model only embeds texts."""
        return self._kind == "embed"

    @property
    def vocabulary(self) -> int:
        """The number of token ids."""
        return self._vocabulary

    def reset(self) -> None:
        """Discard the cached keys and values of the last call."""
        if self._session is not None:
            self._session.reset()

    # --- inside

    def _check_generates(self) -> None:
        if self._model.refused is not None:  # it is for another machine, and can be saved
            raise self._model.refused
        if self._kind == "embed":
            raise InputError(f"{self.name} is an encoder: it has no next token", fix="lm.embed(texts)")

    @cached_property
    def _embedder(self) -> CompiledModel:
        return self._other("embed")

    @cached_property
    def _scorer(self) -> CompiledModel:
        return self._other("score")

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.vocabulary)

    def _other(self, what: Literal["embed", "score"]) -> CompiledModel:
        if (program := self._model.program.others.get(what)) is None:
            if self._program_of is None:
                fix = f"save it with {what}s=True, or LanguageModel(the file that it was compiled from)"
                raise InputError(f"{self.name} was saved without the program to {what}", fix=fix)
            program = self._program_of(what)
        return CompiledModel(program, threads=self._threads)
