"""Plants faults in a real vLLM without touching its files, to show that the regression gate catches them.

`interpreter` makes a folder with an interpreter that sees the packages of the one that runs this tool, and in which one
method of vLLM sleeps first: run a study with --sd-python OUT/bin/python. `weights` writes a catalog folder in which a
trained drafter has noise in its weights: run a study with --sd-catalog OUT. Run it with the interpreter that holds the
vLLM under test:

    python tools/planted_faults.py interpreter --fault drafter_sleep|sampler_sleep|base_sleep --ms MS OUT
    python tools/planted_faults.py weights [--drafter NAME] --scale SCALE [--seed N] OUT
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import math
import shutil
import site
import sys
import venv
from pathlib import Path

import msgspec
import planted_hook

from draftproof.building import file_sha256
from draftproof.catalog import Catalog, load_catalog
from draftproof.drafters.checks import read_shipped
from draftproof.drafters.command import entry_toml
from draftproof.errors import DraftproofError, rule, unknown

HOOK = Path(planted_hook.__file__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    interpreter = commands.add_parser("interpreter", help="an interpreter whose vLLM is slow in one place")
    interpreter.add_argument("--fault", required=True, help=", ".join(planted_hook.FAULTS))
    interpreter.add_argument("--ms", type=float, required=True, help="milliseconds that each call sleeps")
    weights = commands.add_parser("weights", help="a catalog folder with a drafter that is worse")
    weights.add_argument("--drafter", default="smollm2-135m-eagle3", help="name of a trained drafter")
    weights.add_argument("--scale", type=float, required=True, help="noise in standard deviations of each tensor")
    weights.add_argument("--seed", type=int, default=0)
    for command in (interpreter, weights):
        command.add_argument("out", type=Path, metavar="OUT", help="folder to make")
    options = parser.parse_args()
    try:
        if options.out.exists():
            raise rule("OUT", "a folder that does not exist yet", str(options.out), do="remove it or name another one")
        if options.command == "interpreter":
            make_interpreter(options.out.absolute(), options.fault, options.ms)
        else:
            make_weights(options.out, load_catalog(), options.drafter, options.scale, options.seed)
    except DraftproofError as error:
        parser.error(str(error))


def positive(field: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise rule(field, "a number above 0", value)


# -- an interpreter --------------------------------------------------------------------------------------------------


def make_interpreter(out: Path, fault: str, ms: float) -> None:
    """A virtual environment at `out` with this interpreter's packages, and `fault` of `ms` milliseconds a call."""
    if fault not in planted_hook.FAULTS:
        raise unknown("--fault", fault, planted_hook.FAULTS)
    positive("--ms", ms)
    for place in planted_hook.FAULTS[fault](ms):
        check_place(place)
    venv.EnvBuilder(symlinks=True).create(out)
    (packages,) = out.glob("lib/python*/site-packages")
    shutil.copyfile(HOOK, packages / "draftproof_planted_hook.py")
    # Not the bare folders: their own .pth files count too, such as that of a vLLM installed from a checkout.
    folders = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in package_folders())
    (packages / "draftproof_packages.pth").write_text(folders, encoding="utf-8")
    planted = f"import draftproof_planted_hook; draftproof_planted_hook.install({fault!r}, {ms!r})\n"
    (packages / "draftproof_planted_fault.pth").write_text(planted, encoding="utf-8")
    link_preloads(out / "lib")
    print(f"{fault} of {ms:g} ms a call: --sd-python {out / 'bin' / 'python'}")


def check_place(place: planted_hook.Place) -> None:
    """This interpreter's vLLM must have the method, read from its source: to import it takes seconds."""
    found = importlib.util.find_spec("vllm")
    for folder in (found.submodule_search_locations or []) if found else []:
        file = Path(folder, *place.module.split(".")[1:]).with_suffix(".py")
        if file.is_file() and defines(ast.parse(file.read_bytes()), place):
            return
    raise rule(
        "vLLM",
        f"one that defines {place}",
        f"that of {sys.prefix}" if found else "none",
        do="run this tool with the interpreter of the vLLM under test, or mend the places in tools/planted_hook.py",
    )


def defines(module: ast.Module, place: planted_hook.Place) -> bool:
    owners = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == place.owner]
    return any(isinstance(node, ast.FunctionDef) and node.name == place.method for o in owners for node in o.body)


def package_folders() -> list[str]:
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [folder for folder in folders if Path(folder).is_dir()]


def link_preloads(lib: Path) -> None:
    """Libraries to preload are looked for beside the interpreter: without them an arm would be slow by itself."""
    for name in sorted({name for hardware in load_catalog().hardware.values() for name in hardware.preload}):
        library = Path(sys.prefix, "lib", name)
        if library.exists():
            (lib / name).symlink_to(library)


# -- a drafter's weights ---------------------------------------------------------------------------------------------


def make_weights(out: Path, catalog: Catalog, name: str, scale: float, seed: int) -> None:
    """A catalog folder whose entry `name` is that drafter with noise: what used to draft with it now drafts worse.

    Each floating-point tensor gets seeded Gaussian noise of `scale` times its own standard deviation; the ids of the
    draft vocabulary stay.
    """
    positive("--scale", scale)
    entry = catalog.get("drafters", name)
    source = catalog.drafter_weights(entry)
    read_shipped(entry, source)  # a file that is not the stated one is refused
    torch = importlib.import_module("torch")
    files = importlib.import_module("safetensors.torch")
    random = torch.Generator().manual_seed(seed)
    tensors = files.load_file(source)
    for key in sorted(tensors):
        exact = tensors[key].double()
        if tensors[key].is_floating_point():
            noise = torch.randn(exact.shape, generator=random, dtype=torch.float64)
            tensors[key] = (exact + scale * exact.std() * noise).to(tensors[key].dtype)
    folder = out / "drafters"
    folder.mkdir(parents=True)
    files.save_file(tensors, folder / entry.weights)
    noisy = msgspec.structs.replace(
        entry,
        title=f"{entry.title}, with noise of {scale:g} standard deviations",
        weights_sha256=file_sha256(folder / entry.weights),
        source=f"tools/planted_faults.py weights --drafter {name} --scale {scale:g} --seed {seed}",
    )
    (folder / f"{name}.toml").write_text(entry_toml(noisy), encoding="utf-8")
    print(f"{name} with noise of {scale:g} standard deviations: --sd-catalog {out}")


if __name__ == "__main__":
    main()
