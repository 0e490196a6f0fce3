"""A model under a label that transformers lacks: it is made known, and no code of the model's folder runs."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from draftproof.engines import labels


class Qwen2Config:
    model_type = "qwen2"


class AutoConfig:
    """What transformers knows, as far as `labels` asks for it."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {"llama": object}

    def register(self, label: str, config_class: Any) -> None:
        assert label not in self.known
        self.known[label] = config_class


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> AutoConfig:
    auto = AutoConfig()
    package: Any = types.ModuleType("transformers")
    package.AutoConfig, package.Qwen2Config = auto, Qwen2Config
    mapping: Any = types.ModuleType("transformers.models.auto.configuration_auto")
    mapping.CONFIG_MAPPING = auto.known
    for module in (package, mapping):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("transformers.models", "transformers.models.auto"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    return auto


def folder_of(tmp_path: Path, text: str) -> str:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    return str(tmp_path)


def test_an_unknown_label_is_registered_once(tmp_path: Path, transformers: AutoConfig) -> None:
    """As a class of its own that reads the configuration as its base does; a second arm's call changes nothing."""
    folder = folder_of(tmp_path, json.dumps({"model_type": "mimo"}))
    assert labels.register(folder) == "mimo"
    registered = transformers.known["mimo"]
    assert issubclass(registered, Qwen2Config)
    assert registered is not Qwen2Config
    assert (registered.model_type, Qwen2Config.model_type) == ("mimo", "qwen2")
    assert labels.register(folder) is None
    assert transformers.known["mimo"] is registered


def test_a_label_that_transformers_knows_stays_its_own(tmp_path: Path, transformers: AutoConfig) -> None:
    transformers.known["mimo"] = object
    assert labels.register(folder_of(tmp_path, '{"model_type": "mimo"}')) is None
    assert transformers.known["mimo"] is object


@pytest.mark.parametrize(
    "text",
    [
        '{"model_type": "llama"}',
        '{"model_type": "mimo", "auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"}}',
        "{}",
        "no JSON",
        "[]",
    ],
)
def test_other_models_touch_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """transformers is not even imported."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert labels.register(folder_of(tmp_path, text)) is None


def test_an_id_of_a_hub_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert labels.register("XiaomiMiMo/MiMo-7B-RL") is None


# -- LM heads ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def head_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's class of EAGLE-3 heads, as far as `labels` touches it."""

    class Eagle3LlamaForCausalLM:
        has_own_lm_head = False

    module: Any = types.ModuleType("vllm.model_executor.models.llama_eagle3")
    module.Eagle3LlamaForCausalLM = Eagle3LlamaForCausalLM
    names = module.__name__.split(".")
    for depth in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:depth]), types.ModuleType(names[depth - 1]))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Eagle3LlamaForCausalLM


def test_a_dummy_head_keeps_its_smaller_vocabulary(tmp_path: Path, head_class: Any) -> None:
    """Without a checkpoint vLLM would take the target's LM head, and each draft step would cost too much."""
    folder = folder_of(tmp_path, '{"vocab_size": 128256, "draft_vocab_size": 32000}')
    assert labels.keep_own_head("dummy", folder)
    assert head_class.has_own_lm_head


@pytest.mark.parametrize(
    ("load_format", "text"),
    [
        (None, '{"vocab_size": 9, "draft_vocab_size": 3}'),
        ("auto", '{"vocab_size": 9, "draft_vocab_size": 3}'),
        ("dummy", '{"vocab_size": 9, "draft_vocab_size": 9}'),
        ("dummy", '{"vocab_size": 9}'),
        ("dummy", "no JSON"),
    ],
    ids=["weights by default", "weights", "all ids", "another drafter", "unreadable"],
)
def test_other_heads_are_as_vllm_takes_them(
    tmp_path: Path, head_class: Any, load_format: str | None, text: str
) -> None:
    """A checkpoint says it itself; a head that drafts all ids shares the target's, as real ones do."""
    assert not labels.keep_own_head(load_format, folder_of(tmp_path, text))
    assert not labels.keep_own_head(load_format, None)
    assert not head_class.has_own_lm_head
