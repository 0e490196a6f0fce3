"""The training of drafters: heads in the engine's arithmetic, batches, checkpoints, and what the corpus is made of."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draftproof.catalog import fixtures_folder, load_catalog, read_entry
from draftproof.drafters.corpus import Material, Recipe, Text, Writer, read_recipe
from draftproof.engines import BlockRequest, BlockResult
from draftproof.records import Output
from draftproof.spec import Target, TrainedDrafter

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
    pytest.skip("needs torch and transformers; found neither; enable with the cpu extra", allow_module_level=True)

from draftproof.engines.surroundings import hide_broken_vision_packages

hide_broken_vision_packages()

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof.drafters import heads
from draftproof.drafters.command import entry_toml
from draftproof.drafters.features import FINAL, Features, auxiliary_layers, open_features, write_features
from draftproof.drafters.train import Finish, Schedule, Trainer, stages_of

VOCABULARY = 64
torch.set_num_threads(1)  # tiny tensors: a second thread only waits


@pytest.fixture(scope="module")
def target() -> Any:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    random = torch.Generator().manual_seed(2)

    def tokens(count: int) -> Any:
        return torch.randint(0, VOCABULARY, (count,), generator=random).tolist()

    return [Text(kind="ab"[i % 2], prompt=tokens(3 + i % 4), answer=tokens(6 + i % 3)) for i in range(24)]


@pytest.fixture(scope="module")
def features(target: Any, texts: list[Text], tmp_path_factory: pytest.TempPathFactory) -> Features:
    return write_features(texts, target, tmp_path_factory.mktemp("features"), lambda _: None)


def schedule(**changes: Any) -> Schedule:
    given = {"epochs": 2, "texts_per_step": 4, "learning_rate": 1e-3, "depth": 3, "window": 8, "frequent": 16}
    return Schedule(**{**given, **changes})


def module_of(kind: str, target: Any) -> Any:
    torch.manual_seed(3)
    sizes = heads.Sizes.of(target.config)
    made: dict[str, Any] = {
        "eagle": lambda: heads.Eagle(sizes),
        "eagle3": lambda: heads.Eagle3(sizes, 16),
        "mtp": lambda: heads.Mtp(sizes),
        "draft_model": lambda: heads.Draft(sizes, 3),
    }
    module = made[kind]()
    module.start(target)
    return module


def trainer_of(kind: str, target: Any, features: Features, **changes: Any) -> Trainer:
    ranking = list(range(VOCABULARY))
    return Trainer(module_of(kind, target), features, target, schedule(**changes), "cpu", ranking)


# --- features ---------------------------------------------------------------------------------------------------------


def test_features_are_the_states_that_the_engine_hands_to_heads(
    target: Any, texts: list[Text], features: Features
) -> None:
    """Inputs of layers 2, n/2 and n-3, the last layer's output before the norm, and the choice after each token."""
    for number in (0, 5, 23):
        ids = torch.tensor([[*texts[number].prompt, *texts[number].answer]])
        with torch.no_grad():
            seen = target.model(ids, output_hidden_states=True)
            choice = target.lm_head(seen.last_hidden_state)[0].argmax(-1)
        rows = features.rows(number)
        assert features.tokens[rows].tolist() == ids[0].tolist()
        assert features.top[rows].tolist() == choice.tolist()
        auxiliary = torch.cat([seen.hidden_states[i][0] for i in auxiliary_layers(6)], -1)
        torch.testing.assert_close(features.state(rows, slice(0, FINAL)), auxiliary, atol=0.02, rtol=0.02)
        final = target.model.norm(features.state(rows, slice(FINAL, FINAL + 1)))
        torch.testing.assert_close(final, seen.last_hidden_state[0], atol=0.02, rtol=0.02)


def test_features_are_found_again_only_when_whole(features: Features, tmp_path: Path) -> None:
    assert open_features(tmp_path) is None


# --- heads against a slow engine --------------------------------------------------------------------------------------


def slow_chain(head: heads.Head, embedding: torch.Tensor, states: torch.Tensor, start: int, depth: int) -> list[Any]:
    """What the engine does: a cache of the target's slots up to `start`, then one guess after the other.

    `embedding` [slots, hidden] of token i + 1, `states` [slots, ...] after token i; no batch, no window.
    """
    sizes, attention = head.self_attn.sizes, head.self_attn
    groups = sizes.heads // sizes.kv_heads
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []

    def turned(x: torch.Tensor, position: int, count: int) -> torch.Tensor:
        half = sizes.head_dim // 2
        angle = torch.tensor([position * sizes.rope_theta ** (-2 * i / sizes.head_dim) for i in range(half)])
        x = x.view(count, sizes.head_dim)
        left, right = x[:, :half], x[:, half:]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    def step(position: int, embedded: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        stream, x = head.inputs(embedded, state)
        keys.append(turned(attention.k_proj(x), position, sizes.kv_heads))
        values.append(attention.v_proj(x).view(sizes.kv_heads, -1))
        query = turned(attention.q_proj(x), position, sizes.heads)
        rows = []
        for number in range(sizes.heads):
            scores = torch.stack([query[number] @ key[number // groups] for key in keys]) / sizes.head_dim**0.5
            rows.append(sum(w * v[number // groups] for w, v in zip(scores.softmax(0), values, strict=True)))
        stream = stream + attention.o_proj(torch.cat(rows))
        stream = stream + head.mlp(head.post_attention_layernorm(stream))
        return head.outputs(stream)

    combined = head.combine(states)
    for position in range(start + 1):
        out, state = step(position, embedding[position], combined[position])
    found = [out]
    for number in range(1, depth):
        out, state = step(start + number, embedding[start + number], state)
        found.append(out)
    return found


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_guesses_are_those_of_an_engine_that_drafts_one_by_one(kind: str, target: Any, features: Features) -> None:
    """Earlier slots keep the target's keys and values, only the newest come from the head's own output."""
    trainer = trainer_of(kind, target, features)
    head = trainer.module.float()
    assert isinstance(head, heads.Head)
    batch = trainer.batch([0, 1, 2, 3])
    assert batch.states is not None
    embedded = torch.nn.functional.embedding(batch.tokens, trainer.embedding).float()
    with torch.no_grad():
        fast = head.guesses(embedded, batch.states.float(), batch.context, 3)
        for row in range(4):
            first = int(batch.context.first[row])
            slots = batch.tokens.shape[1] - first
            for start in range(slots - batch.context.window, slots - 2):
                if start < 0:
                    continue
                slow = slow_chain(head, embedded[row, first:], batch.states[row, first:].float(), start, 3)
                for number in range(3):
                    column = start + number - (slots - batch.context.window)
                    torch.testing.assert_close(fast[number][row, column], slow[number], atol=1e-4, rtol=1e-3)


def test_a_draft_model_is_the_llama_that_the_engine_loads(target: Any, features: Features) -> None:
    trainer = trainer_of("draft_model", target, features, window=64)
    draft = trainer.module.float()
    config = LlamaConfig(**{**target.config.to_dict(), "num_hidden_layers": 3})
    llama = LlamaForCausalLM(config).float().eval()
    missing = llama.load_state_dict(
        {**draft.tensors(), "model.embed_tokens.weight": target.model.embed_tokens.weight.float()}, strict=False
    )
    assert missing.missing_keys in ([], ["lm_head.weight"])
    assert not missing.unexpected_keys
    batch = trainer.batch([4])
    with torch.no_grad():
        ours = draft(torch.nn.functional.embedding(batch.tokens, trainer.embedding), batch.context)
        theirs = llama.model(batch.tokens).last_hidden_state
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


# --- batches and loss -------------------------------------------------------------------------------------------------


def test_guesses_begin_where_the_engine_begins_to_draft(target: Any, texts: list[Text], features: Features) -> None:
    """The first slot with a label is the one that reads the first answered token."""
    batch = trainer_of("eagle", target, features, window=64).batch([2])
    text = texts[2]
    asked = (batch.choice[0] >= 0).nonzero()[:, 0]
    assert len(asked) == len(text.answer)
    assert batch.tokens[0, -len(text.answer) :].tolist() == text.answer
    assert batch.choice[0, asked].tolist() == features.top[features.rows(2)][-len(text.answer) :].tolist()


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp", "draft_model"])
def test_training_lowers_the_loss_and_moves_every_weight(
    kind: str, target: Any, features: Features, tmp_path: Path
) -> None:
    trainer = trainer_of(kind, target, features, epochs=5, depth=1 if kind == "draft_model" else 3)
    before = {name: weight.clone() for name, weight in trainer.module.tensors().items()}
    trainer.run(tmp_path / "checkpoint.safetensors", lambda _: None)
    assert len(trainer.losses) == trainer.steps
    assert sum(trainer.losses[-4:]) < sum(trainer.losses[:4])
    assert [name for name, weight in trainer.module.tensors().items() if torch.equal(weight, before[name])] == []


def test_a_run_that_was_ended_goes_on_to_the_same_weights(
    target: Any, features: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.drafters.train.CHECKPOINT_STEPS", 3)
    whole, broken = (trainer_of("mtp", target, features) for _ in range(2))
    whole.run(tmp_path / "whole.safetensors", lambda _: None)

    def end(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.run(tmp_path / "broken.safetensors", end)
    again = trainer_of("mtp", target, features)
    again.run(tmp_path / "broken.safetensors", lambda _: None)
    assert again.losses == whole.losses
    for name, weight in whole.module.tensors().items():
        torch.testing.assert_close(again.module.tensors()[name], weight, atol=1e-6, rtol=1e-5)


def test_a_checkpoint_of_another_schedule_is_not_used(target: Any, features: Features, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    trainer_of("mtp", target, features).run(path, lambda _: None)
    assert trainer_of("mtp", target, features, epochs=3).restore(path) == (0, 0.0)


def test_a_second_stage_adds_its_texts_to_some_of_the_first(target: Any, features: Features, tmp_path: Path) -> None:
    finish = Finish(kinds=["b"], replay=4, epochs=2, learning_rate=1e-4)
    alone, trainer = (trainer_of("mtp", target, features, finish=given, epochs=3) for given in (None, finish))
    kinds = features.index.kinds
    first, second = trainer.stages
    assert {kinds[text] for text in first.texts} == {"a"}
    assert sorted(kinds[text] for text in second.texts) == ["a"] * 4 + ["b"] * 11
    assert {kinds[text] for text in trainer.held} == {"a", "b"}
    assert not set(trainer.held) & {*first.texts, *second.texts}
    assert (first.start, first.stop, second.start, second.stop) == (0, 6, 6, 12)
    planned = [list(trainer.plan(stage)) for stage in trainer.stages]
    assert [step for stage in planned for step, _ in stage] == list(range(12))
    trainer.run(tmp_path / "checkpoint.safetensors", lambda _: None)
    assert len(trainer.losses) == trainer.steps == 12
    assert len(alone.stages) == 1


def test_held_out_texts_do_not_depend_on_a_second_stage() -> None:
    kinds = ["a"] * 90 + ["b"] * 30
    finish = Finish(kinds=["b"], replay=4, epochs=1, learning_rate=1e-4)
    held, stages = stages_of(kinds, schedule(finish=finish))
    before, (only,) = stages_of(kinds[:90], schedule())
    assert held[: len(before)] == before
    assert stages[0].texts == only.texts


def test_held_out_acceptance_counts_a_position_only_after_all_before_it(
    target: Any, features: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of("eagle", target, features)

    def right(batch: Any, depth: int) -> list[torch.Tensor]:
        always = batch.choice >= 0
        return [always, torch.zeros_like(always), always]

    monkeypatch.setattr(trainer, "right", right)
    held = trainer.measure(trainer.stages[0].texts)
    assert held.positions == [1.0, 0.0, 0.0]
    assert held.length == 2.0


# --- the corpus -------------------------------------------------------------------------------------------------------


class Letters:
    """A tokenizer of characters."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, token_ids))

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> str:
        return f"<user>{conversation[0]['content']}</user>"


class WritingArm:
    """Answers every prompt with the same words."""

    def __init__(self) -> None:
        self.requests: list[BlockRequest] = []
        self.closed = False

    def run(self, request: BlockRequest) -> BlockResult:
        self.requests.append(request)
        answer = [ord(letter) for letter in " one two three four"]
        outputs = [
            Output(token_ids=answer[: request.output_tokens], finish_reason="length", accepted=[], drafted=[])
            for _ in request.prompts
        ]
        return BlockResult(seconds=1.0, outputs=outputs, counters={})

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def recipe() -> Recipe:
    """The shipped one, with few texts."""
    whole = read_recipe(fixtures_folder() / "drafters" / "training" / "corpus.toml")
    few = {kind: {"texts": 6, "tokens": 30} for kind in msgspec.structs.asdict(whole.material)}
    counts = dict.fromkeys(msgspec.structs.asdict(whole.answers), 5)
    return msgspec.structs.replace(
        whole,
        batch_size=4,
        material=msgspec.convert(few, Material),
        answers=msgspec.convert({**counts, "tokens": 12}, type(whole.answers)),
    )


def test_texts_are_written_once_and_a_killed_run_goes_on(recipe: Recipe, tmp_path: Path) -> None:
    arm = WritingArm()
    texts = Writer(recipe, Letters(), tmp_path, lambda _: None).texts(lambda: arm)
    assert {text.kind for text in texts} > {"summary", "edit", "choice", "sum", "problem", "repeat", "turn_sampled"}
    written = len(arm.requests)
    assert arm.closed
    for lost in sorted(tmp_path.glob("*.json"))[:2]:
        lost.unlink()
    second = WritingArm()
    assert Writer(recipe, Letters(), tmp_path, lambda _: None).texts(lambda: second) == texts
    assert len(second.requests) == 2 < written


def test_no_engine_is_started_when_all_texts_are_there(recipe: Recipe, tmp_path: Path) -> None:
    Writer(recipe, Letters(), tmp_path, lambda _: None).texts(WritingArm)

    def fail() -> Any:
        raise AssertionError("an engine was started")

    Writer(recipe, Letters(), tmp_path, lambda _: None).texts(fail)


def test_material_is_sampled_to_its_end_and_answers_have_full_length(recipe: Recipe, tmp_path: Path) -> None:
    arm = WritingArm()
    Writer(recipe, Letters(), tmp_path, lambda _: None).texts(lambda: arm)
    material = [request for request in arm.requests if not request.ignore_eos]
    answers = [request for request in arm.requests if request.ignore_eos]
    assert all(request.sampling.temperature == recipe.temperature for request in material)
    assert all(request.seed is not None for request in material)
    assert {request.output_tokens for request in answers} == {12}
    assert {request.sampling.temperature for request in answers} == {0.0, recipe.temperature}


def test_repetitions_take_words_of_the_passages_but_none_of_the_workloads(recipe: Recipe, tmp_path: Path) -> None:
    words = {**recipe.words, "never_echoed": ["two", "four"]}
    writer = Writer(msgspec.structs.replace(recipe, words=words), Letters(), tmp_path, lambda _: None)
    texts = [text for text in writer.texts(WritingArm) if text.kind == "echo"]
    assert len(texts) == 5
    for text in texts:
        prompt = "".join(map(chr, text.prompt))
        assert not prompt.startswith("<user>")
        assert max(prompt.count("one"), prompt.count("three")) >= 5, prompt
        assert not {"two", "four"} & set(prompt.replace(",", " ").split()), prompt


def test_no_prompt_of_a_workload_is_in_the_recipe(recipe: Recipe) -> None:
    """Eight words in a row of an evaluation prompt, or a word that is to be repeated, would be a leak."""

    def runs(text: str) -> set[str]:
        words = text.lower().split()
        return {" ".join(words[at : at + 8]) for at in range(len(words) - 7)}

    ours = " ".join(line for lines in recipe.words.values() for line in lines)
    catalog = load_catalog()
    for workload in catalog.workloads.values():
        if workload.source != "file":
            continue
        for line in catalog.workload_path(workload).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            text = row.get("text") or row["messages"][-1]["content"]
            assert not runs(text) & runs(ours), row["id"]
            if workload.name.startswith("repeat_"):
                repeated = set(text.partition(":")[2].split())
                assert not repeated & set(recipe.words["words"])
                assert repeated <= set(recipe.words["never_echoed"])


# --- what training leaves behind --------------------------------------------------------------------------------------


def test_a_written_entry_is_read_back_as_it_was(tmp_path: Path) -> None:
    catalog = load_catalog()
    derived = [target for target in catalog.targets.values() if target.derived]
    entries: list[TrainedDrafter | Target] = [*catalog.drafters.values(), *derived]
    assert len(entries) >= 5
    for entry in entries:
        path = tmp_path / f"{entry.name}.toml"
        path.write_text(entry_toml(entry), encoding="utf-8")
        assert read_entry(path, type(entry)) == entry
