"""Expected memory: the known rows of the paper's Table 2, the rules of counting, and what is refused."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import draftproof.cli as cli
from draftproof import memory, models
from draftproof.analysis.memory import (
    GIB,
    KIB,
    METHODS,
    MODEL_TYPES,
    NOTHING,
    Footprint,
    kv_bytes,
    lost_share,
    model_tensors,
    target_part,
    tokens_that_fit,
)
from draftproof.catalog import Catalog, load_catalog
from draftproof.drafters.assembly import derived_sha256
from draftproof.drafters.weights import INDEX, Made, Stored, read_folder, read_header, write_file, zeros
from draftproof.errors import DraftproofError
from draftproof.spec import Drafter, Variant
from tests.tiny_models import CONFIG, OWN_CONFIG, VOCABULARY, Shop, llama_tensors, mask, write_model

HIDDEN, KEY = 8, 6  # of the tiny configuration
TINY_KV = 2 * 4 * KEY * 2
"""KV bytes of a token: 2 x 4 layers x 1 head of 6 x 2 bytes."""
TABLE = zeros("BF16", VOCABULARY, HIDDEN)
HEAVY = {"torch", "vllm", "transformers", "datasets"}


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own models play no part."""
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "hub_snapshot", lambda model, revision: None)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "shop")
    weights = made.folder / made.drafters["mtp"].weights
    made.derived_sha256 = derived_sha256(made.drafters["mtp"], weights, made.target_folder)
    return made


def expect(target: str | Path, drafter: str | Path | None, entries: Catalog, **options: Any) -> memory.Report:
    return memory.expect(str(target), None if drafter is None else str(drafter), entries, **options)


def added(report: memory.Report) -> memory.Part:
    assert report.drafter is not None
    return report.drafter


def refusal(target: str | Path, drafter: str | Path | None, entries: Catalog, **options: Any) -> str:
    with pytest.raises(DraftproofError) as caught:
        expect(target, drafter, entries, **options)
    return str(caught.value)


def data_bytes(tensors: Mapping[str, Made | Stored]) -> int:
    return sum(tensor.size_bytes for tensor in tensors.values())


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


# --- Table 2 of arXiv 2601.11580 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "variant", "static", "kv_kib"),
    [
        ("llama3.1-8b", "ngram", "+0.0%", (128, 128)),
        ("qwen3-8b", "ngram", "+0.0%", (144, 144)),
        ("llama3.1-8b", "eagle", "+3.1%", (128, 132)),
        ("llama3.1-8b", "eagle3", "+5.3%", (128, 132)),
        ("llama3-70b", "eagle", "+1.4%", (320, 324)),
        ("llama3-70b", "draft_model", "+1.8%", (320, 352)),
        ("qwen3-8b", "eagle3", "+4.9%", (144, 148)),
        ("qwen3-8b", "draft_model", "+7.3%", (144, 256)),
        ("qwen3-8b-thinking", "draft_model", "+7.3%", (144, 256)),
    ],
)
def test_table_2(target: str, variant: str, static: str, kv_kib: tuple[int, int], catalog: Catalog) -> None:
    """Added weights to the printed digit and KV cache exactly, from committed configurations alone."""
    report = expect(target, variant, catalog)
    assert f"{report.together.static_bytes / report.target.static_bytes - 1:+.1%}" == static
    assert [report.target.kv_bytes_per_token, report.together.kv_bytes_per_token] == [kib * KIB for kib in kv_kib]
    assert report.target.basis == "configuration"


@pytest.mark.parametrize(("variant", "gib"), [("eagle", "0.47"), ("eagle3", "0.79")])
def test_table_2_in_gib(variant: str, gib: str, catalog: Catalog) -> None:
    """The heads of Llama-3.1-8B, whose sizes are given; 14.96 GiB are the target's."""
    report = expect("llama3.1-8b", variant, catalog)
    assert f"{added(report).static_bytes / GIB:.2f}" == gib
    assert f"{report.target.static_bytes / GIB:.2f}" == "14.96"


def test_table_2_in_all(catalog: Catalog) -> None:
    """Llama-3-70B and Llama-3.2-1B together, the one sum that is given."""
    assert f"{expect('llama3-70b', 'draft_model', catalog).together.static_bytes / GIB:.1f}" == "133.7"


@pytest.mark.parametrize("name", ["llama3.1-8b", "llama3-70b", "qwen3-8b", "smollm2-135m"])
def test_counted_weights_are_the_published_number_of_parameters(name: str, catalog: Catalog) -> None:
    """What is counted from a configuration is what the model card says, to the last one."""
    assert expect(name, None, catalog).target.static_bytes == 2 * (catalog.targets[name].parameters or 0)


@pytest.mark.parametrize(
    ("variant", "target", "parameters"),
    [("draft_model", "llama3-70b", 1_235_814_400), ("draft_model", "qwen3-8b", 596_049_920)],
)
def test_counted_drafters_are_of_their_published_size(
    variant: str, target: str, parameters: int, catalog: Catalog
) -> None:
    assert added(expect(target, variant, catalog)).static_bytes == 2 * parameters


def test_glm_is_of_the_size_that_its_name_says(catalog: Catalog) -> None:
    """106 billion parameters without its MTP module, which is one layer of experts and a projection."""
    report = expect("glm-4.5-air", "mtp", catalog)
    assert report.target.static_bytes / 2 == pytest.approx(106.85e9, rel=1e-3)
    layer = 3 * 4096 * 1408 * 129 + 2 * 4096 * (96 + 8) * 128 + 2 * 4096 * 4096
    assert added(report).static_bytes / 2 == pytest.approx(layer, rel=1e-3)
    assert (report.target.kv_bytes_per_token, added(report).kv_bytes_per_token) == (46 * 4 * KIB, 4 * KIB)


def test_every_model_of_the_hub_in_the_catalog_has_a_shape(catalog: Catalog) -> None:
    for target in catalog.targets.values():
        for variant in catalog.variants.values():
            drafter = variant.drafters.get(target.name)
            if drafter is not None and drafter.source == "hub":
                report = expect(target.name, variant.name, catalog)
                assert added(report).static_bytes < report.target.static_bytes
        assert expect(target.name, "no_sd", catalog).drafter is None


# --- what a drafter adds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no_sd", "ngram", "oracle", "random_half"])
def test_what_needs_no_drafter_adds_nothing(name: str, catalog: Catalog) -> None:
    report = expect("smollm2-135m", name, catalog, budget=GIB)
    assert report.drafter is None
    assert report.together == report.target.footprint
    assert report.capacity is not None
    assert report.capacity.lost_share == report.lost_share_per_gib == 0


def test_a_target_that_drafts_for_itself_is_there_twice(catalog: Catalog) -> None:
    report = expect("smollm2-135m", "self_draft", catalog)
    assert added(report).footprint == report.target.footprint
    assert report.lost_share_per_gib == 0.5


def test_a_target_is_its_file(shop: Shop) -> None:
    """Its embedding once, since it is tied; a tied LM head in the file, and what vLLM never reads, are not counted."""
    target = expect("tiny", None, shop.catalog).target
    assert target.footprint == Footprint(data_bytes(llama_tensors(CONFIG)), TINY_KV)
    assert target.basis == "file headers"
    extra = {"lm_head.weight": TABLE, "model.layers.0.self_attn.rotary_emb.inv_freq": zeros("F32", 3)}
    write_model(shop.target_folder, CONFIG, llama_tensors(CONFIG) | extra)
    assert expect("tiny", None, shop.catalog).target == target
    edit(shop.target_folder, tie_word_embeddings=False)
    assert expect("tiny", None, shop.catalog).target.static_bytes == target.static_bytes + TABLE.size_bytes


@pytest.mark.parametrize("name", ["eagle", "tiny-eagle"])
def test_an_eagle_head_adds_its_file_and_a_layer(shop: Shop, name: str) -> None:
    """By the name of the variant or of the drafter; embedding and LM head are the target's."""
    part = added(expect("tiny", name, shop.catalog))
    file = shop.folder / "tiny-eagle.safetensors"
    assert part.static_bytes == data_bytes(read_header(file))
    assert (part.kv_bytes_per_token, part.method, part.assumed) == (TINY_KV // 4, "eagle", "")


def test_an_eagle3_head_has_an_lm_head_of_its_own(shop: Shop) -> None:
    """Of the draft vocabulary, with the ids of its tokens (8 bytes each); the mask is read by nobody."""
    plain = added(expect("tiny", "eagle3", shop.catalog))
    tensors = read_header(shop.folder / "tiny-eagle3.safetensors")
    assert {"lm_head.weight", "d2t"} <= tensors.keys()
    assert plain.static_bytes == data_bytes(tensors)
    assert plain.kv_bytes_per_token == TINY_KV // 4
    shop.drafters["eagle3"] = shop.write_drafter("eagle3", {**fillable(tensors), "t2d": mask()})
    assert added(expect("tiny", "eagle3", shop.catalog)) == plain


def fillable(tensors: Mapping[str, Stored]) -> dict[str, Made]:
    return {name: Made(tensor.dtype, tensor.shape, tensor.read()) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("method", "extra", "counted", "assumed"),
    [
        ("eagle", {"embed_tokens.weight": (16, 8)}, 0, "embed_tokens.weight: taken"),
        ("eagle", {"embed_tokens.weight": (16, 8), "lm_head.weight": (16, 8)}, 0, "embed_tokens.weight and lm_head"),
        ("eagle", {"embed_tokens.weight": (12, 8)}, 12 * 8 * 2, ""),
        ("eagle3", {"embed_tokens.weight": (16, 8)}, 0, "embed_tokens.weight: taken"),
        ("eagle3", {"lm_head.weight": (16, 8)}, (16 - 6) * 8 * 2, ""),
    ],
)
def test_what_a_head_shares_with_its_target(
    shop: Shop, tmp_path: Path, method: str, extra: dict[str, tuple[int, int]], counted: int, assumed: str
) -> None:
    """Tables of the target's shape are not counted twice, and it is said that this is assumed; others are its own."""
    kind: Any = method
    plain = added(expect("tiny", method, shop.catalog)).static_bytes
    tensors = fillable(read_header(shop.folder / f"tiny-{method}.safetensors"))
    tensors |= {name: zeros("BF16", *shape) for name, shape in extra.items()}
    head = write_model(tmp_path / "head", {**CONFIG, **OWN_CONFIG[kind]}, tensors)
    part = added(expect("tiny", head, shop.catalog, method=method))
    assert part.static_bytes == plain + counted
    assert part.assumed.startswith(assumed) if assumed else part.assumed == ""


def test_a_draft_model_shares_nothing(shop: Shop) -> None:
    """The shipped file lacks the embedding, which is the target's: vLLM holds it twice."""
    part = added(expect("tiny", "draft_model", shop.catalog))
    tensors = read_header(shop.folder / "tiny-draft_model.safetensors")
    assert part.footprint == Footprint(data_bytes(tensors) + TABLE.size_bytes, TINY_KV // 2)
    built = models.build_drafter(shop.drafters["draft_model"], shop.catalog, say=shop.said.append)
    assert added(expect("tiny", built, shop.catalog, method="draft_model")).footprint == part.footprint


def test_an_mtp_module_counts_with_speculation_only(shop: Shop) -> None:
    """It lies in the target's own file; the counts are the same before the target is built and after."""
    before = expect("tiny-mtp", "mtp", shop.catalog)
    folder = Path(models.resolve_target(shop.target("tiny-mtp"), shop.catalog, say=shop.said.append))
    after = expect("tiny-mtp", "mtp", shop.catalog)
    assert (before.target.basis, after.target.basis) == ("configuration", "file headers")
    assert (before.target.footprint, added(before)) == (after.target.footprint, added(after))
    assert after.together.static_bytes == data_bytes(read_folder(folder))
    assert (after.target.kv_bytes_per_token, added(after).kv_bytes_per_token) == (TINY_KV, TINY_KV // 4)
    assert added(expect(folder, folder, shop.catalog, method="mtp")).footprint == added(after).footprint


# --- headers against configurations -----------------------------------------------------------------------------------

GLM: dict[str, Any] = {
    **CONFIG,
    "model_type": "glm4_moe",
    "tie_word_embeddings": False,
    "attention_bias": True,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 5,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_nextn_predict_layers": 1,
}


def glm_tensors() -> dict[str, Made]:
    """A checkpoint as GLM-4.5 names it, written out by hand: each expert by itself, the MTP module as layer 3."""
    rows: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (16, 8),
        "lm_head.weight": (16, 8),
        "model.norm.weight": (8,),
        "model.layers.3.eh_proj.weight": (8, 16),
        "model.layers.3.embed_tokens.weight": (16, 8),
        "model.layers.3.shared_head.head.weight": (16, 8),
        **{f"model.layers.3.{name}.weight": (8,) for name in ("enorm", "hnorm", "shared_head.norm")},
    }
    for layer in range(4):
        prefix = f"model.layers.{layer}."
        rows |= {f"{prefix}{name}.weight": (8,) for name in ("input_layernorm", "post_attention_layernorm")}
        for name, size in (("q", 12), ("k", 6), ("v", 6)):
            rows |= {f"{prefix}self_attn.{name}_proj.weight": (size, 8), f"{prefix}self_attn.{name}_proj.bias": (size,)}
        rows[f"{prefix}self_attn.o_proj.weight"] = (8, 12)
        inner = {"mlp": 12}
        if layer > 0:
            inner = {f"mlp.experts.{expert}": 5 for expert in range(4)} | {"mlp.shared_experts": 10}
            rows |= {f"{prefix}mlp.gate.weight": (4, 8), f"{prefix}mlp.gate.e_score_correction_bias": (4,)}
        for name, width in inner.items():
            rows |= {f"{prefix}{name}.{part}_proj.weight": (width, 8) for part in ("gate", "up")}
            rows[f"{prefix}{name}.down_proj.weight"] = (8, width)
    return {name: zeros("BF16", *shape) for name, shape in rows.items()}


def test_a_mixture_of_experts_counts_the_same_either_way(tmp_path: Path, shop: Shop) -> None:
    folder = write_model(tmp_path / "glm", GLM, glm_tensors())
    read = expect(folder, folder, shop.catalog, method="mtp")
    (folder / "model.safetensors").unlink()
    counted = expect(folder, folder, shop.catalog, method="mtp")
    assert (read.target.basis, counted.target.basis) == ("file headers", "configuration")
    assert read.target.footprint == counted.target.footprint
    assert added(read).footprint == added(counted).footprint
    assert read.together.static_bytes == data_bytes(glm_tensors()) - 2 * TABLE.size_bytes


@pytest.mark.parametrize("method", ["eagle", "eagle3", "draft_model"])
def test_drafters_count_the_same_either_way(shop: Shop, method: Any) -> None:
    """The shipped file against its configuration in a folder without weights."""
    folder = shop.folder / "bare"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **OWN_CONFIG[method]}), encoding="utf-8")
    counted = added(expect("tiny", folder, shop.catalog, method=method))
    assert counted.basis == "configuration"
    assert counted.footprint == added(expect("tiny", method, shop.catalog)).footprint


@pytest.mark.parametrize(
    ("changes", "elements_per_layer"),
    [
        ({"model_type": "qwen2"}, 12 + 6 + 6),
        ({"model_type": "mimo"}, 12 + 6 + 6),
        ({"model_type": "qwen3"}, 2 * 6),
        ({"model_type": "qwen3", "attention_bias": True}, 2 * 6 + 12 + 6 + 6),
        ({"attention_bias": True}, 12 + 6 + 6 + 8),
    ],
)
def test_model_types_differ_from_llama_by_biases_and_norms(changes: dict[str, Any], elements_per_layer: int) -> None:
    plain = model_tensors(CONFIG, "bfloat16", "tiny")
    other = model_tensors({**CONFIG, **changes}, "bfloat16", "tiny")
    assert sum(math.prod(other[name].shape) for name in other.keys() - plain.keys()) == 4 * elements_per_layer
    assert plain.items() <= other.items()


def test_floats_are_counted_in_the_type_of_the_engine(tmp_path: Path, shop: Shop) -> None:
    """A float32 file is loaded as bfloat16, as vLLM's ``auto`` does; quantised numbers stay as they are stored."""
    wide = {name: zeros("F32", *tensor.shape) for name, tensor in llama_tensors(CONFIG).items()}
    folder = write_model(tmp_path / "wide", {**CONFIG, "dtype": "float32"}, wide)
    plain = expect("tiny", None, shop.catalog)
    report = expect(folder, None, shop.catalog)
    assert (report.dtype, report.target.footprint) == ("bfloat16", plain.target.footprint)
    name = "model.layers.0.mlp.down_proj.weight"
    packed = {**llama_tensors(CONFIG), name: zeros("I8", 8, 12), "model.layers.0.mlp.down_proj.scale": zeros("BF16", 8)}
    write_model(folder, {**CONFIG, "quantization_config": {"bits": 8}}, packed)
    saved = 8 * 12 - 8 * 2
    assert expect(folder, None, shop.catalog).target.static_bytes == plain.target.static_bytes - saved


def test_a_drafter_is_loaded_in_the_type_of_its_target(catalog: Catalog) -> None:
    """The EAGLE heads are published in float16, their targets in bfloat16."""
    shape = catalog.shape_of("yuhuili/EAGLE-LLaMA3.1-Instruct-8B")
    assert shape is not None
    assert shape.config["dtype"] == "float16"
    assert expect("llama3.1-8b", "eagle", catalog).dtype == "bfloat16"


# --- files ------------------------------------------------------------------------------------------------------------


def write_shards(folder: Path) -> None:
    """The tiny target in two files and their index."""
    tensors = llama_tensors(CONFIG)
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    (folder / "model.safetensors").unlink()
    for file, own in parts.items():
        write_file(folder / file, {name: tensors[name] for name in own})
    table = {name: file for file, own in parts.items() for name in own}
    (folder / INDEX).write_text(json.dumps({"weight_map": table}), encoding="utf-8")


def test_shards_are_those_that_the_index_names(shop: Shop) -> None:
    plain = expect("tiny", None, shop.catalog)
    write_shards(shop.target_folder)
    assert expect("tiny", None, shop.catalog) == plain
    write_file(shop.target_folder / "consolidated.safetensors", llama_tensors(CONFIG))
    assert expect("tiny", None, shop.catalog) == plain


def test_a_missing_shard_is_named(shop: Shop) -> None:
    write_shards(shop.target_folder)
    (shop.target_folder / "model-2.safetensors").unlink()
    message = refusal("tiny", None, shop.catalog)
    assert message == (
        "weights must be all files that tiny/model.safetensors.index.json names (got 'without model-2.safetensors'); "
        "copy or download model-2.safetensors into 'tiny' again"
    )


def test_a_missing_shard_is_named_by_its_number_where_there_is_no_index(shop: Shop) -> None:
    """Half a model must not pass for a whole one; with both files there it is counted as before."""
    plain = expect("tiny", None, shop.catalog)
    write_shards(shop.target_folder)
    (shop.target_folder / INDEX).unlink()
    for number in (1, 2):
        file = shop.target_folder / f"model-{number}.safetensors"
        file.rename(file.with_name(f"model-0000{number}-of-00002.safetensors"))
    assert expect("tiny", None, shop.catalog) == plain
    (shop.target_folder / "model-00001-of-00002.safetensors").unlink()
    assert refusal("tiny", None, shop.catalog) == (
        "weights must be all 2 files of 'model' (got 'without model-00001-of-00002.safetensors'); "
        "copy or download model-00001-of-00002.safetensors into 'tiny' again"
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_that_names_no_files(shop: Shop, text: str) -> None:
    (shop.target_folder / INDEX).write_text(text, encoding="utf-8")
    assert refusal("tiny", None, shop.catalog).startswith(f"weights must be named by {INDEX} (got 'tiny/{INDEX}')")


@pytest.mark.parametrize("left", [0, 5, 40, -1])
def test_a_file_that_was_cut_short(shop: Shop, left: int) -> None:
    """Inside the length, the header, or the data."""
    file = shop.target_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    message = refusal("tiny", None, shop.catalog)
    assert message.startswith("weights must be a whole safetensors file (got 'tiny/model.safetensors')")


def test_a_drafter_whose_file_is_missing(shop: Shop) -> None:
    (shop.folder / "tiny-eagle.safetensors").unlink()
    message = refusal("tiny", "eagle", shop.catalog)
    assert message.startswith("weights must be a file beside the drafter's entry (got 'shop/tiny-eagle.safetensors')")


def test_a_drafter_in_a_folder_of_the_catalog(shop: Shop) -> None:
    """A variant's relative path begins at its own entry; a method whose drafter nobody describes is refused."""
    config = {**CONFIG, "num_hidden_layers": 1}
    write_model(shop.folder / "small", config, llama_tensors(config))
    drafter = Drafter(source="path", model="small")
    assert added(expect("tiny", "mine", with_variant(shop, "draft_model", drafter))).kv_bytes_per_token == TINY_KV // 4
    message = refusal("tiny", "mine", with_variant(shop, "medusa", drafter))
    assert message.startswith("method must be one whose drafter can be counted (got 'medusa'); known: draft_model")


def with_variant(shop: Shop, method: str, drafter: Drafter) -> Catalog:
    """The shop's catalog with a variant `mine` beside its tiny target."""
    variant = Variant(name="mine", title="Mine", method=method, k=3, drafters={"tiny": drafter})
    catalog = shop.catalog
    return msgspec.structs.replace(
        catalog,
        variants={**catalog.variants, "mine": variant},
        folders={**catalog.folders, "variants/mine": shop.folder},
    )


def test_a_model_in_the_hub_cache_is_read(catalog: Catalog, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "hub_snapshot", lambda model, revision: shop.target_folder)
    target = expect("qwen3-8b", None, catalog).target
    assert (target.model, target.basis, target.kv_bytes_per_token) == ("Qwen/Qwen3-8B", "file headers", TINY_KV)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_unknown_names_list_the_known(catalog: Catalog) -> None:
    message = refusal("qwen4", None, catalog)
    assert message.startswith("target must be one of the known names (got 'qwen4'); known: glm-4.5-air, llama3-70b")
    message = refusal("qwen3-8b", "hydra", catalog)
    assert message.startswith("drafter must be one of the known names (got 'hydra'); known: adversarial, adversarial_")
    assert "smollm2-135m-eagle3" in message


def test_a_folder_without_a_configuration(catalog: Catalog, tmp_path: Path) -> None:
    for name, found in ((tmp_path, "a folder without it"), (tmp_path / "gone", "nothing")):
        assert f"holds config.json (got {str(name)!r}); found {found}" in refusal(name, None, catalog)
        assert f"; found {found}" in refusal("smollm2-135m", name, catalog, method="eagle")


@pytest.mark.parametrize(
    ("target", "drafter"), [("llama3.1-8b", "draft_model"), ("qwen3-8b", "smollm2-135m-eagle"), ("smollm2-135m", "mtp")]
)
def test_a_drafter_for_another_target(target: str, drafter: str, catalog: Catalog) -> None:
    message = refusal(target, drafter, catalog)
    assert message.startswith("target must be one that ")
    assert f"(got {target!r}); known: " in message


def test_an_mtp_module_is_no_drafter_of_the_plain_target(catalog: Catalog) -> None:
    message = refusal("smollm2-135m", "smollm2-135m-mtp", catalog)
    assert message.startswith("target must be one that drafter 'smollm2-135m-mtp' is for")
    assert "known: smollm2-135m-mtp;" in message


def test_a_target_without_an_mtp_module_has_no_mtp(shop: Shop) -> None:
    message = refusal("tiny", shop.target_folder, shop.catalog, method="mtp")
    assert "weights must be those of a drafter for the method 'mtp' (got 'none')" in message


def test_the_method_of_a_folder_must_be_said(shop: Shop) -> None:
    """And of nothing else: the catalog knows it."""
    form = "method must be vLLM's for a drafter in a folder (got {!r}); known: " + ", ".join(METHODS)
    for method in (None, "medusa"):
        message = refusal("tiny", shop.target_folder, shop.catalog, method=method)
        assert message.startswith(form.format(method))
    assert refusal("tiny", "eagle", shop.catalog, method="eagle3").startswith("method must be absent")


@pytest.mark.parametrize("value", [0, -32, 1.5, "32", True, None])
@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"])
def test_sizes_must_be_positive(shop: Shop, key: str, value: Any) -> None:
    edit(shop.target_folder, **{key: value})
    message = refusal("tiny", None, shop.catalog)
    assert message.startswith(f"tiny: {key} must be an integer of at least 1 (got {value!r})")


@pytest.mark.parametrize("key", ["moe_intermediate_size", "n_routed_experts", "n_shared_experts"])
def test_sizes_of_experts_must_be_positive(tmp_path: Path, catalog: Catalog, key: str) -> None:
    folder = write_model(tmp_path / "glm", {**GLM, key: -1}, {})
    (folder / "model.safetensors").unlink()
    assert f"{key} must be an integer of at least 1 (got -1)" in refusal(folder, None, catalog)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ],
)
def test_attention_with_another_kv_cache(shop: Shop, changes: dict[str, Any], found: str) -> None:
    edit(shop.target_folder, **changes)
    assert refusal("tiny", None, shop.catalog).startswith("tiny: attention must be full, ")
    assert f"(got {found!r})" in refusal("tiny", None, shop.catalog)


def test_a_window_that_is_off_is_none(shop: Shop) -> None:
    """As in the configurations of Qwen and MiMo."""
    plain = expect("tiny", None, shop.catalog)
    edit(shop.target_folder, sliding_window=4096, use_sliding_window=False, layer_types=["full_attention"] * 4)
    assert expect("tiny", None, shop.catalog) == plain


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "opt"}, "model_type must be a type whose weights can be counted (got 'opt')"),
        ({"quantization_config": {"bits": 4}}, "quantization_config must be absent where weights are counted"),
    ],
)
def test_weights_that_cannot_be_counted_need_files(
    shop: Shop, tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    """With the files the configuration does not matter."""
    edit(shop.target_folder, **changes)
    expect("tiny", None, shop.catalog)
    (shop.target_folder / "model.safetensors").unlink()
    message = refusal("tiny", None, shop.catalog)
    assert field in message
    assert "put the model's safetensors files on this machine" in message


def test_a_head_with_extensions_needs_files(shop: Shop) -> None:
    folder = shop.folder / "head"
    folder.mkdir()
    config = {**CONFIG, **OWN_CONFIG["eagle3"], "norm_before_fc": True}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "norm_before_fc must be absent" in refusal("tiny", folder, shop.catalog, method="eagle3")


def test_an_unknown_type_of_numbers(shop: Shop) -> None:
    edit(shop.target_folder, dtype="float8")
    message = refusal(shop.target_folder, None, shop.catalog)
    assert message.startswith("dtype must be a type that is known (got 'float8'); known: bfloat16, float16, float32")


SHAPE = """
name = "mine"
model = "me/mine"
source = "a test"
[config]
model_type = "llama"
hidden_size = 8
intermediate_size = 12
num_hidden_layers = 4
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 6
vocab_size = 16
tie_word_embeddings = true
"""
TARGET = 'name = "mine"\ntitle = "Mine"\nsource = "hub"\nmodel = "me/mine"\n'


def overlay(folder: Path, **files: str) -> Path:
    for kind, text in files.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / "mine.toml").write_text(text, encoding="utf-8")
    return folder


def test_a_model_that_is_nowhere_says_what_to_do(tmp_path: Path) -> None:
    """It can be fetched, or described in a layer of one's own."""
    message = refusal("mine", None, load_catalog(overlay(tmp_path, targets=TARGET)))
    assert message.startswith("model must be on this machine, or one whose shape is known (got 'me/mine'); known: ")
    assert "fetch it with `hf download me/mine`, or describe it in shapes/<name>.toml" in message
    report = expect("mine", None, load_catalog(overlay(tmp_path, shapes=SHAPE)))
    assert report.target.footprint == Footprint(data_bytes(llama_tensors(CONFIG)), TINY_KV)


def test_an_embedded_model_that_is_nowhere_is_to_be_built(catalog: Catalog) -> None:
    message = refusal("smollm2-135m", None, msgspec.structs.replace(catalog, shapes={}))
    assert "build it with `draftproof models build smollm2-135m`" in message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("me/mine", "Qwen/Qwen3-8B", "model must be of one shape ('qwen3-8b' has it) (got 'Qwen/Qwen3-8B')"),
        ('"a test"', '" "', "source must be where the configuration comes from"),
        ("[config]", "[configuration]", "unknown field `configuration`"),
    ],
)
def test_shapes_that_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(DraftproofError) as caught:
        load_catalog(overlay(tmp_path, shapes=SHAPE.replace(old, new)))
    assert str(caught.value).startswith("shapes/mine.toml: ")
    assert message in str(caught.value)


# --- arithmetic -------------------------------------------------------------------------------------------------------

sizes = st.integers(1, 500)


@given(sizes, sizes, st.sampled_from([1, 2, 4]), st.integers(0, 10**6), st.integers(1, 9))
def test_kv_bytes_are_linear(layers: int, key_value: int, item: int, tokens: int, times: int) -> None:
    """In layers, in heads x size, in bytes of a number and in tokens; and the obvious sum over layers is the same."""
    one = kv_bytes(layers, key_value, item, tokens)
    assert kv_bytes(times * layers, key_value, item, tokens) == times * one
    assert kv_bytes(layers, times * key_value, item, tokens) == times * one
    assert kv_bytes(layers, key_value, item, times * tokens) == times * one
    assert one == sum(key_value * item * tokens for _ in range(layers) for _ in ("key", "value"))


footprints = st.builds(Footprint, st.integers(0, 10**6), st.integers(1, 10**4))


@given(footprints, footprints, st.integers(0, 10**7))
def test_tokens_fit_and_one_more_does_not(alone: Footprint, drafter: Footprint, budget: int) -> None:
    """Speculation never makes room, and takes none where it adds nothing."""
    tokens = tokens_that_fit(budget, alone)
    used = alone.static_bytes + tokens * alone.kv_bytes_per_token
    assert used <= max(budget, alone.static_bytes) < used + alone.kv_bytes_per_token
    with_drafter = tokens_that_fit(budget, alone.plus(drafter))
    assert 0 <= with_drafter <= tokens
    share = lost_share(tokens, with_drafter)
    assert (share is None) == (tokens == 0)
    assert share is None or 0 <= share <= 1
    assert tokens_that_fit(budget, alone.plus(NOTHING)) == tokens


@given(st.sampled_from(MODEL_TYPES), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_static_bytes_grow_by_equal_layers(kind: str, layers: int, more: int, tied: bool) -> None:
    """Every layer behind the dense ones weighs the same, whatever the vocabulary."""
    config = {**GLM, "model_type": kind, "tie_word_embeddings": tied, "num_nextn_predict_layers": 0}

    def elements(count: int) -> int:
        given = {**config, "num_hidden_layers": count}
        part = target_part(model_tensors(given, "bfloat16", "tiny"), given, count)
        return sum(math.prod(tensor.shape) for tensor in part.values())

    one = elements(layers + 1) - elements(layers)
    assert elements(layers + more) - elements(layers) == more * one > 0


def test_capacity_of_a_gpu(catalog: Catalog) -> None:
    """By hand: Qwen3-8B with Qwen3-0.6B in 80 GiB at 0.9."""
    report = expect("qwen3-8b", "draft_model", catalog, budget=memory.budget_bytes(80, 0.9))
    room = report.capacity
    assert room is not None
    assert room.tokens_without == (72 * GIB - 2 * 8_190_735_360) // (144 * KIB)
    assert room.tokens_with == (72 * GIB - 2 * (8_190_735_360 + 596_049_920)) // (256 * KIB)
    assert report.lost_share_per_gib == pytest.approx(1 - 144 / 256)
    assert room.lost_share is not None
    assert room.lost_share == pytest.approx(1 - room.tokens_with / room.tokens_without)
    assert room.lost_share > report.lost_share_per_gib


def test_a_target_that_does_not_fit(catalog: Catalog) -> None:
    report = expect("llama3-70b", "eagle", catalog, budget=memory.budget_bytes(80, 0.9))
    assert report.capacity is not None
    assert (report.capacity.tokens_without, report.capacity.lost_share) == (0, None)
    assert list(memory.lines(report))[-1].endswith("0 without and 0 with the drafter: the target does not fit")


@pytest.mark.parametrize(
    ("gib", "utilisation", "field"),
    [
        *[(gib, 0.9, "--gpu-memory-gib") for gib in (0.0, -80.0, math.nan, math.inf)],
        *[(80.0, part, "--utilisation") for part in (0.0, -0.5, 1.01, math.nan)],
    ],
)
def test_budgets_that_are_refused(gib: float, utilisation: float, field: str) -> None:
    with pytest.raises(DraftproofError, match=rf"^{field} must be above 0"):
        memory.budget_bytes(gib, utilisation)


# --- the command ------------------------------------------------------------------------------------------------------


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, ["memory", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_the_table() -> None:
    assert invoke("llama3.1-8b", "eagle", "--gpu-memory-gib", "80", "--utilisation", "0.9").splitlines() == [
        "target   meta-llama/Llama-3.1-8B-Instruct (from its configuration)",
        "drafter  yuhuili/EAGLE-LLaMA3.1-Instruct-8B (from its configuration, eagle)",
        "         embed_tokens.weight and lm_head.weight: taken to be the target's own",
        "",
        "           static GiB  KV KiB/token  tokens/GiB of KV",
        "target          14.96        128.00             8,192",
        "drafter          0.47          4.00",
        "together        15.43        132.00             7,943",
        "change          +3.1%         +3.1%             -3.0%",
        "",
        "tokens beside the weights in 72.0 GiB: 467,291 without and 449,407 with the drafter: 3.8% lost",
    ]


def test_a_target_alone() -> None:
    assert invoke("qwen3-8b").splitlines()[-1] == "nothing is added to the target"


def test_the_table_as_json() -> None:
    table = json.loads(invoke("qwen3-8b", "draft_model", "--json"))
    assert table["target"]["kv_bytes_per_token"] == 144 * KIB
    assert table["drafter"]["method"] == "draft_model"
    assert table["together"] == {
        "static_bytes": 2 * (8_190_735_360 + 596_049_920),
        "kv_bytes_per_token": 256 * KIB,
    }
    assert table["capacity"] is None
    assert json.loads(invoke("qwen3-8b", "ngram", "--json"))["drafter"] is None


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["draftproof", "memory", "qwen4"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("draftproof: target must be one of the known names (got 'qwen4')")


def test_the_command_loads_neither_torch_nor_vllm(tmp_path: Path) -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "sys.argv = ['draftproof', 'memory', 'qwen3-8b', 'draft_model', '--json']\n"
        "from draftproof.cli import main; main()"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["dtype"] == "bfloat16"
    assert set(done.stderr.split()).isdisjoint(HEAVY)
