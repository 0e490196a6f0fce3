"""Rules of the catalog: the shipped entries, what the loader refuses and how it says so, and overlays."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from draftproof.catalog import Catalog, load_catalog
from draftproof.errors import DraftproofError
from draftproof.gate import BY_PAPER
from draftproof.plan import build_plan
from draftproof.quantities import PLAIN, SPECULATIVE, STAGES
from draftproof.spec import Study

VARIANT = """
name = "mine"
title = "Mine"
method = "ngram"
k = 3
"""
STUDY = """
name = "mine"
title = "Mine"
hardware = "cpu"
output_tokens = 8
[[matrix]]
target = "smollm2-135m"
variants = ["no_sd", "ngram"]
workloads = ["chat"]
batch_sizes = [1]
"""
HARDWARE = """
name = "mine"
title = "Mine"
markers = ["mine"]
device = "cpu"
max_live_arms = 2
"""
WORKLOAD = """
name = "mine"
kind = "chat"
title = "Mine"
source = "file"
path = "prompts.jsonl"
"""
THRESHOLD = """
[[threshold]]
metric = "speedup"
limit = 1.0
estimator = "ratio of totals"
gating = true
source = "a test"
"""

DRAFTER = """
name = "mine"
title = "Mine"
kind = "eagle"
target = "smollm2-135m"
target_sha256 = "0"
weights = "mine.safetensors"
weights_sha256 = "1"
max_k = 8
"""
TAKES_DRAFTER = """
name = "mine"
title = "Mine"
method = "eagle"
k = 3
[drafters."smollm2-135m"]
source = "trained"
model = "mine"
"""
DERIVED = """
name = "relabelled"
title = "Relabelled"
source = "derived"
model = "relabelled"
[derived]
target = "smollm2-135m"
drafter = "mine"
weights_sha256 = "2"
"""
TAKES_MODULE = """
name = "mine"
title = "Mine"
method = "mtp"
k = 3
[drafters.relabelled]
source = "trained"
model = "mine"
"""
MODULE = DRAFTER.replace('"eagle"', '"mtp"')
HOLLOW = """
name = "hollow"
title = "Hollow"
source = "dummy"
model = "org/tiny"
[engine]
load_format = "dummy"
[dummy]
tokenizer = "smollm2-135m"
"""
SHAPE = """
name = "tiny"
model = "org/tiny"
source = "a test"
[config]
model_type = "llama"
hidden_size = 8
intermediate_size = 12
num_hidden_layers = 4
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 4
vocab_size = 50000
tie_word_embeddings = true
[loading]
architectures = ["LlamaForCausalLM"]
hidden_act = "silu"
max_position_embeddings = 64
rms_norm_eps = 1e-5
rope_theta = 10000.0
"""
TAKES_HOLLOW = """
name = "mine"
title = "Mine"
method = "draft_model"
k = 3
[drafters.hollow]
source = "dummy"
model = "org/tiny"
"""

# The experiments of arXiv 2601.11580, by (target, variant): data sets and batch sizes.
CHAT_SETS = ("gsm8k", "cnndailymail", "sharegpt", "instructcoder")
REASONING_SETS = ("aime", "gpqa_main")
FIGURE_1 = {
    "llama3.1-8b": ("no_sd", "ngram", "eagle", "eagle3"),
    "llama3-70b": ("no_sd", "ngram", "eagle", "draft_model"),
    "qwen3-8b": ("no_sd", "ngram", "eagle3", "draft_model"),
}
PAPER_STUDIES = ("paper-fig1", "paper-fig3", "paper-fig4", "paper-table1")


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    return load_catalog()


INVARIANT = """
name = "mine"
title = "Mine"
plain = "eagle3"
[forces]
batch_invariant = true
"""


def overlay(folder: Path, **files: str) -> Path:
    """A folder of entries; `kind__stem="..."` is written to ``kind/stem.toml``."""
    for name, text in files.items():
        kind, stem = name.split("__")
        path = folder / kind / f"{stem}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def refusal(*folders: Path) -> str:
    """What the loader says against these overlays."""
    with pytest.raises(DraftproofError) as caught:
        load_catalog(*folders)
    return str(caught.value)


Shape = tuple[str, str, str, int]


def shapes(catalog: Catalog, study: str) -> set[Shape]:
    return {(c.target, c.variant, c.workload, c.batch_size) for c in catalog.study_cells(study)}


def product(targets: Mapping[str, tuple[str, ...]], sets: tuple[str, ...], sizes: tuple[int, ...]) -> set[Shape]:
    return {(t, v, s, b) for t, variants in targets.items() for v in variants for s in sets for b in sizes}


# -- what is shipped -------------------------------------------------------------------------------------------------


def test_the_shipped_catalog_loads(shipped: Catalog) -> None:
    """Every kind has entries, named like their files, and each study's hardware has limits."""
    assert {"no_sd", "ngram", "draft_model", "eagle", "eagle3", "mtp"} <= set(shipped.variants)
    assert {"default", "smoke", "gate-cpu", "nightly-h100", *PAPER_STUDIES} <= set(shipped.studies)
    assert {study.hardware for study in shipped.studies.values()} <= set(shipped.thresholds)
    for kind in ("variants", "targets", "workloads", "hardware", "studies"):
        for name in getattr(shipped, kind):
            assert (shipped.folders[f"{kind}/{name}"] / f"{name}.toml").is_file()


def test_every_file_workload_is_there(shipped: Catalog) -> None:
    for workload in shipped.workloads.values():
        if workload.source == "file":
            assert shipped.workload_path(workload).is_file(), workload.name


def test_cells_of_each_study_have_unique_ids(shipped: Catalog) -> None:
    """An id names one cell: rows that overlap do not double it."""
    for name in shipped.studies:
        ids = [cell.id for cell in shipped.study_cells(name)]
        assert ids, name
        assert [cell for cell, count in Counter(ids).items() if count > 1] == [], name


def test_a_cell_of_two_rows_is_that_of_the_first(shipped: Catalog) -> None:
    """The default study claims speedups in its first row only, and these claims stay."""
    cells = {cell.id: cell for cell in shipped.study_cells("default")}
    assert [cell_id for cell_id, cell in cells.items() if cell.claims_speedup] == [
        f"smollm2-135m-{variant}-code_edit-b1" for variant in ("ngram", "eagle3", "oracle")
    ]


def test_the_default_study_holds_the_papers_five_variants(shipped: Catalog) -> None:
    methods = {shipped.variants[cell.variant].method for cell in shipped.study_cells("default")}
    assert methods >= {"none", "ngram", "draft_model", "eagle", "eagle3", "mtp"}


def test_the_study_that_proves_the_gate_has_an_interval_for_each_of_its_faults(shipped: Catalog) -> None:
    """Twelve pairs exactly, A/A beside them, several stage blocks; a head, a lookup and a baseline to slow."""
    study: Study = shipped.get("studies", "gate-cpu")
    assert (study.rotations, study.max_rotations, study.aa, study.ignore_eos) == (12, 12, True, True)
    assert study.stage_blocks >= 2
    assert product({"smollm2-135m": ("no_sd", "ngram", "eagle3")}, ("code_edit",), (1, 4)) == shapes(
        shipped, study.name
    )


def test_every_limit_names_its_source_and_hardware(shipped: Catalog) -> None:
    for name, rows in shipped.thresholds.items():
        assert name in shipped.hardware
        assert all(row.source.strip() and row.estimator.strip() for row in rows), name


def test_every_hardware_of_a_study_has_a_limit_for_ties(shipped: Catalog) -> None:
    """Outputs cannot be judged without the gap within which a difference is a tie."""
    used = {cell.hardware for name in shipped.studies for cell in shipped.study_cells(name)}
    for name in used:
        assert any(row.metric == "divergence_gap_nats" for row in shipped.thresholds[name]), name


@pytest.mark.parametrize("hardware", ["h100", "h200"])
def test_synthetic_studies_run_the_papers_pairs_without_weights(shipped: Catalog, hardware: str) -> None:
    """The paper's batch sizes; nothing of the hub; n-gram lookup, whose drafts hang on the text, is not among them."""
    variants = {
        "llama3.1-8b-dummy": ("no_sd", "eagle_synthetic", "eagle3_synthetic"),
        "qwen3-8b-dummy": ("no_sd", "eagle3_synthetic", "draft_model_synthetic"),
    }
    name = f"{hardware}-synthetic"
    assert shapes(shipped, name) == product(variants, ("grade_math",), (1, 16, 64, 128))
    assert {cell.hardware for cell in shipped.study_cells(name)} == {hardware}
    for target, names in variants.items():
        assert shipped.targets[target].source == "dummy"
        drafters = [shipped.variants[variant].drafters[target] for variant in names[1:]]
        assert {drafter.source for drafter in drafters} == {"dummy"}


def test_the_sizes_differ_in_the_target_alone(shipped: Catalog) -> None:
    """The same control, prompts and batch sizes for all three: nothing else may explain a trend."""
    cells = shipped.study_cells("sizes-cpu")
    by_target: dict[str, set[tuple[str, str, int, int]]] = {}
    for cell in cells:
        seen = by_target.setdefault(cell.target, set())
        seen.add((cell.variant, cell.workload, cell.batch_size, cell.output_tokens))
    assert len(by_target) == 3
    assert len(set(map(frozenset, by_target.values()))) == 1
    sizes = [shipped.targets[name].parameters or 0 for name in by_target]
    assert sizes == sorted(sizes)
    assert all(larger >= 2 * smaller for smaller, larger in itertools.pairwise(sizes))


# -- the paper's studies: arXiv 2601.11580 ---------------------------------------------------------------------------


def test_figure_1_has_the_papers_cells(shipped: Catalog) -> None:
    """arXiv 2601.11580, Figure 1: three targets, four data sets, batches of 1 to 128; k = 5 on InstructCoder alone."""
    five = {(t, "ngram_k5", "instructcoder", b) for t in FIGURE_1 for b in (1, 16, 64, 128)}
    assert shapes(shipped, "paper-fig1") == product(FIGURE_1, CHAT_SETS, (1, 16, 64, 128)) | five


def test_figure_3_has_the_papers_cells(shipped: Catalog) -> None:
    """arXiv 2601.11580, Figure 3: smaller batches on AIME and GPQA, and the smallest on GLM-4.5-Air."""
    qwen = {"qwen3-8b-thinking": ("no_sd", "ngram", "eagle3")}
    glm = {"glm-4.5-air": ("no_sd", "ngram", "mtp")}
    assert shapes(shipped, "paper-fig3") == (
        product(qwen, CHAT_SETS, (1, 16, 64, 128))
        | product(qwen, REASONING_SETS, (1, 8, 16))
        | product(glm, REASONING_SETS, (1, 2, 4))
    )


def test_the_study_with_a_target_that_fits_once_loads_one_engine_at_a_time(shipped: Catalog) -> None:
    """GLM-4.5-Air does not fit four H100 twice; alone it gets the share of the memory that the authors' engine had."""
    study = shipped.get("studies", "paper-fig3")
    plan = build_plan(shipped, study, shipped.study_cells("paper-fig3"))
    assert {group.target.name for group in plan.groups} == {"qwen3-8b-thinking", "glm-4.5-air"}
    for group in plan.groups:
        assert group.hardware.interleave == "restart"
        assert {spec.engine["gpu_memory_utilization"] for spec in group.arms} == {0.9}


def test_figure_4_has_the_papers_cells(shipped: Catalog) -> None:
    """arXiv 2601.11580, Figure 4: CNN/DailyMail alone, batches of 1, 64, 128 and 512."""
    assert shapes(shipped, "paper-fig4") == product(FIGURE_1, ("cnndailymail",), (1, 64, 128, 512))


def test_table_1_has_the_papers_batch_sizes(shipped: Catalog) -> None:
    """arXiv 2601.11580, Table 1: one target and one data set over the authors' six batch sizes."""
    variants = {"llama3.1-8b": ("no_sd", "ngram", "eagle", "eagle3")}
    assert shapes(shipped, "paper-table1") == product(variants, ("sharegpt",), (1, 8, 16, 32, 64, 128))


@pytest.mark.parametrize("name", PAPER_STUDIES)
def test_paper_studies_follow_the_papers_protocol(shipped: Catalog, name: str) -> None:
    """arXiv 2601.11580: B copies of one prompt, greedy, EOS on, seed 42, bfloat16, H100, no prefix caching."""
    study: Study = shipped.get("studies", name)
    assert (study.batching, study.ignore_eos, study.seed) == ("identical", False, 42)
    assert (study.sampling.temperature, study.sampling.top_p, study.sampling.top_k) == (0.0, 1.0, -1)
    assert "2601.11580" in study.source
    for cell in shipped.study_cells(name):
        assert shipped.targets[cell.target].dtype == "bfloat16"
        assert shipped.hardware[cell.hardware].engine["enable_prefix_caching"] is False
        gpus = 4 if cell.target in ("llama3-70b", "glm-4.5-air") else 1
        assert shipped.hardware[cell.hardware].tensor_parallel_size == gpus, cell.id


@pytest.mark.parametrize("name", PAPER_STUDIES)
def test_paper_studies_take_the_papers_number_of_prompts(shipped: Catalog, name: str) -> None:
    """arXiv 2601.11580: 500 requests a data set, but 90 of AIME and 448 of GPQA-Main."""
    for cell in shipped.study_cells(name):
        assert cell.num_prompts == {"aime": 90, "gpqa_main": 448}.get(cell.workload, 500), cell.id


def test_paper_studies_have_the_papers_output_limits(shipped: Catalog) -> None:
    """arXiv 2601.11580: 8,192 tokens, 32,768 with reasoning; Llama-3-70B's context of 8,192 leaves half of that."""
    for name in PAPER_STUDIES:
        for cell in shipped.study_cells(name):
            full = 32768 if name == "paper-fig3" else 8192
            assert cell.output_tokens == (4096 if cell.target == "llama3-70b" else full), cell.id


def test_variants_have_the_papers_k(shipped: Catalog) -> None:
    """arXiv 2601.11580: k = 3 for every method, bonus token not counted, and n-gram also with 5; lookup of 3 to 7."""
    used = {cell.variant for name in PAPER_STUDIES for cell in shipped.study_cells(name)} - {"no_sd"}
    assert {name: shipped.variants[name].k for name in used} == {
        **dict.fromkeys(("ngram", "draft_model", "eagle", "eagle3", "mtp"), 3),
        "ngram_k5": 5,
    }
    for name in ("ngram", "ngram_k5"):
        assert shipped.variants[name].options == {"prompt_lookup_min": 3, "prompt_lookup_max": 7}


def test_drafters_are_the_papers(shipped: Catalog) -> None:
    """arXiv 2601.11580, model pairs of the end-to-end runs."""
    pairs = {
        ("eagle", "llama3.1-8b"): "yuhuili/EAGLE-LLaMA3.1-Instruct-8B",
        ("eagle3", "llama3.1-8b"): "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        ("draft_model", "llama3-70b"): "meta-llama/Llama-3.2-1B-Instruct",
        ("eagle", "llama3-70b"): "yuhuili/EAGLE-LLaMA3-Instruct-70B",
        ("draft_model", "qwen3-8b"): "Qwen/Qwen3-0.6B",
        ("eagle3", "qwen3-8b"): "AngelSlim/Qwen3-8B_eagle3",
        ("eagle3", "qwen3-8b-thinking"): "AngelSlim/Qwen3-8B_eagle3",
        ("mtp", "glm-4.5-air"): "zai-org/GLM-4.5-Air",
    }
    assert {pair: shipped.variants[pair[0]].drafters[pair[1]].model for pair in pairs} == pairs


@pytest.mark.parametrize(
    ("workload", "dataset", "subset", "split"),
    [
        ("gsm8k", "openai/gsm8k", "main", "train"),
        ("cnndailymail", "abisee/cnn_dailymail", "3.0.0", "train"),
        ("sharegpt", "anon8231489123/ShareGPT_Vicuna_unfiltered", None, "train"),
        ("instructcoder", "likaixin/InstructCoder", None, "train"),
        ("aime", "AI-MO/aimo-validation-aime", None, "train"),
        ("gpqa_main", "Idavidrein/gpqa", "gpqa_main", "train"),
    ],
)
def test_data_sets_are_the_papers(
    shipped: Catalog, workload: str, dataset: str, subset: str | None, split: str
) -> None:
    """arXiv 2601.11580, data sets; the authors shuffle them with seed 42."""
    entry = shipped.workloads[workload]
    assert (entry.dataset, entry.subset, entry.split, entry.shuffle_seed) == (dataset, subset, split, 42)


def figure_1(catalog: Catalog) -> dict[Shape, float]:
    """The rows that hold the paper's Figure 1, by cell."""
    return {
        (*row.targets, *row.variants, *row.workloads, *row.batch_sizes): row.limit  # type: ignore[misc]
        for rows in catalog.thresholds.values()
        for row in rows
        if row.metric == BY_PAPER
    }


def test_each_point_of_figure_1_gates_its_cell_once(shipped: Catalog) -> None:
    """arXiv 2601.11580, Figure 1: 156 points, in the paper's own study alone, each with the stated tolerance."""
    drawn: dict[Shape, float] = {}
    for study in shipped.studies:
        for cell in shipped.study_cells(study):
            rows = [r for r in shipped.thresholds[cell.hardware] if r.metric == BY_PAPER and r.covers(cell)]
            if study == "paper-fig1" and cell.variant != "no_sd":
                assert [(row.gating, row.tolerance) for row in rows] == [(True, 0.10)], cell.id
                drawn[cell.target, cell.variant, cell.workload, cell.batch_size] = rows[0].limit
            else:
                assert not rows, cell.id
    assert drawn == figure_1(shipped)
    assert len(drawn) == 156
    assert sum(drawn.values()) == pytest.approx(232.864)
    assert drawn["llama3.1-8b", "ngram_k5", "instructcoder", 1] == 2.099
    assert drawn["llama3.1-8b", "eagle", "gsm8k", 128] == 1.214
    assert drawn["llama3-70b", "draft_model", "instructcoder", 1] == 2.548
    assert drawn["qwen3-8b", "draft_model", "sharegpt", 128] == 0.912
    assert drawn["qwen3-8b", "ngram", "gsm8k", 128] == 0.994


def test_floors_of_the_nightly_study_claim_less_than_the_paper_drew(shipped: Catalog) -> None:
    """Each speculative cell has one, at least a fifth below the least of its pair and batch size in Figure 1."""
    drawn = figure_1(shipped)
    for cell in shipped.study_cells("nightly-h100"):
        if cell.variant == "no_sd":
            continue
        rows = [r for r in shipped.thresholds[cell.hardware] if r.metric == "speedup" and r.gating and r.covers(cell)]
        least = min(v for (t, n, _, b), v in drawn.items() if (t, n, b) == (cell.target, cell.variant, cell.batch_size))
        assert len(rows) == 1, cell.id
        assert 0.79 * least < rows[0].floor <= 0.8 * least, cell.id
        assert rows[0].reason


def test_no_variant_of_the_embedded_target_may_be_slower_than_its_floor(shipped: Catalog) -> None:
    """Every speculative cell of the two studies of speed has one, lower in larger batches and below 1."""
    for study in ("default", "grid-cpu"):
        for cell in shipped.study_cells(study):
            rows = [r for r in shipped.thresholds["cpu"] if r.metric == "speedup" and r.gating and r.covers(cell)]
            if cell.variant == "no_sd":
                assert not rows
                continue
            floors = [row.floor for row in rows if row.claims_speedup is None]
            assert floors == [{1: 0.69, 4: 0.47, 16: 0.45, 64: 0.41}[cell.batch_size]], cell.id
            assert [row.floor for row in rows if row.claims_speedup] == [1.0] * cell.claims_speedup, cell.id


def test_every_limit_that_names_its_cells_covers_one(shipped: Catalog) -> None:
    """Names alone may exist and fit no cell together: such a row would never be met."""
    cells = [cell for study in shipped.studies for cell in shipped.study_cells(study)]
    for hardware, rows in shipped.thresholds.items():
        for row in rows:
            if row.studies or row.targets or row.variants or row.workloads or row.batch_sizes:
                assert any(row.covers(cell) for cell in cells if cell.hardware == hardware), row


def test_the_grid_goes_from_one_request_to_64(shipped: Catalog) -> None:
    """All of the paper's variants and the measured bound, at each batch size."""
    cells = shipped.study_cells("grid-cpu")
    assert {(c.variant, c.batch_size) for c in cells} == {
        (variant, size)
        for variant in ("no_sd", "ngram", "draft_model", "eagle", "eagle3", "mtp", "oracle")
        for size in (1, 4, 16, 64)
    }
    assert {c.output_tokens for c in cells if c.batch_size == 64} == {32}


# -- what is refused -------------------------------------------------------------------------------------------------

REFUSED = {
    "unknown key": (
        {"variants__mine": VARIANT + "colour = 1"},
        [
            "variants/mine.toml",
            "`colour`",
            "known: control, drafters, expected_acceptance, forces, k, method, name, options, plain, source, title",
        ],
    ),
    "unknown key of a study's row": (
        {"studies__mine": STUDY + "batch = 1"},
        ["studies/mine.toml", "`batch`", "matrix", "known: batch_sizes, claims_speedup, hardware, num_prompts, output"],
    ),
    "unknown key of a drafter": (
        {"variants__mine": VARIANT + '[drafters."smollm2-135m"]\nmodell = "x"'},
        ["variants/mine.toml", "`modell`", "known: expected_acceptance, gated, model, options, revision, source"],
    ),
    "unknown key of a limit": (
        {"thresholds__cpu": THRESHOLD + "batch = 1"},
        ["thresholds/cpu.toml", "`batch`", "known: absolute, batch_sizes, between_run_sd, claims_speedup, estimator"],
    ),
    "wrong type": (
        {"variants__mine": VARIANT.replace("k = 3", 'k = "3"')},
        ["variants/mine.toml", "`int | null`", "`str`", "$.k"],
    ),
    "wrong type in a row": (
        {"studies__mine": STUDY.replace("[1]", '["1"]')},
        ["studies/mine.toml", "`int`", "`str`", "batch_sizes"],
    ),
    "missing key": ({"variants__mine": VARIANT.replace('title = "Mine"', "")}, ["variants/mine.toml", "`title`"]),
    "a name twice in one layer": (
        {"variants__a": VARIANT, "variants__b": VARIANT},
        ["variants/b.toml", "'mine'", "already taken by variants/a.toml"],
    ),
    "a name that a file or an id could not hold": (
        {"variants__mine": VARIANT.replace('"mine"', '"My Variant"')},
        ["variants/mine.toml", "'My Variant'", "a-z"],
    ),
    "study of an unknown variant": (
        {"studies__mine": STUDY.replace('"ngram"', '"ngramm"')},
        ["studies/mine.toml", "matrix[0].variants", "'ngramm'", "known: ", "ngram", "no_sd"],
    ),
    "variant of invented examples": (
        {"studies__mine": STUDY.replace('"ngram"', '"scripted"')},
        ["studies/mine.toml", "matrix[0].variants", "'scripted'", "live_examples"],
    ),
    "examples below zero": (
        {"studies__mine": STUDY.replace("output_tokens = 8", "output_tokens = 8\nlive_examples = -1")},
        ["studies/mine.toml", "live_examples must be at least 0", "got -1"],
    ),
    "study of an unknown target": (
        {"studies__mine": STUDY.replace("smollm2-135m", "smollm3")},
        ["studies/mine.toml", "matrix[0].target", "'smollm3'", "known: ", "smollm2-135m"],
    ),
    "study of an unknown workload": (
        {"studies__mine": STUDY.replace('"chat"', '"chatt"')},
        ["studies/mine.toml", "matrix[0].workloads", "'chatt'", "known: ", "chat"],
    ),
    "study of unknown hardware": (
        {"studies__mine": STUDY.replace('"cpu"', '"abacus"')},
        ["studies/mine.toml", "hardware", "'abacus'", "known: ", "cpu"],
    ),
    "row of unknown hardware": (
        {"studies__mine": STUDY + 'hardware = "abacus"'},
        ["studies/mine.toml", "matrix[0].hardware", "'abacus'", "known: ", "cpu"],
    ),
    "drafter of an unknown target": (
        {"variants__mine": VARIANT + '[drafters.smollm3]\nmodel = "x"'},
        ["variants/mine.toml", "drafters", "'smollm3'", "known: ", "smollm2-135m"],
    ),
    "limit for an unknown study": (
        {"thresholds__cpu": THRESHOLD + 'studies = ["nightly"]'},
        ["thresholds/cpu.toml", "studies", "'nightly'", "known: ", "default"],
    ),
    "limit for an unknown target": (
        {"thresholds__cpu": THRESHOLD + 'targets = ["smollm3"]'},
        ["thresholds/cpu.toml", "targets", "'smollm3'", "known: ", "smollm2-135m"],
    ),
    "limit for an unknown variant": (
        {"thresholds__cpu": THRESHOLD + 'variants = ["ngramm"]'},
        ["thresholds/cpu.toml", "variants", "'ngramm'", "known: ", "ngram"],
    ),
    "limit for an unknown workload": (
        {"thresholds__cpu": THRESHOLD + 'workloads = ["chatt"]'},
        ["thresholds/cpu.toml", "workloads", "'chatt'", "known: ", "chat"],
    ),
    "unknown name in the second limit of a file": (
        {"thresholds__cpu": THRESHOLD + THRESHOLD + 'targets = ["smollm3"]'},
        ["thresholds/cpu.toml: threshold[1].targets", "'smollm3'", "known: ", "smollm2-135m"],
    ),
    "a limit that is no number": (
        {"thresholds__cpu": THRESHOLD.replace("= 1.0", "= nan")},
        ["thresholds/cpu.toml", "limit must be a finite number", "got nan", "threshold[0]"],
    ),
    "a limit without bound": (
        {"thresholds__cpu": THRESHOLD.replace("= 1.0", "= -inf")},
        ["thresholds/cpu.toml", "limit must be a finite number", "got -inf", "threshold[0]"],
    ),
    "negative tolerance": (
        {"thresholds__cpu": THRESHOLD + "tolerance = -0.1"},
        ["thresholds/cpu.toml", "tolerance must be a fraction from 0 to below 1", "got -0.1", "threshold[0]"],
    ),
    "a tolerance that is no number": (
        {"thresholds__cpu": THRESHOLD + "tolerance = nan"},
        ["thresholds/cpu.toml", "tolerance must be a fraction from 0 to below 1", "got nan"],
    ),
    "limits of unknown hardware": (
        {"thresholds__abacus": THRESHOLD},
        ["thresholds/abacus.toml", "'abacus'", "known: ", "cpu"],
    ),
    "k of zero": ({"variants__mine": VARIANT.replace("k = 3", "k = 0")}, ["variants/mine.toml", "k must be", "got 0"]),
    "negative k": (
        {"variants__mine": VARIANT.replace("k = 3", "k = -1")},
        ["variants/mine.toml", "k must be an integer of at least 1", "got -1"],
    ),
    "no k with speculation": (
        {"variants__mine": VARIANT.replace("k = 3", "")},
        ["variants/mine.toml", "k must be", "got None"],
    ),
    "k without speculation": (
        {"variants__mine": VARIANT.replace('"ngram"', '"none"')},
        ["variants/mine.toml", "k must be absent", "got 3"],
    ),
    "batch size of zero": (
        {"studies__mine": STUDY.replace("[1]", "[1, 0]")},
        ["studies/mine.toml", "batch_sizes must be integers of at least 1", "got 0"],
    ),
    "negative batch size": ({"studies__mine": STUDY.replace("[1]", "[-4]")}, ["studies/mine.toml", "got -4"]),
    "no batch sizes": (
        {"studies__mine": STUDY.replace("[1]", "[]")},
        ["studies/mine.toml", "batch_sizes must be a non-empty list"],
    ),
    "no variants": (
        {"studies__mine": STUDY.replace('["no_sd", "ngram"]', "[]")},
        ["studies/mine.toml", "variants must be a non-empty list"],
    ),
    "no workloads": (
        {"studies__mine": STUDY.replace('["chat"]', "[]")},
        ["studies/mine.toml", "workloads must be a non-empty list"],
    ),
    "no rows": (
        {"studies__mine": STUDY.split("[[")[0] + "matrix = []"},
        ["studies/mine.toml", "matrix must be at least one row"],
    ),
    "no output": ({"studies__mine": STUDY.replace("= 8", "= 0")}, ["studies/mine.toml", "output_tokens", "got 0"]),
    "no output in a row": ({"studies__mine": STUDY + "output_tokens = 0"}, ["studies/mine.toml", "output_tokens"]),
    "negative output in a row": (
        {"studies__mine": STUDY + "output_tokens = -5"},
        ["studies/mine.toml", "output_tokens"],
    ),
    "no prompts in a row": ({"studies__mine": STUDY + "num_prompts = 0"}, ["studies/mine.toml", "num_prompts"]),
    "no prompts in a study": (
        {"studies__mine": STUDY.replace("[[matrix]]", "num_prompts = 0\n[[matrix]]")},
        ["studies/mine.toml", "num_prompts"],
    ),
    "one rotation": (
        {"studies__mine": STUDY.replace("[[matrix]]", "rotations = 1\n[[matrix]]")},
        ["studies/mine.toml", "rotations must be at least 2", "got 1"],
    ),
    "more rotations than the most": (
        {"studies__mine": STUDY.replace("[[matrix]]", "rotations = 4\n[[matrix]]")},
        ["studies/mine.toml", "max_rotations must be at least rotations", "got 3"],
    ),
    "room for one arm": (
        {"hardware__mine": HARDWARE.replace("= 2", "= 1")},
        ["hardware/mine.toml", "max_live_arms must be at least 2", "got 1"],
    ),
    "hardware without a marker": (
        {"hardware__mine": HARDWARE.replace('["mine"]', "[]")},
        ["hardware/mine.toml", "markers"],
    ),
    "a limit without a source": (
        {"thresholds__cpu": THRESHOLD.replace('source = "a test"', "")},
        ["thresholds/cpu.toml", "`source`"],
    ),
    "a limit with a blank source": (
        {"thresholds__cpu": THRESHOLD.replace("a test", " ")},
        ["thresholds/cpu.toml", "source must be where the limit comes from"],
    ),
    "a variant without a drafter for the target": (
        {"studies__mine": STUDY.replace('"ngram"', '"mtp"')},
        [
            "studies/mine.toml",
            "'mtp' has no drafter for target 'smollm2-135m'",
            "known: glm-4.5-air",
            "variants/mtp.toml",
        ],
    ),
    "a file workload without a path": (
        {"workloads__mine": WORKLOAD.replace('path = "prompts.jsonl"', "")},
        ["workloads/mine.toml", "path must be"],
    ),
    "a kind of drafter that is not known": (
        {"drafters__mine": DRAFTER.replace('"eagle"', '"medusa"')},
        ["drafters/mine.toml", "Invalid enum value 'medusa'", "kind"],
    ),
    "a drafter that supports no k": (
        {"drafters__mine": DRAFTER.replace("= 8", "= 0")},
        ["drafters/mine.toml", "max_k must be at least 1", "got 0"],
    ),
    "weights elsewhere than beside the entry": (
        {"drafters__mine": DRAFTER.replace("mine.safetensors", "../mine.safetensors")},
        ["drafters/mine.toml", "weights must be the name of a .safetensors file beside the entry"],
    ),
    "a trained drafter of an unknown target": (
        {"drafters__mine": DRAFTER.replace("smollm2-135m", "smollm3")},
        ["drafters/mine.toml", "target", "'smollm3'", "known: ", "smollm2-135m"],
    ),
    "variant of an unknown trained drafter": (
        {"variants__mine": TAKES_DRAFTER, "drafters__other": DRAFTER.replace('"mine"', '"other"')},
        ["variants/mine.toml", 'drafters."smollm2-135m".model', "got 'mine'", "known: ", "other"],
    ),
    "a trained drafter of another method": (
        {"variants__mine": TAKES_DRAFTER, "drafters__mine": DRAFTER.replace('"eagle"', '"eagle3"')},
        ["variants/mine.toml", "must be a drafter of kind 'eagle'", "mine: eagle3"],
    ),
    "a trained drafter of another target": (
        {"variants__mine": TAKES_DRAFTER, "drafters__mine": DRAFTER.replace("smollm2-135m", "qwen3-8b")},
        ["variants/mine.toml", "must be a drafter for target 'smollm2-135m'", "mine: qwen3-8b"],
    ),
    "a trained drafter without a name": (
        {"variants__mine": TAKES_DRAFTER.replace('model = "mine"', ""), "drafters__mine": DRAFTER},
        ["variants/mine.toml", "model must be a model id, a folder or a drafter"],
    ),
    "a module for a target that is not derived from it": (
        {"variants__mine": TAKES_MODULE.replace("relabelled", '"smollm2-135m"'), "drafters__mine": MODULE},
        ["variants/mine.toml", "must be the drafter that target 'smollm2-135m' is derived from", "got 'mine'"],
    ),
    "a derived target without its table": (
        {"targets__mine": DERIVED.split("[derived]")[0]},
        ["targets/mine.toml", "derived must be given exactly when source is 'derived'", "got False"],
    ),
    "an embedded target with the table of a derived one": (
        {"targets__mine": DERIVED.replace('"derived"', '"path"')},
        ["targets/mine.toml", "derived must be given exactly when source is 'derived'", "got True"],
    ),
    "a target derived from an unknown one": (
        {"targets__mine": DERIVED.replace("smollm2-135m", "smollm3"), "drafters__mine": MODULE},
        ["targets/mine.toml", "derived.target", "'smollm3'", "known: ", "smollm2-135m"],
    ),
    "a target derived with an unknown drafter": (
        {"targets__mine": DERIVED.replace('"mine"', '"other"'), "drafters__mine": MODULE},
        ["targets/mine.toml", "derived.drafter", "'other'", "known: ", "mine"],
    ),
    "a target derived from one of the hub": (
        {
            "targets__mine": DERIVED.replace("smollm2-135m", "qwen3-8b"),
            "drafters__mine": MODULE.replace("smollm2-135m", "qwen3-8b"),
        },
        ["targets/mine.toml", "derived.target must be an embedded target or one in a folder", "got 'qwen3-8b'"],
    ),
    "a target derived with a head": (
        {"targets__mine": DERIVED, "drafters__mine": DRAFTER},
        ["targets/mine.toml", "derived.drafter must be of kind 'mtp' and for target 'smollm2-135m'", "got 'mine'"],
    ),
    "batch invariance of nothing": (
        {"variants__mine": INVARIANT.replace('plain = "eagle3"', "")},
        ["variants/mine.toml", "plain must be given exactly with forces.batch_invariant"],
    ),
    "a plain variant without batch invariance": (
        {"variants__mine": INVARIANT.replace("true", "false")},
        ["variants/mine.toml", "plain must be given exactly with forces.batch_invariant"],
    ),
    "batch invariance of an unknown variant": (
        {"variants__mine": INVARIANT.replace("eagle3", "eagle4")},
        ["variants/mine.toml", "plain", "'eagle4'", "known: ", "eagle3"],
    ),
    "batch invariance of what has it": (
        {"variants__mine": INVARIANT.replace("eagle3", "eagle3_invariant")},
        ["variants/mine.toml", "plain must be a variant that is not one itself", "got 'eagle3_invariant'"],
    ),
    "a variant without a method": (
        {"variants__mine": VARIANT.replace('method = "ngram"', "")},
        ["variants/mine.toml", "method must be vLLM's name of a method"],
    ),
    "a dummy target that vLLM would load": (
        {"targets__hollow": HOLLOW.replace('load_format = "dummy"', "")},
        ["targets/hollow.toml", "engine.load_format must be 'dummy' for a dummy target (got None)"],
    ),
    "a dummy target without its table": (
        {"targets__hollow": HOLLOW.split("[dummy]")[0]},
        ["targets/hollow.toml", "dummy must be given exactly when source is 'dummy'", "got False"],
    ),
    "a dummy target of an unknown shape": (
        {"targets__hollow": HOLLOW},
        ["targets/hollow.toml", "model must be one whose shape is known (got 'org/tiny')", "known: ", "Qwen/Qwen3-8B"],
    ),
    "a dummy target of a shape that tells its size only": (
        {"targets__hollow": HOLLOW, "shapes__tiny": SHAPE.split("[loading]")[0]},
        ["targets/hollow.toml", "shape 'tiny': loading must be given architectures, ", "complete shapes/tiny.toml"],
    ),
    "a dummy target without layers": (
        {"targets__hollow": HOLLOW + "layers = 0", "shapes__tiny": SHAPE},
        ["targets/hollow.toml", "dummy.layers must be from 1 to the 4 of shape 'tiny' (got 0)"],
    ),
    "a dummy target with more layers than its shape": (
        {"targets__hollow": HOLLOW + "layers = 5", "shapes__tiny": SHAPE},
        ["targets/hollow.toml", "dummy.layers must be from 1 to the 4 of shape 'tiny' (got 5)"],
    ),
    "a dummy target with the tokenizer of an unknown one": (
        {"targets__hollow": HOLLOW.replace("smollm2-135m", "smollm3"), "shapes__tiny": SHAPE},
        ["targets/hollow.toml", "dummy.tokenizer", "'smollm3'", "known: ", "smollm2-135m"],
    ),
    "a dummy target with the tokenizer of a dummy one": (
        {"targets__hollow": HOLLOW.replace('"smollm2-135m"', '"hollow"'), "shapes__tiny": SHAPE},
        ["targets/hollow.toml", "dummy.tokenizer must be a target with a tokenizer of its own", "got 'hollow'"],
    ),
    "a dummy drafter for a target with weights": (
        {"variants__mine": TAKES_HOLLOW.replace("hollow", '"smollm2-135m"'), "shapes__tiny": SHAPE},
        ["variants/mine.toml", "source must be another than 'dummy' for a target with weights ('smollm2-135m')"],
    ),
    "a dummy drafter of an unknown shape": (
        {
            "variants__mine": TAKES_HOLLOW.replace("org/tiny", "org/other"),
            "targets__hollow": HOLLOW,
            "shapes__tiny": SHAPE,
        },
        ["variants/mine.toml", "model must be one whose shape is known (got 'org/other')", "known: ", "org/tiny"],
    ),
    "no TOML": ({"variants__mine": "name = "}, ["variants/mine.toml", "not valid TOML"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_message_names_the_file_the_key_and_what_is_known(tmp_path: Path, case: str) -> None:
    """`<field> must be <rule> (got ...); known: ...`, behind the entry's own file."""
    files, said = REFUSED[case]
    message = refusal(overlay(tmp_path, **files))
    assert message.startswith(said[0]), message
    for part in said[1:]:
        assert part in message


def test_a_file_that_is_no_text_is_not_valid_toml(tmp_path: Path) -> None:
    (tmp_path / "variants").mkdir()
    (tmp_path / "variants" / "mine.toml").write_bytes(b'name = "\xff"')
    assert refusal(tmp_path).startswith("variants/mine.toml: not valid TOML")


def test_messages_do_not_show_where_the_folder_lies(tmp_path: Path) -> None:
    """A report may be handed on: file names, no home folder."""
    assert str(tmp_path) not in refusal(overlay(tmp_path, variants__mine=VARIANT + "colour = 1"))


def test_an_unknown_name_is_answered_with_the_known_ones(shipped: Catalog) -> None:
    with pytest.raises(DraftproofError, match=r"study must be .*'defualt'.*known: .*default.*--sd-catalog"):
        shipped.get("studies", "defualt")


def test_trained_drafters_and_derived_targets_refer_to_each_other(tmp_path: Path) -> None:
    """A head for the target that it was trained on, and a module for the target that is derived from it."""
    head = overlay(tmp_path / "a", variants__mine=TAKES_DRAFTER, drafters__mine=DRAFTER)
    found = load_catalog(head)
    assert found.drafter_weights(found.drafters["mine"]) == tmp_path / "a" / "drafters" / "mine.safetensors"
    module = overlay(tmp_path / "b", variants__mine=TAKES_MODULE, drafters__mine=MODULE, targets__mine=DERIVED)
    assert load_catalog(module).targets["relabelled"].weights_sha256 == "2"


def test_a_dummy_target_and_its_drafter_refer_to_shapes(tmp_path: Path) -> None:
    """The clean case: a shape that an engine can be built from, and a tokenizer of another target."""
    folder = overlay(tmp_path, targets__hollow=HOLLOW, shapes__tiny=SHAPE, variants__mine=TAKES_HOLLOW)
    found = load_catalog(folder)
    assert found.needed_shape("org/tiny").name == "tiny"
    assert found.variants["mine"].drafters["hollow"].source == "dummy"


# -- overlays --------------------------------------------------------------------------------------------------------


def test_an_overlay_adds_an_entry(tmp_path: Path, shipped: Catalog) -> None:
    found = load_catalog(overlay(tmp_path, variants__mine=VARIANT, studies__mine=STUDY))
    assert set(found.variants) == {*shipped.variants, "mine"}
    assert [cell.id for cell in found.study_cells("mine")] == [
        "smollm2-135m-no_sd-chat-b1",
        "smollm2-135m-ngram-chat-b1",
    ]


def test_an_overlay_replaces_an_entry_of_the_same_name(tmp_path: Path, shipped: Catalog) -> None:
    """Whatever its file is called; the other entries stay."""
    found = load_catalog(
        overlay(tmp_path, variants__other=VARIANT.replace('"mine"', '"ngram"').replace("k = 3", "k = 7"))
    )
    assert found.variants["ngram"].k == 7
    assert found.variants["ngram_invariant"].k == 7, "it is the same but for its kernels"
    mine = {"ngram", "ngram_invariant"}
    assert {n: v for n, v in found.variants.items() if n not in mine} == {
        n: v for n, v in shipped.variants.items() if n not in mine
    }


def test_the_last_overlay_wins(tmp_path: Path) -> None:
    first = overlay(tmp_path / "a", variants__mine=VARIANT)
    second = overlay(tmp_path / "b", variants__mine=VARIANT.replace("k = 3", "k = 5"))
    assert load_catalog(first, second).variants["mine"].k == 5
    assert load_catalog(second, first).variants["mine"].k == 3


def test_limits_of_an_overlay_come_after_the_shipped_ones(tmp_path: Path, shipped: Catalog) -> None:
    found = load_catalog(overlay(tmp_path, thresholds__cpu=THRESHOLD))
    assert found.thresholds["cpu"][:-1] == shipped.thresholds["cpu"]
    assert found.thresholds["cpu"][-1].source == "a test"


def test_a_relative_workload_path_lies_beside_the_overlays_file(tmp_path: Path, shipped: Catalog) -> None:
    found = load_catalog(overlay(tmp_path, workloads__mine=WORKLOAD))
    assert found.workload_path(found.workloads["mine"]) == tmp_path / "workloads" / "prompts.jsonl"
    chat = shipped.workloads["chat"]
    assert found.workload_path(chat) == shipped.workload_path(chat)


def test_a_replaced_workload_moves_to_the_overlay(tmp_path: Path) -> None:
    """Its path is the overlay's, not that of the entry it replaces."""
    found = load_catalog(overlay(tmp_path, workloads__mine=WORKLOAD.replace('"mine"', '"chat"')))
    assert found.workload_path(found.workloads["chat"]) == tmp_path / "workloads" / "prompts.jsonl"


def test_an_overlay_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert "--sd-catalog must be a folder" in refusal(tmp_path / "none")
    (tmp_path / "file").write_text("")
    assert "--sd-catalog must be a folder" in refusal(tmp_path / "file")


@pytest.mark.parametrize("inner", ["", "variant", "variants"])
def test_an_overlay_without_entries_is_an_error(tmp_path: Path, inner: str) -> None:
    """An empty folder, a mistyped kind, a kind without files: else the user's entries would be missed in silence."""
    (tmp_path / "mine" / inner).mkdir(parents=True)
    message = refusal(tmp_path / "mine")
    assert "'mine' holds no entries" in message
    assert "known folders: variants, targets, workloads, hardware, studies, drafters, shapes, thresholds" in message


def test_loading_twice_gives_the_same(tmp_path: Path, shipped: Catalog) -> None:
    """No state is kept between loads: an overlay of one does not show in the next."""
    load_catalog(overlay(tmp_path, variants__mine=VARIANT))
    assert load_catalog() == shipped


@pytest.mark.parametrize("hardware", sorted(load_catalog().hardware))
def test_every_hardware_has_what_a_comparison_is_judged_by(hardware: str) -> None:
    gating = {row.metric for row in load_catalog().thresholds[hardware] if row.gating}
    assert {*(quantity.metric for quantity in (*SPECULATIVE, *STAGES, *PLAIN)), "pairs", "waiting_share"} <= gating
