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
