"""The history is written beside the weight transfer: nobody reads it half written, and no error is lost."""

import threading

import numpy as np
import pytest

from algorithms.grpo.algorithm import write_history
from algorithms.history.store import ReplayHistory

from .conftest import batch_of, plain_group, sample, stored


def a_batch():
    return batch_of(plain_group(sample([10], True), sample([11])))


def test_whoever_reads_waits_for_the_write(stub):
    history, go = stub().history, threading.Event()

    def write():
        go.wait()
        write_history(history, a_batch())

    history.write_in_background(write)
    seen = []
    reader = threading.Thread(target=lambda: seen.append((len(history), history.attempts("q"))))
    reader.start()
    reader.join(0.05)
    assert not seen, "it read while the step was being written"
    go.set()
    reader.join()
    assert seen == [(2, 2)]


def test_the_stage_returns_while_it_is_written_and_the_metrics_are_of_what_was(stub, monkeypatch):
    algorithm, go = stub(), threading.Event()
    add = ReplayHistory.add
    monkeypatch.setattr(ReplayHistory, "add", lambda self, entry: go.wait() and add(self, entry))
    batch = a_batch()
    algorithm.update_history(batch)  # would not come back otherwise
    go.set()
    assert len(stored(algorithm.history)) == 2


USES = [len, ReplayHistory.wait, ReplayHistory.savepoint, lambda history: history.attempts("q")]


def half_a_step(history):
    """A write that fails behind its first response, as on a full disk, which ends SQLite's transaction too."""

    def write():
        write_history(history, a_batch())
        history._opened._connection.execute("ROLLBACK")
        raise OSError("no space left")

    history.write_in_background(write)


def test_the_error_of_a_write_reaches_all_who_come_next_until_the_history_is_rolled_back():
    history = ReplayHistory()
    write_history(history, a_batch())
    mark = history.savepoint()
    half_a_step(history)
    for use in (*USES, half_a_step):
        with pytest.raises(OSError, match="no space left"):
            use(history)
    history.rollback(mark)
    assert (len(history), history.attempts("q")) == (2, 2)
    write_history(history, a_batch())
    assert history.attempts("q") == 4
    half_a_step(history)
    history.close()


def test_a_query_that_a_full_disk_took_back_is_not_confused_with_the_next(tmp_path):
    history = ReplayHistory(path=tmp_path / "history.sqlite")
    mark = history.savepoint()
    history.record("first", True, 1.0)
    history._opened._connection.execute("ROLLBACK")
    history.rollback(mark)
    history.record("first", True, 1.0)
    history.record("second", False, 0.0)
    history.commit()
    assert [history.attempts(uid) for uid in ("first", "second")] == [1, 1]


def test_a_saved_state_takes_the_place_of_a_step_that_was_half_written():
    whole, history = ReplayHistory(), ReplayHistory()
    write_history(whole, a_batch())
    half_a_step(history)
    history.load_state_dict(*whole.state_dict())
    assert (len(history), history.attempts("q")) == (2, 2)


def test_what_was_not_committed_is_not_there_again(tmp_path):
    """As after a kill in the middle of a write: the file opens at the step before."""
    history = ReplayHistory(path=tmp_path / "history.sqlite")
    history.write_in_background(lambda: write_history(history, a_batch()))
    before = history.savepoint()
    history.write_in_background(lambda: history.add(history.entries("q", correct=True)[0]))
    history.wait()
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes((tmp_path / "history.sqlite").read_bytes())
    journal = tmp_path / "history.sqlite-journal"
    if journal.exists():
        (tmp_path / "copy.sqlite-journal").write_bytes(journal.read_bytes())
    reopened = ReplayHistory(path=copy)
    assert len(reopened) == 2
    reopened.rollback(before)
    assert np.array_equal(reopened.entries("q", correct=True)[0].tokens, history.entries("q", correct=True)[0].tokens)
