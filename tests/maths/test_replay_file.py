"""The history in a file: what a resumed run finds again, and what it must not find."""

import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.r3_grpo import history_database
from algorithms.r3_grpo.entry import pack, unpack
from algorithms.r3_grpo.replay import ReplayHistory

from .strategies import entry, repeatable, seeds
from .test_replay_state import draws, play, recorded, stored

events = st.lists(st.one_of(stored, recorded), max_size=15)
settings = st.tuples(st.sampled_from([None, 1, 3]), st.booleans(), st.sampled_from([0, 2, 5]))


def history_with(chosen, path=None):
    capacity, dedupe, window = chosen
    return ReplayHistory(capacity=capacity, dedupe=dedupe, history_window=window, path=path)


@repeatable
@given(settings, events, events, events, seeds)
def test_rolled_back_to_a_mark_it_is_what_it_was(chosen, before, between, after, seed):
    history, expected = history_with(chosen), history_with(chosen)
    play(history, before)
    play(expected, before)
    first = history.mark()
    play(history, between)
    history.mark()
    play(history, after)
    history.roll_back(first)
    assert len(history) == len(expected)
    assert draws(history, seed) == draws(expected, seed)
    play(history, after)
    play(expected, after)
    assert len(history) == len(expected)
    assert draws(history, seed) == draws(expected, seed), "and goes on alike"


@repeatable
@given(settings, events, events, events, seeds)
def test_what_older_marks_needed_can_be_freed_without_harm_to_newer_ones(chosen, before, between, after, seed):
    history, expected = history_with(chosen), history_with(chosen)
    play(history, before)
    history.mark()
    play(history, between)
    second = history.mark()
    play(history, after)
    history.forget_before(second)
    history.roll_back(second)
    play(expected, before + between)
    assert draws(history, seed) == draws(expected, seed)


def test_a_removed_entry_leaves_the_file_once_no_mark_needs_it(tmp_path):
    path = tmp_path / "history.sqlite"
    history = ReplayHistory(capacity=1, path=path)
    history.add(entry(response=(1,)))
    kept = history.mark()
    history.add(entry(response=(2,)))
    newest = history.mark()

    def rows():
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return connection.execute("SELECT count(*) FROM responses").fetchone()[0]

    assert rows() == 2, "the older mark may still be asked for"
    history.forget_before(kept)
    assert rows() == 2
    history.forget_before(newest)
    assert rows() == 1


@repeatable
@given(settings, events, events, seeds)
def test_opened_again_it_is_what_it_was_when_it_was_closed(tmp_path_factory, chosen, before, after, seed):
    path = tmp_path_factory.mktemp("history") / "history.sqlite"
    history, expected = history_with(chosen, path), history_with(chosen)
    play(history, before)
    play(expected, before)
    history.close()
    reopened = history_with(chosen, path)
    for _ in range(2):
        assert len(reopened) == len(expected)
        assert draws(reopened, seed) == draws(expected, seed)
        play(reopened, after)
        play(expected, after)
    reopened.close()


def test_a_reader_does_not_stop_the_run(tmp_path, monkeypatch):
    """Somebody looks into the file while steps are made; a commit waits until they have seen it."""
    monkeypatch.setattr(history_database, "BUSY_S", 20)
    path = tmp_path / "history.sqlite"
    history = ReplayHistory(path=path)
    history.add(entry(response=(1,)))
    history.commit()
    reader = sqlite3.connect(path, check_same_thread=False)
    seen = reader.execute("SELECT count(*) FROM responses")
    history.add(entry(response=(2,)))
    threading.Timer(0.2, lambda: seen.fetchall()).start()
    history.commit()
    assert reader.execute("SELECT count(*) FROM responses").fetchone() == (2,)


CRASH = """
import os, sys
from pathlib import Path
from algorithms.r3_grpo.replay import ReplayHistory
from tests.maths.strategies import entry

history = ReplayHistory(capacity=2, path=Path(sys.argv[1]))
for step in range(3):
    history.add(entry(response=(step,), step=step))
    history.record("q", False, 0.0)
print(history.mark(), flush=True)
for step in range(3, 6):
    history.add(entry(response=(step,), step=step))
    history.record("q", True, 1.0)
    if step == 4:
        history.commit()
os._exit(9)
"""


def test_a_killed_process_leaves_a_file_that_rolls_back_to_its_last_mark(tmp_path):
    path = tmp_path / "history.sqlite"
    crashed = subprocess.run([sys.executable, "-c", CRASH, path], capture_output=True, text=True)
    assert crashed.returncode == 9, crashed.stderr
    history = ReplayHistory(capacity=2, path=path)
    assert [one.step for one in history.entries("q", correct=False)] == [3, 4], "committed after the mark"
    history.roll_back(int(crashed.stdout))
    assert [one.step for one in history.entries("q", correct=False)] == [1, 2], "what came after evicted 1 and 2"
    assert history.attempts("q") == 3 and history.mean("q", "correct") == 0.0


def test_a_file_that_is_no_history_is_refused_by_name(tmp_path):
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(ValueError, match="history.sqlite"):
        ReplayHistory(path=path)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(ValueError, match="format is 99"):
        ReplayHistory(path=other)


def test_a_history_that_ends_before_a_mark_is_refused_though_as_many_are_stored(tmp_path):
    path = tmp_path / "history.sqlite"
    history, saved = ReplayHistory(capacity=2, path=path), []
    for step in (1, 2, 3):
        for number in (0, 1):
            history.add(entry(response=(step, number), step=step))
            history.record("q", False, 0.0)
        saved.append(history.save()[1])
    history.restore({}, saved[0])
    history.close()
    with pytest.raises(ValueError, match=r"history\.sqlite: the history ends at its event \d+.*older checkpoint"):
        ReplayHistory(capacity=2, path=path).restore({}, saved[2])
    again = ReplayHistory(capacity=2, path=path)
    again.restore({}, saved[0])
    assert [one.step for one in again.entries("q", correct=False)] == [1, 1]


def test_a_response_that_rotted_on_disk_is_not_replayed(tmp_path):
    path = tmp_path / "history.sqlite"
    history = ReplayHistory(path=path)
    history.add(entry(correct=True))
    history.close()
    with sqlite3.connect(path) as connection:
        (packed,) = connection.execute("SELECT packed FROM responses").fetchone()
        connection.execute("UPDATE responses SET packed=?", (packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:],))
    reopened = ReplayHistory(path=path)
    with pytest.raises(ValueError, match="checksum"):
        reopened.entries("q", correct=True)


@repeatable
@given(st.lists(st.tuples(st.integers(0, 200_000), st.booleans(), st.floats(-50, 0, width=32)), max_size=40))
def test_sequences_survive_packing_bit_for_bit(rows):
    tokens = tuple(token for token, _, _ in rows)
    one = entry(prompt=(), response=tokens)
    mask = np.array([own for _, own, _ in rows], dtype=bool)
    logprobs = np.where(mask, np.array([value for _, _, value in rows], np.float32), np.float32(0))
    object.__setattr__(one, "loss_mask", mask)
    object.__setattr__(one, "behaviour_logprobs", logprobs)
    back = unpack(pack(one))
    np.testing.assert_array_equal(back["tokens"], one.tokens)
    np.testing.assert_array_equal(back["loss_mask"], mask)
    assert back["behaviour_logprobs"].tobytes() == logprobs.tobytes()
