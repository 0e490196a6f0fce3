"""Rules of the section on bounds: shares of the oracle's gain, simulated policies, and what to run for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draftproof.analysis.gainshare import GainShare
from draftproof.bounds import Bounds, Predicted, Reached, Simulated, read_predicted, read_simulated
from draftproof.report.bound import LEAST_SHARE, predicted_table, reached_table, section, simulated_table
from draftproof.report.drawing import look
from draftproof.report.markdown import render_markdown
from draftproof.report.parts import Page as Asked
from draftproof.report.parts import Table
from draftproof.results import RunResults
from draftproof.simulator.simulate import Cell
from draftproof.simulator.validation import Prediction
from tests.figures import axes_of, marked, row_names, ys
from tests.reporting import HOSTILE, arm, cell, header, page, ratio, reference, run


def reached(variant: str = "ngram", batch_size: int = 1, value: float | None = 0.4, **changes: Any) -> Reached:
    share = None if value is None else GainShare(value=value, low=value - 0.1, high=value + 0.1, clusters=3)
    made = Reached(
        target="tiny",
        workload="chat",
        batch_size=batch_size,
        build="new",
        variant=variant,
        k=5,
        speedup=ratio(1.4, 1.3, 1.5) if variant else None,
        oracle="oracle",
        oracle_k=3,
        oracle_speedup=ratio(2.0, 1.9, 2.1),
        share=share,
    )
    return msgspec.structs.replace(made, **changes)


def simulated(
    policy: str = "fixed", k: int | None = 3, variant: str = "ngram", dataset: str = "chat", top: float = 1.6
) -> Iterator[Cell]:
    for place, size in enumerate((1, 4, 16)):
        yield Cell(
            dataset=dataset,
            variant=variant,
            policy=policy,
            k=k,
            batch_size=size,
            speedup=top - 0.1 * place,
            rules="corrected",
            requests=10,
            tokens_per_step=2.0,
            share_of_bound=0.5,
        )


POLICIES = [
    *simulated("fixed", 1),
    *simulated("fixed", 3),
    *simulated("oracle", None, top=2.2),
    *simulated("bound", None, top=2.4),
    *simulated("combine", None, variant="ngram+eagle", top=2.6),
    *simulated("bound", None, variant="ngram+eagle", top=2.8),
]
ARMS = [arm("no_sd"), arm("ngram"), arm("eagle"), arm("oracle", control="oracle")]
CELLS = [
    reference(),
    *[cell("ngram", "chat", size, speedup=ratio(1.4, 1.3, 1.5)) for size in (1, 4, 16)],
    *[cell("oracle", "chat", size, speedup=ratio(2.0, 1.9, 2.1)) for size in (1, 4, 16)],
]
ROWS = [reached("ngram", 1), reached("ngram", 4, 0.3), reached("eagle", 1, -0.2), reached("eagle", 4, None)]


def with_bounds(**changes: Any) -> RunResults:
    return run(*CELLS, arms=ARMS, bounds=msgspec.structs.replace(Bounds(reached=ROWS), **changes))


def of(table: Table | None) -> Table:
    assert table is not None
    return table


# -- the measured oracle -----------------------------------------------------------------------------------------------


def test_every_variant_stands_beside_the_oracle_with_its_share() -> None:
    table = of(reached_table(with_bounds(without=["other"])))
    assert table.body[0] == [
        *["ngram", "chat", "1", "5", "1.40x [1.30, 1.50]", "oracle (k = 3)", "2.00x [1.90, 2.10]", "0.40 [0.30, 0.50]"]
    ]
    assert table.body[3][-1] == "-"
    assert "No oracle ran on other." in table.note
    (figure,) = table.figures
    assert figure.title == "chat, oracle's k = 3"
    axes = axes_of(figure)
    ours = look("ngram")
    (line,) = [line for line in marked(axes) if line.get_color() == ours.colour]
    assert (line.get_marker(), ys(line)) == (ours.marker, [0.4, 0.3])
    low, high = axes.get_ylim()
    assert low < -0.2
    assert high == 1.0
    assert "ngram 0.40 [0.30, 0.50] at 1 and 0.30 [0.20, 0.40] at 4; eagle -0.20" in figure.description
    assert "0.40 [0.30, 0.50]" in page(with_bounds()).text
    assert "## Bound" in render_markdown(with_bounds(), header())


def test_each_k_of_the_oracle_has_a_panel() -> None:
    rows = [reached("ngram", size, oracle=f"oracle_k{k}", oracle_k=k) for k in (1, 7) for size in (1, 4)]
    assert [figure.title for figure in of(reached_table(with_bounds(reached=rows))).figures] == [
        "chat, oracle's k = 1",
        "chat, oracle's k = 7",
    ]


@pytest.mark.parametrize(("value", "low", "high"), [(0.4, 0.0, 1.0), (1.3, 0.0, 1.365), (-7.0, LEAST_SHARE, 1.0)])
def test_the_axis_of_shares_runs_from_0_to_1_and_further_where_it_must(value: float, low: float, high: float) -> None:
    table = of(reached_table(with_bounds(reached=[reached("ngram", size, value) for size in (1, 4)])))
    assert axes_of(table.figures[0]).get_ylim() == pytest.approx((low, high))
    assert ("is not drawn" in table.legend) == (value < LEAST_SHARE)


def test_one_batch_size_has_rows_and_an_oracle_alone_a_row_without_a_figure() -> None:
    table = of(reached_table(with_bounds(reached=[reached("ngram"), reached("eagle")])))
    assert row_names(axes_of(table.figures[0])) == ["ngram", "eagle"]
    alone = of(reached_table(with_bounds(reached=[reached("", 1, None, k=0)])))
    assert alone.body[0][:5] == ["-", "chat", "1", "-", "-"]
    assert alone.figures == []
    assert alone.legend == ""


def test_without_oracle_and_simulation_there_is_no_section() -> None:
    assert section(Asked(run(*CELLS), header())) is None
    assert 'id="bound"' not in page(run()).text


# -- simulations -------------------------------------------------------------------------------------------------------


def test_where_nothing_is_simulated_the_commands_are_told() -> None:
    table = of(simulated_table(with_bounds()))
    assert table.note.startswith("Nothing simulated is in the run's folder")
    commands = [row[1] for row in table.body]
    assert commands == [
        "draftproof calibrate RUN",
        "draftproof traces ngram RUN",
        "draftproof simulate --traces RUN/traces-tiny-chat.jsonl --hardware RUN/costs-tiny.toml --variants ngram "
        "--batch-sizes 1 4 16 --json RUN/simulated-tiny.json",
        "draftproof report RUN",
    ]
    assert table.figures == []


def test_learned_drafters_are_traced_by_an_engine() -> None:
    results = run(*CELLS, cell("eagle"), arms=ARMS, bounds=Bounds(reached=ROWS))
    commands = [row[1] for row in of(simulated_table(results)).body]
    assert "draftproof trace ngram,eagle chat --target tiny --hardware cpu --out RUN/traces-tiny-chat.jsonl" in commands


def test_controls_alone_are_not_simulated() -> None:
    results = run(*[c for c in CELLS if c.cell.variant != "ngram"], arms=ARMS, bounds=Bounds(reached=ROWS))
    assert simulated_table(results) is None


def test_policies_are_drawn_beside_what_was_measured() -> None:
    results = with_bounds(simulated=[Simulated(target="tiny", cells=POLICIES)])
    table = of(simulated_table(results))
    one, together = table.figures
    assert (one.title, together.title) == ("ngram, chat", "ngram+eagle, chat")
    axes = axes_of(one)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "fixed k=1",
        "fixed k=3",
        "oracle",
        "bound",
        "measured",
        "measured oracle",
    ]
    ours = look("ngram")
    measured = [line for line in axes.lines if line.get_label() == "measured"]
    assert ys(measured[0]) == [1.4] * 3
    assert measured[0].get_color() == ours.colour
    assert ["ngram", "chat", "oracle", "2.20x (50 %)", "2.10x (50 %)", "2.00x (50 %)"] in table.body
    assert ["ngram", "chat", "bound", "2.40x", "2.30x", "2.20x"] in table.body
    assert ["ngram", "chat", "measured", *["1.40x [1.30, 1.50]"] * 3] in table.body
    assert ["ngram", "chat", "measured oracle", *["2.00x [1.90, 2.10]"] * 3] in table.body
    assert "rules corrected" in table.note
    assert "bound 2.40x at 1 and 2.20x at 16" in one.description
    page(results)


def test_a_target_without_a_simulation_is_named() -> None:
    other = cell("ngram", target="other")
    results = run(*CELLS, other, arms=ARMS, bounds=Bounds(simulated=[Simulated(target="tiny", cells=POLICIES)]))
    assert "Not simulated: other." in of(simulated_table(results)).note


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_stays_text(text: str) -> None:
    cells = [*simulated("fixed", 1, text, text), *simulated(text, None, "ngram", "chat")]
    rows = [reached(text, size, workload=text, oracle=text) for size in (1, 4)]
    page(with_bounds(reached=rows, simulated=[Simulated(target="tiny", cells=cells)], notes=[text]))


# -- the files ---------------------------------------------------------------------------------------------------------


def test_a_targets_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "simulated-tiny.json").write_bytes(msgspec.json.encode(POLICIES))
    found, notes = read_simulated(tmp_path, ["tiny", "other"])
    assert found == [Simulated(target="tiny", cells=POLICIES)]
    assert notes == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[", "simulated-tiny.json is left out: Input data was truncated"),
        (b"\xff\xfe", "simulated-tiny.json is left out"),
        (b'[{"dataset": 3}]', "simulated-tiny.json is left out: Expected `str`"),
        (msgspec.json.encode(list(simulated(top=-1.0))), "simulated-tiny.json: 3 cells without a positive speedup"),
        (msgspec.json.encode(list(simulated(top=1e200))), "simulated-tiny.json: 3 cells without"),
    ],
)
def test_a_wrong_file_costs_its_figures_and_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "simulated-tiny.json").write_bytes(content)
    found, notes = read_simulated(tmp_path, ["tiny"])
    assert found == []
    (note,) = notes
    assert says in note
    assert note + "." in of(simulated_table(with_bounds(notes=notes))).note


def test_a_target_named_like_a_path_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "simulated-").mkdir()
    (tmp_path / "tiny.json").write_bytes(msgspec.json.encode(POLICIES))
    assert read_simulated(tmp_path, ["/../tiny"]) == ([], [])


# -- predictions -------------------------------------------------------------------------------------------------------

PREDICTIONS = [
    Prediction(
        workload="chat", batch_size=1, variant="ngram", measured=1.5, low=1.4, high=1.6, predicted=1.35, held_out=1.2
    ),
    Prediction(
        workload="chat", batch_size=4, variant="eagle", measured=0.8, low=None, high=None, predicted=0.84, held_out=None
    ),
]


def test_predictions_stand_beside_what_was_measured_with_their_errors(tmp_path: Path) -> None:
    (tmp_path / "predicted-tiny.json").write_bytes(msgspec.json.encode(PREDICTIONS))
    found, notes = read_predicted(tmp_path, ["tiny"])
    assert (found, notes) == ([Predicted(target="tiny", cells=PREDICTIONS)], [])
    results = with_bounds(predicted=found)
    table = of(predicted_table(results))
    assert table.body == [
        ["ngram", "chat", "1", "1.50x [1.40, 1.60]", "1.35x", "-10.0 %", "1.20x", "-20.0 %"],
        ["eagle", "chat", "4", "0.80x", "0.84x", "+5.0 %", "-", "-"],
    ]
    assert "Median absolute error 7.5 % over 2 cells, held out 20.0 % over 1." in table.note
    assert "Predicted from step times" in page(results).text
    assert predicted_table(with_bounds()) is None


def test_a_prediction_without_a_speedup_is_left_out_and_told(tmp_path: Path) -> None:
    broken = msgspec.structs.replace(PREDICTIONS[0], predicted=0.0)
    (tmp_path / "predicted-tiny.json").write_bytes(msgspec.json.encode([broken]))
    found, (note,) = read_predicted(tmp_path, ["tiny"])
    assert found == []
    assert note == "predicted-tiny.json: 1 cells without a positive speedup are left out"
