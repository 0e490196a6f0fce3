"""The texts that drafters are trained on: prompts of many kinds, most of them written by the target, and its answers.

A text is a prompt and the tokens that the target gave to it. Material (user turns, passages, programs, questions) is
sampled first; answers to prompts made of it come second. The engine writes batch by batch, each batch is a file of its
own, and a batch that is there is not written again: a killed run goes on where it was.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from draftproof.building import Say
from draftproof.engines import BlockRequest, BlockResult
from draftproof.records import UnitKey
from draftproof.spec import Entry, Sampling

TURN_PREFIX = "<|im_start|>user\n"
"""What ChatML puts before a user turn: the target goes on with a turn of its own."""

Part = Literal["material", "answers"]


class Amount(Entry, frozen=True, kw_only=True):
    texts: int
    tokens: int


class Material(Entry, frozen=True, kw_only=True):
    """What the target writes first, by kind."""

    turn: Amount
    passage: Amount
    code: Amount
    question: Amount


class Answers(Entry, frozen=True, kw_only=True):
    """How many prompts of each kind it then answers, with `tokens` tokens each."""

    tokens: int
    turn: int
    turn_sampled: int
    summary: int
    edit: int
    choice: int
    sum: int
    problem: int
    repeat: int
    echo: int
    """Plain texts that say a word or a few over and over; not questions, which this target does not answer so."""


class Recipe(Entry, frozen=True, kw_only=True):
    """``drafters/training/corpus.toml``."""

    seed: int
    batch_size: int
    max_prompt_tokens: int
    temperature: float
    material: Material
    answers: Answers
    words: dict[str, list[str]]


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and what the target made of it, as token ids."""

    kind: str
    prompt: list[int]
    answer: list[int]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that run together: one kind, one way of sampling, one length."""

    kind: str
    prompts: list[list[int]]
    tokens: int
    temperature: float
    ignore_eos: bool


class Arm(Protocol):
    """The part of a live arm that is used here."""

    def run(self, request: BlockRequest) -> BlockResult: ...

    def close(self) -> None: ...


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> Any: ...


def read_recipe(path: Path) -> Recipe:
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), type=Recipe)


class Writer:
    """Turns a recipe into texts, with the target behind `arm`; `folder` keeps the batches."""

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer, folder: Path, say: Say) -> None:
        self._recipe = recipe
        self._tokenizer = tokenizer
        self._folder = folder
        self._say = say

    def texts(self, start: Callable[[], Arm]) -> list[Text]:
        """The texts to learn from: what the target wrote as an answer, not its user turns.

        `start` is called only if some batch is still to be written.
        """
        arms: list[Arm] = []

        def arm() -> Arm:
            if not arms:
                arms.append(start())
            return arms[0]

        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            material = self._write("material", self._material(), arm)
            answers = self._write("answers", self._answers(material), arm)
            return [*(text for text in material if text.kind != "turn"), *answers]
        finally:
            for live in arms:
                live.close()

    def _write(self, part: Part, batches: list[Batch], arm: Callable[[], Arm]) -> list[Text]:
        texts: list[Text] = []
        for number, batch in enumerate(batches):
            path = self._folder / f"{part}-{number:03}.json"
            if not path.is_file():
                written = msgspec.json.encode(self._run(batch, number, arm()))
                temporary = path.with_suffix(".part")
                temporary.write_bytes(written)
                temporary.replace(path)
                self._say(f"{part} {number + 1}/{len(batches)}: {batch.kind}, {len(batch.prompts)} texts")
            texts.extend(msgspec.json.decode(path.read_bytes(), type=list[Text]))
        return texts

    def _run(self, batch: Batch, number: int, arm: Arm) -> list[Text]:
        done = arm.run(
            BlockRequest(
                unit=UnitKey(0, "corpus", batch.kind, len(batch.prompts)),
                rotation=number,
                pass_index=0,
                purpose="speed",
                prompts=batch.prompts,
                sampling=Sampling(temperature=batch.temperature),
                output_tokens=batch.tokens,
                ignore_eos=batch.ignore_eos,
                seed=self._recipe.seed + number if batch.temperature else None,
            )
        )
        return [
            Text(kind=batch.kind, prompt=prompt, answer=output.token_ids)
            for prompt, output in zip(batch.prompts, done.outputs, strict=True)
        ]

    def _material(self) -> list[Batch]:
        rng, amounts = random.Random(self._recipe.seed), self._recipe.material
        turns = [self._raw(TURN_PREFIX + opening) for opening in self._deal("openings", amounts.turn.texts, rng)]
        kinds = [
            ("turn", amounts.turn, turns),
            ("passage", amounts.passage, self._chats("passage_requests", amounts.passage.texts, rng)),
            ("code", amounts.code, self._chats("code_requests", amounts.code.texts, rng)),
            ("question", amounts.question, self._chats("question_requests", amounts.question.texts, rng)),
        ]
        return [
            Batch(kind=kind, prompts=rows, tokens=amount.tokens, temperature=self._recipe.temperature, ignore_eos=False)
            for kind, amount, prompts in kinds
            for rows in self._split(prompts)
        ]

    def _answers(self, material: list[Text]) -> list[Batch]:
        rng, counts = random.Random(self._recipe.seed + 1), self._recipe.answers
        turns, used = self._turns(material), counts.turn + counts.turn_sampled
        asked = [self._chat(turn) for turn in (turns * (used // len(turns) + 1))[:used]]
        written = {kind: self._decoded(material, kind) for kind in ("passage", "code", "question")}
        kinds = [
            ("turn", asked[: counts.turn], 0.0),
            ("turn_sampled", asked[counts.turn :], self._recipe.temperature),
            ("summary", self._chats("summary_requests", counts.summary, rng, written["passage"]), 0.0),
            ("edit", self._chats("edit_requests", counts.edit, rng, written["code"]), 0.0),
            ("choice", self._chats("choice_requests", counts.choice, rng, written["question"]), 0.0),
            ("sum", self._chats("sums", counts.sum, rng), 0.0),
            ("problem", self._chats("problems", counts.problem, rng), 0.0),
            ("repeat", self._chats("repeats", counts.repeat, rng), 0.0),
            ("echo", self._echoes(counts.echo, rng, written["passage"]), 0.0),
        ]
        return [
            Batch(kind=kind, prompts=rows, tokens=counts.tokens, temperature=temperature, ignore_eos=True)
            for kind, prompts, temperature in kinds
            for rows in self._split([p for p in prompts if len(p) <= self._recipe.max_prompt_tokens])
        ]

    def _split(self, prompts: list[list[int]]) -> Iterator[list[list[int]]]:
        size = self._recipe.batch_size
        return (prompts[at : at + size] for at in range(0, len(prompts), size))

    def _raw(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _chat(self, turn: str) -> list[int]:
        text = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": turn}], tokenize=False, add_generation_prompt=True
        )
        return self._raw(str(text))

    def _deal(self, name: str, count: int, rng: random.Random) -> list[str]:
        """`count` words of a list: shuffled, again and again."""
        words = list(self._recipe.words[name])
        dealt: list[str] = []
        while len(dealt) < count:
            rng.shuffle(words)
            dealt.extend(words)
        return dealt[:count]

    def _chats(self, forms: str, count: int, rng: random.Random, texts: list[str] | None = None) -> list[list[int]]:
        """`count` prompts: a form each, its fields dealt from the lists of words, numbers and the given texts."""
        fields = {
            "topic": "topics", "place": "places", "language": "languages", "task": "tasks", "edit": "edits",
            "subject": "subjects", "person": "people", "other": "people", "things": "things", "word": "words",
        }  # fmt: skip
        dealt = {field: self._deal(name, count, rng) for field, name in fields.items()}
        prompts = []
        for index, form in enumerate(self._deal(forms, count, rng)):
            values: dict[str, Any] = {field: words[index] for field, words in dealt.items()}
            values |= {"a": rng.randint(11, 90), "b": rng.randint(3, 30), "c": rng.randint(2, 9)}
            if texts is not None:
                values["text"] = texts[index % len(texts)]
            prompts.append(self._chat(form.format(**values)))
        return prompts

    def _echoes(self, count: int, rng: random.Random, passages: list[str]) -> list[list[int]]:
        """`count` plain texts that repeat a word or two of the target's own passages.

        A new word each: a drafter shall learn to go on with any word, and not with those that it saw.
        """
        never = set(self._recipe.words["never_echoed"])
        words = sorted({word for text in passages for word in re.findall(r"\b[a-z]{3,}\b", text)} - never)
        rng.shuffle(words)
        words *= 2 * count // len(words) + 1
        forms = self._deal("echoes", count, rng)
        return [self._raw(form.format(word=words[2 * at], other=words[2 * at + 1])) for at, form in enumerate(forms)]

    def _turns(self, material: list[Text]) -> list[str]:
        """The user turns that the target wrote: opening and all, at least a few words long."""
        turns = []
        for text in material:
            if text.kind == "turn":
                turn = self._tokenizer.decode([*text.prompt, *text.answer], skip_special_tokens=False)
                turn = turn.removeprefix(TURN_PREFIX).split("<|im_")[0].strip()
                if len(turn.split()) >= 4:
                    turns.append(turn)
        return turns

    def _decoded(self, material: list[Text], kind: str) -> list[str]:
        return [
            self._tokenizer.decode(text.answer, skip_special_tokens=True).strip()
            for text in material
            if text.kind == kind
        ]
