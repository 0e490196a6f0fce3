"""Models without weights: whole configurations, what is refused of them, and what their tokens are worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof import building, memory, models
from draftproof.catalog import Catalog, load_catalog
from draftproof.dummies import LOADING, SIZES, config_of, drafter_recipe
from draftproof.errors import DraftproofError
from draftproof.plan import build_plan, speculative_config
from draftproof.spec import Dummy, Shape, Target, meaningless
from tests.tiny_models import CONFIG, TOKENS, VOCABULARY, tokenizer

LAYERS = CONFIG["num_hidden_layers"]
REST: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def tiny_shape(name: str = "tiny", **changes: Any) -> Shape:
    """The tiny model's shape, with some keys of its configuration changed."""
    sizes = {key: value for key, value in CONFIG.items() if key != "architectures"}
    rest = {"architectures": CONFIG["architectures"], **REST}
    return Shape(name=name, model=f"org/{name}", source="a test", config={**sizes, **changes}, loading=rest)


def tiny_target(layers: int | None = None, **changes: Any) -> Target:
    fields: dict[str, Any] = {
        "name": "hollow",
        "title": "Hollow",
        "source": "dummy",
        "model": "org/tiny",
        "engine": {"load_format": "dummy"},
        "dummy": Dummy(tokenizer="whole", layers=layers),
    }
    return Target(**(fields | changes))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog of a target in a folder, the tiny shape, and an empty cache."""
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "whole"
    folder.mkdir()
    config = {**CONFIG, "bos_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer(), encoding="utf-8")
    (folder / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")
    shipped = load_catalog()
    whole = Target(name="whole", title="Whole", source="path", model=str(folder))
    targets = {**shipped.targets, "whole": whole, "hollow": tiny_target()}
    shapes = {**shipped.shapes, "tiny": tiny_shape()}
    return msgspec.structs.replace(shipped, targets=targets, shapes=shapes)


def quiet(text: str) -> None:
    """Steps of a build are of no interest."""


# -- configurations ----------------------------------------------------------------------------------------------------


def test_every_dummy_of_the_catalog_has_a_whole_configuration() -> None:
    """Targets and drafters that are shipped: sizes, architecture, positions and norms, and the layers asked for."""
    catalog = load_catalog()
    targets = [target for target in catalog.targets.values() if target.dummy]
    drafters = [d for v in catalog.variants.values() for d in v.drafters.values() if d.source == "dummy"]
    assert len(targets) >= 5
    assert len(drafters) == 4
    for target in targets:
        assert target.dummy is not None
        found = config_of(catalog.needed_shape(target.model), target.dummy.layers)
        assert {*SIZES, *LOADING} <= set(found)
        assert target.dummy.layers in (None, found["num_hidden_layers"])
    for drafter in drafters:
        assert {*SIZES, *LOADING} <= set(config_of(catalog.needed_shape(drafter.model)))


def test_stated_parameters_are_those_of_the_shape() -> None:
    """Counted from the configuration, two bytes each: a table of biases or norms left out would show."""
    catalog = load_catalog()
    for target in catalog.targets.values():
        if target.dummy:
            assert memory.expect(target.name, None, catalog).target.static_bytes == 2 * (target.parameters or 0)


@given(layers=st.integers(-2, LAYERS + 2))
def test_layers_are_from_one_to_the_shapes(layers: int) -> None:
    if 1 <= layers <= LAYERS:
        assert config_of(tiny_shape(), layers) == {**config_of(tiny_shape()), "num_hidden_layers": layers}
        return
    with pytest.raises(DraftproofError, match=rf"dummy\.layers must be from 1 to the {LAYERS} .*got {layers}"):
        config_of(tiny_shape(), layers)


@pytest.mark.parametrize("key", [*SIZES, *LOADING])
def test_a_missing_key_is_named(key: str) -> None:
    """transformers would take a default of its own, and another model would be measured."""
    shape = tiny_shape()
    tables = {name: {k: v for k, v in getattr(shape, name).items() if k != key} for name in ("config", "loading")}
    with pytest.raises(DraftproofError, match=rf"shape 'tiny': \w+ must be given {key} for .*shapes/tiny\.toml"):
        config_of(msgspec.structs.replace(shape, **tables))


# -- folders -----------------------------------------------------------------------------------------------------------


def test_the_folder_of_a_dummy_target(shop: Catalog) -> None:
    """A configuration and another target's tokenizer, with that one's special ids; no weights, and nothing fetched."""
    folder = Path(models.resolve_target(tiny_target(layers=2), shop, say=quiet))
    names = {path.name for path in folder.iterdir() if not building.is_own(path.name)}
    assert names == {"config.json", "tokenizer.json", "chat_template.jinja"}
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert found == {**config_of(tiny_shape(), 2), "bos_token_id": 1, "eos_token_id": 2}
    assert models.describe(tiny_target(layers=2), shop)["state"] == "built"


def test_another_shape_is_another_folder(shop: Catalog) -> None:
    """Layers and configuration are in the folder's name: no build overwrites another's."""
    wider = msgspec.structs.replace(shop, shapes={"tiny": tiny_shape(hidden_size=16)})
    folders = {models.resolve_target(tiny_target(layers), shop, say=quiet) for layers in (None, 1, 2)}
    assert len(folders) == 3
    assert models.resolve_target(tiny_target(), wider, say=quiet) not in folders


def test_a_damaged_folder_is_built_again(shop: Catalog) -> None:
    """The configuration counts as weights do elsewhere."""
    folder = Path(models.resolve_target(tiny_target(), shop, say=quiet))
    content = (folder / "config.json").read_bytes()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    assert models.describe(tiny_target(), shop)["state"] == "damaged"
    assert Path(models.resolve_target(tiny_target(), shop, say=quiet)) == folder
    assert (folder / "config.json").read_bytes() == content


def test_the_folder_of_a_dummy_drafter(shop: Catalog) -> None:
    """vLLM reads nothing else of it: the target's tokenizer serves both."""
    folder = building.build(drafter_recipe(tiny_shape()), say=quiet)
    assert [path.name for path in folder.iterdir() if not building.is_own(path.name)] == ["config.json"]
    assert json.loads((folder / "config.json").read_text(encoding="utf-8")) == config_of(tiny_shape())


@pytest.mark.parametrize("rows", [VOCABULARY - 1, VOCABULARY, VOCABULARY + 9])
def test_every_id_of_the_tokenizer_needs_a_row(shop: Catalog, rows: int) -> None:
    """An id beyond the embedding would crash the engine in the middle of a batch."""
    catalog = msgspec.structs.replace(shop, shapes={"tiny": tiny_shape(vocab_size=rows)})
    if rows >= len(TOKENS):
        assert Path(models.resolve_target(tiny_target(), catalog, say=quiet)).is_dir()
        return
    with pytest.raises(DraftproofError, match=rf"vocab_size must be at least the {len(TOKENS)} ids .*got {rows}"):
        models.resolve_target(tiny_target(), catalog, say=quiet)


def test_a_dummy_target_needs_the_catalog() -> None:
    with pytest.raises(DraftproofError, match="catalog must be given for a dummy target"):
        models.resolve_target(tiny_target(), None, say=quiet)


# -- plans and meaning -------------------------------------------------------------------------------------------------


def test_a_changed_shape_is_another_plan() -> None:
    """A run may only go on with the model that it began with."""
    catalog = load_catalog()
    study = catalog.studies["h100-synthetic"]
    cells = [cell for cell in catalog.study_cells(study.name) if cell.target == "llama3.1-8b-dummy"]
    plans = {build_plan(catalog, study, cells).sha256}
    for name in ("llama-3.1-8b-instruct", "eagle3-llama3.1-instruct-8b"):
        shape = catalog.shapes[name]
        changed = msgspec.structs.replace(shape, config={**shape.config, "intermediate_size": 1})
        other = msgspec.structs.replace(catalog, shapes={**catalog.shapes, name: changed})
        plans.add(build_plan(other, study, cells).sha256)
    assert len(plans) == 3


def test_each_pair_has_its_own_acceptance_length() -> None:
    """Of one variant, by target; vLLM gets it with the method of acceptance, and health expects it."""
    catalog = load_catalog()
    variant = catalog.variants["eagle3_synthetic"]
    for target, length in (("llama3.1-8b-dummy", 2.41), ("qwen3-8b-dummy", 2.25)):
        found = speculative_config(variant, target, "folder")
        assert found is not None
        assert (found["rejection_sample_method"], found["synthetic_acceptance_length"]) == ("synthetic", length)
        expected = variant.expected_for(target)
        assert expected is not None
        assert expected.at_least is not None
        assert expected.at_most is not None
        assert (expected.at_least + expected.at_most) / 2 == pytest.approx(length)


def test_random_weights_and_set_acceptance_mean_nothing() -> None:
    """Either one is enough, no speculation on random weights too; real drafters on real targets mean something."""
    catalog = load_catalog()
    variants, targets = catalog.variants, catalog.targets
    hollow, real = targets["llama3.1-8b-dummy"], targets["llama3.1-8b"]
    assert "random numbers" in meaningless(variants["no_sd"], hollow)
    options = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    synthetic = msgspec.structs.replace(variants["ngram"], options=options)
    assert "right or wrong" in meaningless(synthetic, real)
    standard = msgspec.structs.replace(variants["ngram"], options={"rejection_sample_method": "standard"})
    assert meaningless(standard, real) == ""
    for name in ("no_sd", "ngram", "eagle", "eagle3", "oracle"):
        assert meaningless(variants[name], real) == ""
