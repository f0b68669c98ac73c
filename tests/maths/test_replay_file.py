"""The history in a file: what a resumed run finds again, and what it must not find."""

import sqlite3
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.history import database as history_database
from algorithms.history.entry import DamagedEntryError, pack, row_of, unpack
from algorithms.history.store import ReplayHistory

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
    first = history.savepoint()
    play(history, between)
    history.savepoint()
    play(history, after)
    history.rollback(first)
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
    history.savepoint()
    play(history, between)
    second = history.savepoint()
    play(history, after)
    history.prune(second)
    history.rollback(second)
    play(expected, before + between)
    assert draws(history, seed) == draws(expected, seed)


def test_a_removed_entry_leaves_the_file_once_no_mark_needs_it(tmp_path):
    path = tmp_path / "history.sqlite"
    history = ReplayHistory(capacity=1, path=path)
    history.add(entry(response=(1,)))
    kept = history.savepoint()
    history.add(entry(response=(2,)))
    newest = history.savepoint()

    def rows():
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return connection.execute("SELECT count(*) FROM responses").fetchone()[0]

    assert rows() == 2, "the older mark may still be asked for"
    history.prune(kept)
    assert rows() == 2
    history.prune(newest)
    assert rows() == 1


def test_a_capacity_that_was_lowered_leaves_the_place_of_a_checkpoint(tmp_path):
    path = tmp_path / "history.sqlite"
    history = ReplayHistory(capacity=None, dedupe=True, path=path)
    for token in (1, 2, 3, 4):
        history.add(entry(response=(token,)))
    history.savepoint()
    history.close()
    smaller = ReplayHistory(capacity=2, dedupe=True, path=path)
    smaller.add(entry(response=(1,)))  # repeats the oldest, takes its age, and is itself too many
    arrays, state = smaller.save()
    smaller.prune(state["savepoint"])
    held = [int(one.response_tokens[0]) for one in smaller.entries("q", correct=False)]
    smaller.close()
    reopened = ReplayHistory(capacity=2, dedupe=True, path=path)
    reopened.restore(arrays, state)
    assert [int(one.response_tokens[0]) for one in reopened.entries("q", correct=False)] == held
    reopened.close()


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
from algorithms.history.store import ReplayHistory
from tests.maths.strategies import entry

history = ReplayHistory(capacity=2, path=Path(sys.argv[1]))
for step in range(3):
    history.add(entry(response=(step,), step=step))
    history.record("q", False, 0.0)
print(history.savepoint(), flush=True)
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
    history.rollback(int(crashed.stdout))
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


ROT = {
    "a token": "packed=CAST(substr(packed, 1, 8) || x'63' || substr(packed, 10) AS BLOB)",
    "the text": "text=x'ff'",
    "the reward": "reward=0.5",
    "no number": "reward=x'37'",
    "the outcome": "correct=NOT correct",
    "the context": "context='reflection'",
    "no context": "context=x'ff'",
    "the step": "step=step + 1",
}


def drawn(history, *, correct):
    return history.sample_opposite_outcomes(
        "q", correct_group=not correct, k=5, contexts="any", context="plain", rng=np.random.default_rng(0)
    )


def rotted(path, change):
    """A history of two right and two wrong answers, the older one of each changed behind its back."""
    history = ReplayHistory(path=path)
    for correct in (True, False):
        for step in (1, 2):
            history.add(entry(response=(step,), correct=correct, step=step, text="so"))
    history.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE responses SET {change} WHERE step=1")
    return ReplayHistory(path=path)


@pytest.mark.parametrize("change", ROT.values(), ids=ROT)
def test_what_rotted_on_disk_is_left_out_counted_once_and_the_rest_is_drawn(tmp_path, change):
    history = rotted(tmp_path / "history.sqlite", change)
    for _ in range(2):
        assert [one.step for correct in (True, False) for one in drawn(history, correct=correct)] == [2, 2]
    quoted = [history.sample_failure("q", np.random.default_rng(seed)) for seed in range(20)]
    assert {one.step if one else None for one in quoted} == {2, None}
    assert history.count_damaged() == 2
    assert history.count_damaged() == 0, "since it was asked last"
    with pytest.raises(DamagedEntryError):
        history.entries("q", correct=True)


def test_what_is_known_to_be_damaged_changes_no_draw(tmp_path):
    """A resumed process knows less than the one that was killed."""
    knowing = rotted(tmp_path / "history.sqlite", ROT["a token"])
    drawn(knowing, correct=False)
    fresh = ReplayHistory(path=tmp_path / "history.sqlite")
    for seed in range(20):
        (one, other) = (history.sample_failure("q", np.random.default_rng(seed)) for history in (knowing, fresh))
        assert (one and one.step) == (other and other.step)


def test_a_torn_page_costs_its_response_alone(tmp_path):
    path = tmp_path / "history.sqlite"
    history = ReplayHistory(path=path)
    for text in ("x" * 100_000, "y" * 100_000):
        history.add(entry(response=(len(text), ord(text[0])), text=text))
    history.close()
    content = bytearray(path.read_bytes())
    page = next(at for at in range(0, len(content), 16384) if content[at + 4 : at + 16384] == b"x" * 16380)
    content[page : page + 4] = bytes(4)  # where the text goes on
    path.write_bytes(content)
    torn = ReplayHistory(path=path)
    assert [one.text[0] for one in drawn(torn, correct=False)] == ["y"]
    assert torn.count_damaged() == 1


def test_what_was_stored_when_the_checksum_was_of_the_sequences_alone_is_still_read(tmp_path):
    path = tmp_path / "history.sqlite"
    history = ReplayHistory(path=path)
    history.add(entry(text="so"))
    history.close()
    with sqlite3.connect(path) as connection:
        (packed,) = connection.execute("SELECT packed FROM responses").fetchone()
        old = packed[:-4] + zlib.crc32(packed[:-4]).to_bytes(4, "little")
        connection.execute("UPDATE responses SET packed=?", (old,))
    (one,) = ReplayHistory(path=path).entries("q", correct=False)
    assert one.text == "so"


def test_a_zero_without_its_sign_is_no_damage(tmp_path):
    history = ReplayHistory(path=tmp_path / "history.sqlite")
    one = entry()
    object.__setattr__(one, "reward", -0.0)
    history.add(one)
    assert len(drawn(history, correct=False)) == 1


@repeatable
@given(st.lists(st.tuples(st.integers(0, 200_000), st.booleans(), st.floats(-50, 0, width=32)), max_size=40))
def test_sequences_survive_packing_bit_for_bit(rows):
    tokens = tuple(token for token, _, _ in rows)
    one = entry(prompt=(), response=tokens)
    mask = np.array([own for _, own, _ in rows], dtype=bool)
    logprobs = np.array([value for _, own, value in rows if own], np.float32)
    object.__setattr__(one, "loss_mask", mask)
    object.__setattr__(one, "old_logprobs", logprobs)
    back = unpack(pack(one), row_of(one))
    np.testing.assert_array_equal(back["tokens"], one.tokens)
    np.testing.assert_array_equal(back["loss_mask"], mask)
    assert back["old_logprobs"].tobytes() == logprobs.tobytes()
