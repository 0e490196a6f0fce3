"""The command: options, outputs and how it fails."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import draftproof.cli as cli
from draftproof.simulator.costs import load_costs
from draftproof.simulator.policies import policies_named
from draftproof.simulator.rules import CORRECTED_MENDS, MENDS, PAPER, rules_named
from draftproof.simulator.simulate import simulate
from draftproof.simulator.traces import trace_files
from tests.simulator.toys import public_traces


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A file in this project's layout and one in that of the public traces."""
    folder = tmp_path / "traces"
    folder.mkdir()
    ours, theirs = [], []
    for number in range(6):
        lengths = {"ngram": [1, 4, 2, 1, 3, 1, 1, 1 + number % 2], "eagle": [1, 2, 2, 3, 1, 2, 1, 1]}
        output = [5, 6, 7, 5, 6, 7, 5, 6]
        variants = {name: {"lengths": values, "token_ids": output} for name, values in lengths.items()}
        common = {"id": str(number), "prompt_token_ids": [1, 5, 6, 7, 2]}
        ours.append({"schema": 1, "dataset": "chat", "limit": 12, "variants": variants, **common})
        acc = {f"acc_{name}": {"acc_len": values} for name, values in lengths.items()}
        theirs.append({**common, "generated_token_ids": output, **acc})
    (folder / "a_chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ours))
    (folder / "combined_gsm8k.jsonl").write_text("".join(json.dumps(line) + "\n" for line in theirs))
    return folder


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def simulated(traces: Path, *arguments: str | Path) -> str:
    return invoke("simulate", "--traces", traces, "--hardware", "llama3.1-8b-h100", *arguments)


def test_json_csv_and_table(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "cells.json"
    text = simulated(
        traces,
        *("--policies", "fixed:1,3", "oracle", "combine", "bound", "adaptive", "router", "schedule:1=3,8=1"),
        *("--variants", "ngram", "eagle", "--batch-sizes", "1", "8", "--json", out, "--csv", tmp_path / "cells.csv"),
    )
    cells: list[dict[str, Any]] = json.loads(out.read_text())
    assert {"dataset", "variant", "policy", "k", "batch_size", "speedup", "rules"} <= set(cells[0])
    assert {cell["dataset"] for cell in cells} == {"chat", "gsm8k"}
    assert {(cell["variant"], cell["policy"]) for cell in cells if "+" in cell["variant"]} == {
        ("ngram+eagle", policy) for policy in ("combine", "bound", "router")
    }
    assert {cell["rules"] for cell in cells} == {"corrected"}
    assert {cell["k"] for cell in cells} == {1, 3, None}
    assert {cell["batch_size"] for cell in cells} == {1, 8}
    for cell in cells:
        assert cell["share_of_bound"] is None or cell["share_of_bound"] <= 1.0
    rows = list(csv.DictReader((tmp_path / "cells.csv").read_text().splitlines()))
    assert [float(row["speedup"]) for row in rows] == [cell["speedup"] for cell in cells]
    assert "of the bound" in text


def test_plot_draws_every_line(traces: Path, tmp_path: Path) -> None:
    simulated(traces, "--without", "every_request", "--requests", "4", "--plot", tmp_path / "plots")
    root = ET.parse(tmp_path / "plots" / "chat.svg").getroot()
    titles = [title.text for title in root.iterfind(".//{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "chat: simulated speedup by batch size"
    lines = [str(text).split(":")[0] for text in titles[1:]]
    # fixed k three times, oracle and bound for both; combine and bound together; the corrected bound in each panel
    alone = ["fixed k=1", "fixed k=3", "fixed k=5", "oracle", "bound", "corrected bound"]
    assert lines[:12] == [f"{variant}, {name}" for variant in ("ngram", "eagle") for name in alone]
    assert lines[12:] == [f"ngram+eagle, {name}" for name in ("combine", "bound", "corrected bound")]
    assert all(re.search(r": \d\.\d{3} at batch size 1, .* at batch size 128$", str(text)) for text in titles[1:])
    assert (tmp_path / "plots" / "gsm8k.svg").is_file()


def test_only_a_plot_needs_the_plotting_library(traces: Path) -> None:
    """`simulate` starts as fast as it computes."""
    arguments = ["--traces", str(traces), "--hardware", "llama3.1-8b-h100", "--batch-sizes", "1"]
    code = (
        "import sys; from draftproof.simulator.command import run; "
        f"run({arguments!r}, lambda line: None); print('matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_best_k_says_what_to_deploy(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "best.json"
    text = simulated(traces, "--best-k", "--max-k", "4", "--batch-sizes", "1", "4096", "--json", out)
    assert len(json.loads(out.read_text())) == 4
    (row,) = [line for line in text.splitlines() if line.startswith("chat ") and line.split()[1] == "1"]
    assert row.split()[2:4] == ["ngram", "2"]
    assert "chat: speculation is" in text


def test_mixed_batches(traces: Path) -> None:
    assert "corrected+mixed" in simulated(traces, "--with", "mixed", "--batch-sizes", "1", "4")
    with pytest.raises(Exception, match="must be simulated with copies"):
        simulated(traces, "--with", "mixed", "--policies", "bound")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--hardware", "a100"], "known: llama3.1-8b-h100"),
        (["--policies", "fixed:13"], "a_chat.jsonl:1: k must be at most the trace's limit, 12 .got 13"),
        (["--policies", "nonsense"], "known: adaptive, bound"),
        (["--variants", "mtp"], "--variants must be .*known: eagle, ngram"),
        (["--with", "magic"], "--with must be .*known: after_prefill"),
        (["--batch-sizes", "0"], "--batch-sizes must be at least 1"),
        (["--rules", "paper"], "a_chat.jsonl:6: requests must be in 1..6"),
        (["--requests", "0"], "requests must be in 1..6"),
        (["--best-k", "--max-k", "0"], "--max-k must be at least 1"),
    ],
)
def test_mistakes_end_with_status_2(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    base = ["draftproof", "simulate", "--traces", str(traces), "--hardware", "llama3.1-8b-h100"]
    monkeypatch.setattr(sys, "argv", [*base, *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(says, line), line


def test_a_data_set_twice(traces: Path) -> None:
    with pytest.raises(Exception, match="data set 'chat' is already that of"):
        simulated(traces, "--traces", traces / "a_chat.jsonl", traces / "a_chat.jsonl")


@pytest.mark.parametrize("more", [[], ["--with", "mixed"]])
def test_a_combination_needs_traces_of_one_output(traces: Path, more: list[str]) -> None:
    path = traces / "a_chat.jsonl"
    path.write_text(path.read_text().replace('"token_ids": [5', '"token_ids": [4', 1).replace("5, 6]}}", "5, 7]}}"))
    with pytest.raises(Exception, match=r"a_chat\.jsonl: no request has traces of ngram\+eagle for the same output"):
        simulated(path, "--policies", "combine", *more)
    assert "ngram" in simulated(path, "--policies", "oracle", *more)


def test_help_lists_options() -> None:
    result = CliRunner().invoke(cli.app, ["simulate", "--help"])
    assert result.exit_code == 0
    assert "--batch-sizes" in result.output
    assert "winner_pays" in result.output


def test_traces_check(traces: Path, tmp_path: Path) -> None:
    text = invoke("traces", "check", traces)
    assert "chat, 6 requests, 30 prompt tokens, k up to 12; ngram 48 tokens, eagle 48 tokens; 6 requests" in text
    with (traces / "a_chat.jsonl").open("a") as file:
        file.write('{"schema": 1, "data')
    with pytest.raises(Exception, match=r"a_chat\.jsonl:7: .*truncated"):
        invoke("traces", "check", traces / "a_chat.jsonl")


def test_explain_shows_each_mend(traces: Path, tmp_path: Path) -> None:
    paper = traces / "combined_gsm8k.jsonl"
    lines = paper.read_text().splitlines()
    paper.write_text("".join(lines[0].replace('"0"', f'"{n}"', 1) + "\n" for n in range(300)))
    out = tmp_path / "explained.json"
    text = simulated(paper, "--explain", "--batch-sizes", "1", "--json", out)
    for mend in MENDS:
        assert f"\n{mend} " in text
    rules = {cell["rules"] for cell in json.loads(out.read_text())}
    assert rules == {"paper", "corrected", "corrected+mixed", *(f"paper+{mend}" for mend in MENDS)}


def test_explain_own_traces(traces: Path) -> None:
    """Without the paper's coin and its 300 requests the table starts from what can be run."""
    text = simulated(traces, "--explain", "--policies", "fixed:2", "bound", "--batch-sizes", "2")
    assert "as published, but for trace_misses and every_request" in text
    assert "\nwinner_pays " in text


def test_names_of_rules() -> None:
    assert rules_named("paper", [], []) == PAPER
    assert rules_named("corrected", [], ["idle_free"]).name == "corrected-idle_free"
    assert rules_named("paper", list(CORRECTED_MENDS), []).name == "corrected"


def test_known_effects_on_the_public_traces() -> None:
    """Combinations at batch size 1, as the published analysis of the paper's simulator found them."""
    files = trace_files([public_traces()])
    costs = load_costs("llama3.1-8b-h100")

    def combined(policy: str, *mends: str) -> dict[str, float]:
        rules = rules_named("paper", list(mends), [])
        return {
            cell.dataset: cell.speedup
            for file in files
            for cell in simulate(file, costs, rules, policies_named([policy]), ["ngram", "eagle"], [1])
        }

    published = {"instructcoder": 4.89, "sharegpt": 3.11, "gsm8k": 2.80, "cnn": 2.97}
    winner = {"instructcoder": 4.34, "sharegpt": 2.69, "gsm8k": 2.38, "cnn": 2.58}
    every_step = {"instructcoder": 3.85, "sharegpt": 2.41, "gsm8k": 2.18, "cnn": 2.32}
    assert combined("combine") == pytest.approx(published, abs=0.0051)
    assert combined("combine", "winner_pays", "idle_free") == pytest.approx(winner, abs=0.0051)
    assert combined("combine_all") == pytest.approx(every_step, abs=0.015)  # n-gram's 0.6 % is paid as well
