"""Trained drafters: built into folders that vLLM loads, and refused before an engine starts when they do not fit."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof import building, models
from draftproof.building import file_sha256
from draftproof.catalog import fixtures_folder, load_catalog
from draftproof.drafters.assembly import derived_sha256
from draftproof.drafters.checks import check_folder, target_sha256
from draftproof.drafters.corpus import read_recipe
from draftproof.drafters.weights import Made, read_header, zeros
from draftproof.errors import DraftproofError
from draftproof.spec import DrafterKind, digest
from tests.tiny_models import (
    CONFIG,
    DRAFT_VOCABULARY,
    KINDS,
    OWN_CONFIG,
    TOKENS,
    VOCABULARY,
    Shop,
    llama_tensors,
    mask,
    offsets,
    sha256,
    shipped_tensors,
    tokenizer,
    write_model,
)

FOLDERS: tuple[DrafterKind, ...] = ("eagle", "eagle3", "draft_model")
"""Kinds that have a folder of their own."""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    made = Shop(tmp_path / "shop")
    weights = made.folder / made.drafters["mtp"].weights
    made.derived_sha256 = derived_sha256(made.drafters["mtp"], weights, made.target_folder)
    return made


def resolve(shop: Shop, kind: DrafterKind, k: int = 3, **drafter: Any) -> str | None:
    target = shop.target("tiny-mtp" if kind == "mtp" else "tiny")
    path = models.resolve_target(target, shop.catalog, say=shop.said.append)
    return models.resolve_drafter(shop.variant(kind, k, **drafter), target, path, shop.catalog, say=shop.said.append)


def refusal(shop: Shop, kind: DrafterKind, k: int = 3, **drafter: Any) -> str:
    with pytest.raises(DraftproofError) as caught:
        resolve(shop, kind, k, **drafter)
    return str(caught.value)


def read(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (t.dtype, t.shape, t.read()) for name, t in read_header(path).items()}


def built(shop: Shop, kind: DrafterKind) -> Path:
    return Path(resolve(shop, kind) or "none")


# --- what is built ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_becomes_a_folder_that_passes_the_checks_of_any_folder(shop: Shop, kind: DrafterKind) -> None:
    folder = built(shop, kind)
    check_folder(kind, folder, shop.target_folder, {})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert {**config, **OWN_CONFIG[kind]} == config
    assert config["hidden_size"] == CONFIG["hidden_size"]
    assert "auto_map" not in config


def test_eagle_holds_its_own_tensors_alone(shop: Shop) -> None:
    assert read(built(shop, "eagle") / "model.safetensors") == shipped_tensors("eagle")


def test_eagle3_gets_the_mask_of_its_ids(shop: Shop) -> None:
    found = read(built(shop, "eagle3") / "model.safetensors")
    assert found == {**shipped_tensors("eagle3"), "t2d": mask()}


def test_a_mask_that_is_shipped_is_kept(shop: Shop) -> None:
    shop.drafters["eagle3"] = shop.write_drafter("eagle3", {**shipped_tensors("eagle3"), "t2d": mask()})
    assert read(built(shop, "eagle3") / "model.safetensors")["t2d"] == mask()


def test_a_draft_model_gets_embedding_and_tokenizer_of_the_target(shop: Shop) -> None:
    folder = built(shop, "draft_model")
    embedding = llama_tensors(CONFIG)["model.embed_tokens.weight"]
    wanted = {**shipped_tensors("draft_model"), "model.embed_tokens.weight": embedding}
    assert read(folder / "model.safetensors") == wanted
    assert (folder / "tokenizer.json").read_text(encoding="utf-8") == tokenizer()


def test_a_derived_target_is_the_target_relabelled_with_the_module(shop: Shop) -> None:
    """Zero biases in every layer, the embedding again as head, no code: and vLLM drafts from this very folder."""
    folder = built(shop, "mtp")
    assert folder == Path(models.resolve_target(shop.target("tiny-mtp"), shop.catalog, say=shop.said.append))
    target = llama_tensors(CONFIG)
    bias = {"q": zeros("BF16", 12), "k": zeros("BF16", 6), "v": zeros("BF16", 6)}
    layers = [*(f"model.layers.{index}" for index in range(4)), "model.mtp_layers.0"]
    assert read(folder / "model.safetensors") == {
        **target,
        **shipped_tensors("mtp"),
        "lm_head.weight": target["model.embed_tokens.weight"],
        **{f"{layer}.self_attn.{name}_proj.bias": tensor for layer in layers for name, tensor in bias.items()},
    }
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config == {
        **CONFIG,
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "draftproof.json",
        "draftproof.stamps.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_a_derived_target_is_the_same_each_time(shop: Shop) -> None:
    """Its entry states the hash of what is built."""
    assert sha256(built(shop, "mtp") / "model.safetensors") == shop.derived_sha256


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_whole_is_not_built_again(shop: Shop, kind: DrafterKind) -> None:
    folder = built(shop, kind)
    assert len(shop.said) == 1
    assert "not built: building it from" in shop.said[0]
    assert built(shop, kind) == folder
    assert len(shop.said) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_folder_is_built_again(shop: Shop, kind: DrafterKind) -> None:
    folder = built(shop, kind)
    whole = read(folder / "model.safetensors")
    (folder / "model.safetensors").write_bytes(b"no weights")
    shop.said.clear()
    assert built(shop, kind) == folder
    assert f"{folder.name[:-13]} is damaged: building it from" in shop.said[0]
    assert read(folder / "model.safetensors") == whole


@pytest.mark.parametrize("kind", FOLDERS)
def test_two_catalogs_have_two_folders(shop: Shop, kind: DrafterKind) -> None:
    """An entry with other weights, or another configuration, does not overwrite what the first one built."""
    first = built(shop, kind)
    tensors = shipped_tensors(kind)
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    shop.drafters[kind] = shop.write_drafter(kind, {**tensors, name: zeros("BF16", 8, 12)})
    second = built(shop, kind)
    shop.drafters[kind] = shop.write_drafter(kind, config={**OWN_CONFIG[kind], "rope_theta": 5.0})
    assert len({first, second, built(shop, kind)}) == 3
    assert read(first / "model.safetensors")[name] != read(second / "model.safetensors")[name]


def test_the_hash_of_a_built_target_is_that_of_its_manifest(shop: Shop) -> None:
    """The weights of a folder that draftproof built are not read again."""
    folder = built(shop, "draft_model")
    weights_sha256 = sha256(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    assert target_sha256(shop.target(), folder) == weights_sha256


def test_describe(shop: Shop) -> None:
    """Not built, built, and a module that lies in a target; looking builds nothing."""
    catalog = shop.catalog

    def states() -> dict[str, str]:
        rows = [models.describe_drafter(entry, catalog) for entry in catalog.drafters.values()]
        rows.append(models.describe(catalog.targets["tiny-mtp"], catalog))
        return {f"{row['name']} {row['source']}": row["state"] for row in rows}

    assert states() == {
        "tiny-eagle trained": "not built",
        "tiny-eagle3 trained": "not built",
        "tiny-draft_model trained": "not built",
        "tiny-mtp trained": "in a target",
        "tiny-mtp derived": "not built",
    }
    for kind in KINDS:
        built(shop, kind)
    assert set(states().values()) == {"built", "in a target"}
    (shop.folder / "tiny-mtp.safetensors").unlink()
    assert states()["tiny-mtp trained"] == "missing"


def test_only_drafters_with_a_folder_are_built(shop: Shop) -> None:
    with pytest.raises(DraftproofError, match=r"^kind must be another than 'mtp' to be built .*; build the target"):
        models.build_drafter(shop.drafters["mtp"], shop.catalog, say=print)


def test_a_derived_target_needs_its_catalog(shop: Shop) -> None:
    with pytest.raises(DraftproofError, match=r"^catalog must be given for a derived target"):
        models.resolve_target(shop.target("tiny-mtp"), None, say=print)


def test_methods_without_a_drafter(shop: Shop) -> None:
    """n-gram has none, and a variant without one for this target has none."""
    variant = shop.variant("mtp")
    assert models.resolve_drafter(variant, shop.target(), "/t", shop.catalog, say=print) is None


# --- refused: a trained drafter ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_k_above_what_the_drafter_supports(shop: Shop, kind: DrafterKind) -> None:
    """Before anything is built; the largest k itself is fine."""
    message = refusal(shop, kind, k=9)
    assert message == (
        f"k must be at most 8 (got 9); drafter 'tiny-{kind}' supports no more; lower k in the variant's entry"
    )
    assert resolve(shop, kind, k=8)


@pytest.mark.parametrize("kind", KINDS)
def test_another_target_than_it_was_trained_on(shop: Shop, kind: DrafterKind) -> None:
    shop.drafters[kind] = shop.write_drafter(kind, target_sha256="1" * 64)
    assert refusal(shop, kind).startswith(
        f"target_sha256 must be that of the weights of target 'tiny', '{shop.target_sha256}' (got '{'1' * 64}'); "
    )


def test_a_target_whose_weights_cannot_be_told(shop: Shop) -> None:
    (shop.target_folder / "model.safetensors").rename(shop.target_folder / "shard-1.safetensors")
    assert refusal(shop, "eagle").startswith("target 'tiny' must be a folder that holds model.safetensors (got ")


@pytest.mark.parametrize("kind", KINDS)
def test_another_file_than_the_entry_states(shop: Shop, kind: DrafterKind) -> None:
    weights = shop.folder / f"tiny-{kind}.safetensors"
    shop.drafters[kind] = shop.write_drafter(kind, weights_sha256="2" * 64)
    assert refusal(shop, kind).startswith(
        f"weights_sha256 must be the SHA-256 of shop/{weights.name}, '{sha256(weights)}' (got '{'2' * 64}'); "
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_short_or_missing(shop: Shop, kind: DrafterKind) -> None:
    weights = shop.folder / f"tiny-{kind}.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert refusal(shop, kind).startswith(f"weights must be a whole safetensors file (got 'shop/{weights.name}'); ")
    weights.unlink()
    assert refusal(shop, kind).startswith("weights must be a file beside the drafter's entry (got ")


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_tensor_names(shop: Shop, kind: DrafterKind) -> None:
    tensors = shipped_tensors(kind)
    lost = next(name for name in tensors if name.endswith("v_proj.weight"))
    tensors[lost.replace("v_proj", "value")] = tensors.pop(lost)
    shop.drafters[kind] = shop.write_drafter(kind, tensors)
    wrong = f"missing {lost}; unexpected {lost.replace('v_proj', 'value')}"
    names = f"shop/tiny-{kind}.safetensors: tensor names"
    assert refusal(shop, kind).startswith(f"{names} must be those that the engine reads (got '{wrong}'); ")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [zeros("BF16", 12, 8), zeros("F32", 8, 12)])
def test_a_wrong_shape_or_type(shop: Shop, kind: DrafterKind, wrong: Made) -> None:
    tensors = shipped_tensors(kind)
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    shop.drafters[kind] = shop.write_drafter(kind, {**tensors, name: wrong})
    assert f"tensor {name} must be BF16 [8, 12] (got '{wrong.dtype} {list(wrong.shape)}'); " in refusal(shop, kind)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"d2t": offsets((0, 2, 3, 7, 11, 11))}, "i + d2t[i] must be target ids that rise (got '11, then 11 at 5'); "),
        ({"d2t": offsets((0, 2, 3, 7, 11, 16))}, "i + d2t[i] must be target ids below 16 (got '0 to 16'); "),
        ({"t2d": mask((0, 2, 3, 7, 11, 14))}, "t2d must be true for the ids of d2t alone (got '2 ids differ, the "),
    ],
)
def test_ids_of_the_draft_vocabulary_that_are_wrong(shop: Shop, tensors: dict[str, Made], said: str) -> None:
    shop.drafters["eagle3"] = shop.write_drafter("eagle3", {**shipped_tensors("eagle3"), **tensors})
    assert said in refusal(shop, "eagle3")


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("eagle3", {"draft_vocab_size": 17}, "draft_vocab_size must be at most the target's vocabulary of 16 (got 17)"),
        ("draft_model", {"vocab_size": 32}, "vocab_size must be at most the target's vocabulary of 16 (got 32)"),
        ("draft_model", {"vocab_size": 8}, "config.vocab_size must be the target's 16 (got 8)"),
        ("eagle", {"hidden_size": 4}, "config.hidden_size must be the target's 8 (got 4)"),
        ("draft_model", {"num_hidden_layers": 4}, "config.num_hidden_layers must be at most 3 (got 4)"),
    ],
)
def test_a_configuration_that_does_not_fit(shop: Shop, kind: DrafterKind, change: dict[str, Any], said: str) -> None:
    shop.drafters[kind] = shop.write_drafter(kind, config={**OWN_CONFIG[kind], **change})
    assert f"drafter 'tiny-{kind}': {said}; " in refusal(shop, kind)


def test_a_derived_target_of_another_hash_than_its_entry_states(shop: Shop) -> None:
    """The message holds the hash that was found."""
    found, shop.derived_sha256 = shop.derived_sha256, "0" * 64
    start = f"derived.weights_sha256 must be the SHA-256 of model.safetensors, '{'0' * 64}' in the entry (got '{found}'"
    assert refusal(shop, "mtp").startswith(start)


@pytest.mark.parametrize("change", [{"model_type": "qwen2"}, {"attention_bias": True}])
def test_only_a_llama_model_is_relabelled(shop: Shop, change: dict[str, Any]) -> None:
    write_model(shop.target_folder, {**CONFIG, **change}, llama_tensors(CONFIG))
    assert refusal(shop, "mtp").startswith("derived.target must be a Llama model without attention biases (got ")


def test_a_refused_drafter_leaves_no_folder(shop: Shop) -> None:
    shop.drafters["eagle"] = shop.write_drafter("eagle", {})
    refusal(shop, "eagle")
    assert not building.models_folder().exists()


# --- refused: a folder of the user's ----------------------------------------------------------------------------------

own = functools.partial(resolve, source="path", model="own")
refused = functools.partial(refusal, source="path", model="own")


def full_tensors(kind: DrafterKind) -> dict[str, Made]:
    if kind == "draft_model":
        return llama_tensors({**CONFIG, **OWN_CONFIG[kind]})
    return shipped_tensors(kind)


def write_own(shop: Shop, kind: DrafterKind, tensors: dict[str, Made] | None = None, **config: Any) -> Path:
    given = full_tensors(kind) if tensors is None else tensors
    return write_model(shop.folder / "own", {**CONFIG, **OWN_CONFIG[kind], **config}, given)


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_that_fits_is_used_as_it_is(shop: Shop, kind: DrafterKind) -> None:
    """Also in another float type than the target's, and with the tensors that are shared anyway."""
    folder = write_own(shop, kind)
    assert own(shop, kind) == str(folder)
    tensors = {
        name: Made("F32", t.shape, t.data * 2) if t.dtype == "BF16" else t for name, t in full_tensors(kind).items()
    }
    if kind != "draft_model":
        tensors["embed_tokens.weight"] = zeros("F32", VOCABULARY, 8)
    write_own(shop, kind, tensors)
    assert own(shop, kind) == str(folder)


def test_a_head_may_name_its_layer_as_any_layer(shop: Shop) -> None:
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in full_tensors("eagle3").items()}
    folder = write_own(shop, "eagle3", tensors)
    assert own(shop, "eagle3") == str(folder)


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_with_a_tensor_of_another_name(shop: Shop, kind: DrafterKind) -> None:
    tensors = full_tensors(kind)
    lost = next(name for name in tensors if name.endswith("v_proj.weight"))
    tensors["value"] = tensors.pop(lost)
    write_own(shop, kind, tensors)
    assert refused(shop, kind).startswith("own: tensor names must be those that the engine reads (got 'missing ")
    assert refused(shop, kind).count("unexpected value") == 1


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_with_a_wrong_shape(shop: Shop, kind: DrafterKind) -> None:
    tensors = full_tensors(kind)
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    write_own(shop, kind, {**tensors, name: zeros("BF16", 12, 8)})
    assert f"tensor {name} must be BF16 or F16 or F32 [8, 12] (got 'BF16 [12, 8]'); " in refused(shop, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_with_a_file_that_is_cut_short(shop: Shop, kind: DrafterKind) -> None:
    """Whatever the method; every shard is looked at."""
    folder = write_own(shop, kind, full_tensors(kind))
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1])
    assert refused(shop, kind).startswith("weights must be a whole safetensors file (got 'own/model.safetensors'); ")


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("eagle3", {"draft_vocab_size": 17}, "draft_vocab_size must be at most the target's vocabulary of 16 (got 17)"),
        ("eagle", {"vocab_size": 17}, "vocab_size must be at most the target's vocabulary of 16 (got 17)"),
        ("eagle", {"hidden_size": 4}, "hidden_size must be the target's 8 (got 4)"),
        ("draft_model", {"vocab_size": 8}, "vocab_size must be the target's 16 (got 8)"),
    ],
)
def test_a_folder_of_another_vocabulary(shop: Shop, kind: DrafterKind, change: dict[str, Any], said: str) -> None:
    """Also where the weights are in files that are not looked into."""
    folder = write_own(shop, kind, **change)
    (folder / "model.safetensors").rename(folder / "model.bin")
    assert refused(shop, kind).startswith(f"own/config.json: {said}; ")


def test_a_folder_with_wrong_ids(shop: Shop) -> None:
    wrong = offsets((0, 2, 3, 7, 11, 16))
    assert wrong.shape == (DRAFT_VOCABULARY,)
    write_own(shop, "eagle3", {**full_tensors("eagle3"), "d2t": wrong})
    assert refused(shop, "eagle3").startswith("own: i + d2t[i] must be target ids below 16 (got '0 to 16'); ")


Change = Callable[[dict[str, int]], dict[str, int]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ids: {**ids, "token3": 4, "token4": 3}, "2 tokens differ, such as 'token3': 4, the target's 3"),
        (lambda ids: {**ids, "more": 16}, "1 tokens differ, such as 'more': 16, the target's None"),
        (lambda ids: {k: v for k, v in ids.items() if v != 5}, "1 tokens differ, such as 'token5': None, the target's"),
    ],
)
def test_a_draft_model_with_another_tokenizer(shop: Shop, change: Change, said: str) -> None:
    folder = write_own(shop, "draft_model")
    (folder / "tokenizer.json").write_text(tokenizer(change(TOKENS)), encoding="utf-8")
    message = refused(shop, "draft_model")
    assert message.startswith("own/tokenizer.json: vocabulary must be the target's own (got ")
    assert said in message
    assert own(shop, "draft_model", options={"use_heterogeneous_vocab": True}) == str(folder)
    (folder / "tokenizer.json").unlink()
    assert own(shop, "draft_model") == str(folder)


def test_a_list_of_pieces_is_a_vocabulary(shop: Shop) -> None:
    """Unigram models list their pieces in the order of the ids."""
    folder = write_own(shop, "draft_model")
    rows = [[token, 0.0] for token in TOKENS]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": rows}}), encoding="utf-8")
    assert own(shop, "draft_model") == str(folder)


@pytest.mark.parametrize("content", ["", "[]", '{"model": {}}'])
def test_a_broken_tokenizer(shop: Shop, content: str) -> None:
    (write_own(shop, "draft_model") / "tokenizer.json").write_text(content, encoding="utf-8")
    assert "(got 'own/tokenizer.json'); " in refused(shop, "draft_model")


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["SomethingElse"]},
        {"model_type": "qwen3"},
        {"attention_bias": True},
        {"quantization_config": {"quant_method": "fp8"}},
    ],
)
def test_tensors_of_an_unknown_layout_are_not_judged(shop: Shop, config: dict[str, Any]) -> None:
    """Nothing is refused that vLLM may well load."""
    folder = write_own(shop, "eagle3", {"anything": zeros("F32", 3)}, **config)
    assert own(shop, "eagle3") == str(folder)


def test_a_tied_draft_model_may_hold_its_head(shop: Shop) -> None:
    tensors = {**full_tensors("draft_model"), "lm_head.weight": zeros("BF16", VOCABULARY, 8)}
    folder = write_own(shop, "draft_model", tensors)
    assert own(shop, "draft_model") == str(folder)


def test_an_untied_draft_model_must_hold_its_head(shop: Shop) -> None:
    write_own(shop, "draft_model", tie_word_embeddings=False)
    assert "(got 'missing lm_head.weight'); " in refused(shop, "draft_model")


# --- what is shipped --------------------------------------------------------------------------------------------------

SHIPPED_LIMIT_BYTES = 64_000_000


def test_shipped_weights_are_those_of_their_entries_and_cards() -> None:
    """All kinds are there, small enough for a repository, each with the card of the training that made it."""
    catalog = load_catalog()
    assert {entry.kind for entry in catalog.drafters.values()} == {"eagle", "eagle3", "mtp", "draft_model"}
    total_bytes = 0
    for entry in catalog.drafters.values():
        weights = catalog.drafter_weights(entry)
        total_bytes += weights.stat().st_size
        card = json.loads(weights.with_suffix(".json").read_text(encoding="utf-8"))
        assert file_sha256(weights) == entry.weights_sha256 == card["weights_sha256"], entry.name
        assert (card["kind"], card["target_sha256"]) == (entry.kind, entry.target_sha256)
        assert card["held_out"]["acceptance_length"] > 1.5
    assert total_bytes <= SHIPPED_LIMIT_BYTES


def test_cards_hold_the_recipes_that_are_shipped() -> None:
    """Training again with what lies beside the weights is training as they were trained."""
    catalog = load_catalog()
    folder = fixtures_folder() / "drafters" / "training"
    recipes = tomllib.loads((folder / "recipes.toml").read_text(encoding="utf-8"))
    for entry in catalog.drafters.values():
        card = json.loads(catalog.drafter_weights(entry).with_suffix(".json").read_text(encoding="utf-8"))
        stated = {**recipes[entry.kind], **card["schedule"]}
        assert stated == {**card["schedule"], **recipes[entry.kind]}, entry.name
        assert card["corpus"]["recipe_sha256"] == digest(read_recipe(folder / "corpus.toml")), entry.name
