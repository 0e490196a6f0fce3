"""What a drafter's file must hold: names, shapes and types of each kind, and a safetensors file that is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from draftproof.drafters import layout
from draftproof.drafters.weights import Made, Stored, read_folder, read_header, write_file, zeros
from draftproof.errors import DraftproofError
from draftproof.spec import DrafterKind
from tests.tiny_models import CONFIG, KINDS, OWN_CONFIG, VOCABULARY, mask, offsets, shipped_tensors

HIDDEN, QUERY, KEY = 8, 12, 6  # of the tiny configuration


def layout_of(kind: DrafterKind, **changes: Any) -> layout.Layout:
    return layout.shipped_layout(kind, layout.dimensions({**CONFIG, **OWN_CONFIG[kind], **changes}, kind))


def refusal(kind: DrafterKind, tensors: dict[str, Made]) -> str:
    with pytest.raises(DraftproofError) as caught:
        layout.check_tensors("w", tensors, layout_of(kind))
    return str(caught.value)


# --- names and shapes -------------------------------------------------------------------------------------------------


def shapes(kind: DrafterKind) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in layout_of(kind).required.items()}


LAYER = {
    "self_attn.o_proj.weight": (HIDDEN, QUERY),
    "mlp.gate_proj.weight": (12, HIDDEN),
    "mlp.up_proj.weight": (12, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, 12),
    "post_attention_layernorm.weight": (HIDDEN,),
}


def layer(prefix: str, inputs: int, *norms: str) -> dict[str, tuple[int, ...]]:
    rows = {**LAYER, **{f"{name}.weight": (HIDDEN,) for name in norms}}
    rows |= {f"self_attn.{name}_proj.weight": (size, inputs) for name, size in (("q", QUERY), ("k", KEY), ("v", KEY))}
    return {prefix + name: shape for name, shape in rows.items()}


def test_eagle() -> None:
    """No norm before the attention of the first layer, and neither embedding nor head."""
    assert shapes("eagle") == {"fc.weight": (HIDDEN, 2 * HIDDEN), **layer("layers.0.", HIDDEN)}
    assert layout_of("eagle").optional == {}


def test_eagle3() -> None:
    """Attention reads twice the hidden size; the head has the draft vocabulary; ids are int64."""
    assert shapes("eagle3") == {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        **layer("midlayer.", 2 * HIDDEN, "input_layernorm", "hidden_norm"),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (6, HIDDEN),
        "d2t": (6,),
    }
    found = layout_of("eagle3")
    assert found.required["d2t"].dtypes == ("I64",)
    assert found.optional == {"t2d": layout.Tensor(("BOOL",), (VOCABULARY,))}


def test_eagle3_of_the_targets_vocabulary_needs_no_map() -> None:
    found = layout_of("eagle3", draft_vocab_size=None)
    assert "d2t" not in found.required
    assert found.required["lm_head.weight"].shape == (VOCABULARY, HIDDEN)
    assert set(found.optional) == {"d2t", "t2d"}


def test_mtp() -> None:
    names = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_layernorm")
    assert shapes("mtp") == {
        "model.mtp_layers.0.input_proj.weight": (HIDDEN, 2 * HIDDEN),
        **layer("model.mtp_layers.0.", HIDDEN, *names),
    }


def test_draft_model() -> None:
    """All but the embedding, which is the target's; an untied head is the drafter's own."""
    assert shapes("draft_model") == {
        "model.norm.weight": (HIDDEN,),
        **layer("model.layers.0.", HIDDEN, "input_layernorm"),
        **layer("model.layers.1.", HIDDEN, "input_layernorm"),
    }
    untied = layout_of("draft_model", tie_word_embeddings=False).required
    assert untied["lm_head.weight"].shape == (VOCABULARY, HIDDEN)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_fit_pass(kind: DrafterKind) -> None:
    layout.check_tensors("w", shipped_tensors(kind), layout_of(kind))


@given(kind=st.sampled_from(KINDS), data=st.data())
def test_every_missing_and_every_foreign_tensor_is_named(kind: DrafterKind, data: st.DataObject) -> None:
    """Whichever are taken away or renamed, no other name is blamed."""
    tensors = shipped_tensors(kind)
    lost = data.draw(st.sets(st.sampled_from(sorted(tensors))), label="lost")
    renamed = data.draw(st.sets(st.sampled_from(sorted(tensors))), label="renamed") - lost
    left = {name: tensor for name, tensor in tensors.items() if name not in lost | renamed}
    left |= {f"{name}.other": tensors[name] for name in renamed}
    if not lost | renamed:
        layout.check_tensors("w", left, layout_of(kind))
        return
    wrong = "missing " + ", ".join(sorted(lost | renamed))
    if renamed:
        wrong += "; unexpected " + ", ".join(sorted(f"{name}.other" for name in renamed))
    start = f"w: tensor names must be those that the engine reads (got {wrong!r}); "
    assert refusal(kind, left).startswith(start)


@given(kind=st.sampled_from(KINDS), data=st.data())
def test_a_wrong_shape_or_type_is_named_with_what_it_must_be(kind: DrafterKind, data: st.DataObject) -> None:
    tensors = shipped_tensors(kind)
    name = data.draw(st.sampled_from(sorted(tensors)))
    right = tensors[name]
    wrong_shape = (*right.shape[:-1], right.shape[-1] + 1)
    wrong = data.draw(st.sampled_from([("F32", right.shape), (right.dtype, wrong_shape), (right.dtype, (1,))]))
    message = refusal(kind, {**tensors, name: Made(*wrong, b"")})
    assert message.startswith(
        f"w: tensor {name} must be {right.dtype} {list(right.shape)} (got '{wrong[0]} {list(wrong[1])}'); "
    )


def test_tables_that_older_exports_carry_are_no_fault() -> None:
    tensors = {**shipped_tensors("eagle"), "layers.0.self_attn.rotary_emb.inv_freq": zeros("F32", 3)}
    layout.check_tensors("w", tensors, layout_of("eagle"))


@pytest.mark.parametrize("value", [None, 0, -1, "8", 8.0, True])
def test_a_configuration_without_a_size(value: object) -> None:
    with pytest.raises(DraftproofError, match=r"^x: hidden_size must be an integer of at least 1 \(got "):
        layout.dimensions({**CONFIG, "hidden_size": value}, "x")


def test_a_configuration_of_an_unknown_type() -> None:
    with pytest.raises(DraftproofError, match=r"^x: dtype must be .* \(got 'int3'\); known: bfloat16, "):
        layout.dimensions({**CONFIG, "dtype": "int3"}, "x")


# --- ids of the draft vocabulary --------------------------------------------------------------------------------------

IdSets = st.sets(st.integers(0, VOCABULARY - 1), min_size=1).map(lambda ids: tuple(sorted(ids)))


def array(tensor: Made) -> Any:
    return np.frombuffer(tensor.data, dtype="<i8" if tensor.dtype == "I64" else np.bool_)


@given(IdSets)
def test_rising_ids_with_their_mask_pass(ids: tuple[int, ...]) -> None:
    layout.check_token_map("w", array(offsets(ids)), array(mask(ids)), VOCABULARY)
    assert layout.target_ids(array(offsets(ids))).tolist() == list(ids)
    assert layout.target_mask(array(offsets(ids)), VOCABULARY).tobytes() == mask(ids).data


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ((0, 2, 2), r"i \+ d2t\[i\] must be target ids that rise \(got '2, then 2 at 2'\)"),
        ((0, 5, 3), r"i \+ d2t\[i\] must be target ids that rise \(got '5, then 3 at 2'\)"),
        ((0, 5, 16), r"i \+ d2t\[i\] must be target ids below 16 \(got '0 to 16'\)"),
        ((-1, 5, 7), r"i \+ d2t\[i\] must be target ids below 16 \(got '-1 to 7'\)"),
    ],
)
def test_ids_that_do_not_rise_or_that_the_target_lacks(ids: tuple[int, ...], said: str) -> None:
    with pytest.raises(DraftproofError, match=f"^w: {said}; "):
        layout.check_token_map("w", array(offsets(ids)), None, VOCABULARY)


@given(IdSets, IdSets)
def test_a_mask_of_other_ids_is_refused(ids: tuple[int, ...], others: tuple[int, ...]) -> None:
    if ids != others:
        first = min(set(ids) ^ set(others))
        with pytest.raises(DraftproofError, match=rf"^w: t2d must be .*ids differ, the first is {first}'\)"):
            layout.check_token_map("w", array(offsets(ids)), array(mask(others)), VOCABULARY)


# --- files ------------------------------------------------------------------------------------------------------------

TENSORS = {"z": zeros("BF16", 2, 3), "ids": offsets(), "mask": mask(), "a": Made("BF16", (1,), b"\x01\x02")}


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    """bfloat16, bool and int64, torch-free; wide types first, so that the data are aligned."""
    write_file(tmp_path / "w.safetensors", TENSORS)
    content = (tmp_path / "w.safetensors").read_bytes()
    deserialize: Any = safetensors.deserialize
    read = dict(deserialize(content))
    assert {n: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for n, t in read.items()} == {
        name: tuple(tensor) for name, tensor in TENSORS.items()
    }
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert list(header) == ["ids", "a", "z", "mask"]


def test_tensors_of_other_files_are_joined_byte_by_byte(tmp_path: Path) -> None:
    """And the same tensors give the same file, in whatever order they come."""
    write_file(tmp_path / "1.safetensors", TENSORS)
    stored: dict[str, Stored | Made] = dict(read_header(tmp_path / "1.safetensors"))
    assert {name: tensor.read() for name, tensor in read_header(tmp_path / "1.safetensors").items()} == {
        name: tensor.data for name, tensor in TENSORS.items()
    }
    write_file(tmp_path / "2.safetensors", dict(reversed(stored.items())))
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()


def test_a_tensor_in_two_files_of_a_folder_is_refused(tmp_path: Path) -> None:
    write_file(tmp_path / "1.safetensors", {"a": TENSORS["a"], "b": TENSORS["z"]})
    write_file(tmp_path / "2.safetensors", {"c": TENSORS["a"]})
    assert sorted(read_folder(tmp_path)) == ["a", "b", "c"]
    write_file(tmp_path / "2.safetensors", {"a": TENSORS["a"]})
    with pytest.raises(DraftproofError, match=r"each tensor once \(got 'a in 1\.safetensors and 2\.safetensors'\)"):
        read_folder(tmp_path)


def content_of(folder: Path) -> bytes:
    write_file(folder / "w.safetensors", TENSORS)
    return (folder / "w.safetensors").read_bytes()


BROKEN = {
    "longer than its data": lambda content: content + b"x",
    "a header beyond the file's end": lambda content: (1 << 40).to_bytes(8, "little") + content[8:],
    "a header cut short": lambda content: (20).to_bytes(8, "little") + content[8:],
    "data of another size": lambda content: content.replace(b'"shape":[6]', b'"shape":[5]'),
    "data that overlap": lambda content: content.replace(b'"data_offsets":[48,50]', b'"data_offsets":[46,48]'),
    "an unknown type": lambda content: content.replace(b'"I64"', b'"I6x"'),
    "no JSON": lambda content: content.replace(b'{"__', b'["__'),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_a_header_that_lies_is_refused(tmp_path: Path, damage: str) -> None:
    """The file is named, with the last parts of its path alone."""
    content = content_of(tmp_path)
    broken = BROKEN[damage](content)
    assert broken != content
    (tmp_path / "w.safetensors").write_bytes(broken)
    name = f"{tmp_path.name}/w\\.safetensors"
    with pytest.raises(DraftproofError, match=rf"^weights must be a whole safetensors file \(got '{name}'\); "):
        read_header(tmp_path / "w.safetensors")


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    content = content_of(tmp_path)
    for length in range(len(content)):
        (tmp_path / "w.safetensors").write_bytes(content[:length])
        with pytest.raises(DraftproofError, match="must be a whole safetensors file"):
            read_header(tmp_path / "w.safetensors")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DraftproofError, match="must be a whole safetensors file"):
        read_header(tmp_path / "none.safetensors")
