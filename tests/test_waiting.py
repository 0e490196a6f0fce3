"""What the kernel says of a process that had to wait: read from files like those of /proc, and from the real ones."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.engines import waiting
from draftproof.engines.waiting import Sums, Waits

CPU_LINE = "cpu  53812 0 10669 112524 1757 0 538 {steal} 0 0\ncpu0 1 2 3\n"


def proc(folder: Path, threads: dict[str, str], stat: str = "") -> tuple[str, str]:
    """A folder of tasks and a stat file, as /proc has them."""
    for thread, text in threads.items():
        (folder / "task" / thread).mkdir(parents=True)
        (folder / "task" / thread / "schedstat").write_text(text, encoding="ascii")
    (folder / "stat").write_text(stat, encoding="ascii")
    return str(folder / "task"), str(folder / "stat")


def test_the_second_field_of_each_thread_and_the_steal_column_are_read(tmp_path: Path) -> None:
    places = proc(tmp_path, {"10": "900 2000000000 3\n", "11": "1 7 1\n"}, CPU_LINE.format(steal=42))
    assert waiting.read_sums(*places) == Sums({"10": Waits(900, 2_000_000_000), "11": Waits(1, 7)}, 42)


def test_a_thread_that_ends_while_it_is_read_is_left_out(tmp_path: Path) -> None:
    """Its folder is listed and its file is gone, or empty."""
    tasks, stat = proc(tmp_path, {"10": "900 5 3\n", "11": "", "12": "9 9 9\n"})
    (tmp_path / "task" / "12" / "schedstat").unlink()
    assert waiting.read_sums(tasks, stat).threads == {"10": Waits(900, 5)}


@pytest.mark.parametrize(
    ("threads", "stat"),
    [
        ({}, ""),
        ({"10": "0 0 0\n", "11": "0 0 0\n"}, "cpu 1 2 3\n"),
        ({"10": "no numbers here\n"}, "cpu a b c d e f g h"),
    ],
    ids=["absent", "not counted, and an old kernel's short line", "unreadable"],
)
def test_a_kernel_that_does_not_count_is_not_one_without_waiting(
    tmp_path: Path, threads: dict[str, str], stat: str
) -> None:
    """None and not 0: nobody must take an unknown wait for a quiet machine."""
    places = proc(tmp_path, threads, stat)
    found = waiting.read_sums(*places)
    assert found == Sums(None, None)
    counted = Sums({"10": Waits(1, 5)}, 3)
    nothing = {"waited_s": None, "stolen_s": None}
    assert waiting.increase(found, counted) == waiting.increase(counted, found) == nothing


waits = st.dictionaries(
    st.sampled_from(["1", "2", "3", "4", "5"]), st.builds(Waits, st.integers(0, 10**12), st.integers(0, 10**12))
)


@given(before=waits, after=waits, old=st.integers(0, 10**9), new=st.integers(0, 10**9))
def test_an_increase_is_never_negative(before: dict[str, Waits], after: dict[str, Waits], old: int, new: int) -> None:
    """Threads that begin, end, or take over another's id, and a count that runs back."""
    found = waiting.increase(Sums(before, old), Sums(after, new))
    assert found["waited_s"] is not None
    assert found["stolen_s"] is not None
    assert min(found["waited_s"], found["stolen_s"]) >= 0


@given(
    before=waits,
    more=st.lists(st.integers(0, 10**9), min_size=5, max_size=5),
    begun=st.integers(0, 10**9),
    ran=st.integers(1, 10**9),
)
def test_an_increase_is_the_sum_over_the_working_threads_that_are_there_at_the_end(
    before: dict[str, Waits], more: list[int], begun: int, ran: int
) -> None:
    """A thread that began meanwhile adds all that it waited; each ran for as long as the others."""
    grown = dict(zip(before, more, strict=False))
    after = {name: Waits(old.ran + ran, old.waited + grown[name]) for name, old in before.items()}
    after |= {"new": Waits(ran, begun)}
    found = waiting.increase(Sums(before, 100), Sums(after, 100 + 3 * os.sysconf("SC_CLK_TCK")))
    assert found["waited_s"] == pytest.approx((sum(grown.values()) + begun) / 1e9)
    assert found["stolen_s"] == pytest.approx(3.0)
    assert waiting.increase(Sums(before, 0), Sums({"new": Waits(ran, begun)}, 0))["waited_s"] == pytest.approx(
        begun / 1e9
    )


def test_a_helper_that_hardly_runs_does_not_count() -> None:
    """An idle loop that wakes for a moment waits for nothing that anybody misses; a twentieth of the work is work."""
    before = Sums({"worker": Waits(0, 0), "loop": Waits(0, 0), "other": Waits(0, 0)}, 0)
    after = Sums({"worker": Waits(10**9, 7), "loop": Waits(10**7, 10**9), "other": Waits(5 * 10**7, 11)}, 0)
    assert waiting.increase(before, after)["waited_s"] == pytest.approx(18e-9)


@pytest.mark.skipif(
    waiting.read_sums().threads is None, reason="needs /proc/self/task/*/schedstat; found none; enable with Linux"
)
def test_threads_of_this_process_are_read_from_the_real_files() -> None:
    """This thread by its id, and one that begins; what they have waited does not fall."""
    begin, end = threading.Event(), threading.Event()
    ids: list[int] = []

    def live() -> None:
        ids.append(threading.get_native_id())
        begin.set()
        end.wait()

    thread = threading.Thread(target=live)
    thread.start()
    begin.wait()
    first, second = waiting.read_sums(), waiting.read_sums()
    end.set()
    thread.join()
    assert first.threads is not None
    assert second.threads is not None
    for name in map(str, (threading.get_native_id(), ids[0])):
        assert 0 <= first.threads[name].waited <= second.threads[name].waited
