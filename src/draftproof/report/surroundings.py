"""What the run was asked for and what it ran in, without what could name a machine or a person."""

from __future__ import annotations

import json

import msgspec

from draftproof.records import ArmLine, RunHeader, SessionLine
from draftproof.report import commands
from draftproof.report.parts import Page, Section, Table
from draftproof.report.templates import render
from draftproof.results import RunResults

IDENTIFYING = frozenset({"host", "hostname", "node", "nodename", "user", "username", "home", "cwd"})
"""Names that a later record may bring along and that no report shows."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """An arm as it was started, once or again by a later session."""

    title: str
    loads: list[float]
    """Seconds of each start."""
    facts: list[tuple[str, str]]
    """Only what is not the same on every arm."""


def plain(value: object) -> str:
    """A recorded value as text: strings as they are, lists of them with commas, the rest as JSON."""
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def arm_facts(arm: ArmLine) -> dict[str, str]:
    """Everything recorded about an arm, flat, without what could name a machine or a person."""
    environment = {name: value for name, value in arm.environment.items() if name.lower() not in IDENTIFYING}
    variables = environment.pop("variables", None)
    facts = {name: plain(value) for name, value in environment.items()}
    if isinstance(variables, dict):
        facts |= {f"${name}": plain(value) for name, value in variables.items()}
    facts |= {name: plain(value) for name, value in arm.resolved.items()}
    facts |= {f"speculative_config.{name}": plain(value) for name, value in arm.speculative_config.items()}
    return facts | {
        "target weights, SHA-256": arm.target_sha256 or "not known",
        "resolved configuration, SHA-256": arm.config_sha256,
    }


def engines(arms: list[ArmLine]) -> tuple[list[tuple[str, str]], list[Engine]]:
    """What all arms share, and each arm with the rest."""
    facts = [arm_facts(arm) for arm in arms]
    shared = {
        name: value
        for name, value in (facts[0] if facts else {}).items()
        if all(other.get(name) == value for other in facts)
    }
    found: dict[tuple[str, ...], Engine] = {}
    for arm, own in zip(arms, facts, strict=True):
        rest = {name: value for name, value in own.items() if name not in shared}
        role = "second process (A/A)" if arm.role == "aa" else arm.variant
        title = f"{arm.arm}: {role}, target {arm.target}, {arm.build} build"
        key = (title, *rest, *rest.values())
        loads = found[key].loads if key in found else []
        found[key] = Engine(title=title, loads=[*loads, arm.load_s], facts=list(rest.items()))
    return list(shared.items()), list(found.values())


def study_facts(results: RunResults, header: RunHeader) -> list[tuple[str, str]]:
    study = header.study
    lengths = f"{study.output_tokens} tokens, " + ("EOS ignored" if study.ignore_eos else "EOS ends a request")
    facts = {
        "run": results.run_id,
        "study": results.study,
        "hardware": study.hardware,
        "builds": ", ".join(header.builds),
        "batching": study.batching,
        "output length": lengths,
        "prompt length": f"at most {study.max_prompt_tokens} tokens" if study.max_prompt_tokens else "not limited",
        "sampling": ", ".join(f"{name} {value:g}" for name, value in msgspec.to_builtins(study.sampling).items()),
        "rotations": f"{study.rotations}, at most {study.max_rotations} within {study.budget_s:g} s",
        "narrow enough": f"half of the interval within {100 * study.half_width:g} % of the speedup",
        "A/A": "yes" if study.aa else "no",
        "seed": str(study.seed),
        "engine arguments": plain(study.engine),
        "source": study.source or "none",
        "overlays": ", ".join(header.overlays) or "none",
        "plan, SHA-256": header.plan_sha256,
        "schema": str(header.schema_version),
    }
    return list(facts.items())


def session_table(results: RunResults) -> Table | None:
    """The command of each session that added to the run, as it was given."""
    if not results.sessions:
        return None
    return Table(
        name="sessions",
        title="Exact commands",
        note="Of each session that added to this run, in order; home folders and tokens are taken out.",
        head=["session", "started", "draftproof", "commit", COMMAND],
        body=[
            [
                str(line.session),
                line.started,
                line.draftproof,
                commit_text(line),
                commands.shell_line(line.command) or "-",
            ]
            for line in results.sessions
        ],
        names=5,
        code=(COMMAND,),
    )


COMMAND = "command"


def commit_text(line: SessionLine) -> str:
    """Of the checkout that a session was started in."""
    if line.git_commit is None:
        return "-"
    return line.git_commit[:12] + (" (dirty)" if line.git_dirty else "")


def again_table(results: RunResults) -> Table | None:
    """What runs one cell alone again."""
    cell = commands.example(results)
    if cell is None:
        return None
    return Table(
        name="again",
        title="One cell alone",
        note="In a run of its own, with no-SD beside it and whatever else the cell needs. For another cell put its id "
        "into the brackets: target-variant-workload-bB, as the closing table has it.",
        head=["asked", COMMAND],
        body=[[asked, commands.again(results, test)] for asked, test in commands.tests_of(cell)],
        names=2,
        code=(COMMAND,),
    )


def section(page: Page) -> Section:
    shared, arms = engines(page.results.arms)
    tables = [session_table(page.results), again_table(page.results)]
    return Section(
        id="environment",
        title="Environment and exact commands",
        tables=[table for table in tables if table is not None],
        extra=render("surroundings.html.j2", study=study_facts(page.results, page.header), shared=shared, arms=arms),
    )
