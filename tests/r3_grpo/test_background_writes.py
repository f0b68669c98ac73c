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


@pytest.mark.parametrize("use", [len, ReplayHistory.wait, ReplayHistory.savepoint, lambda h: h.attempts("q")])
def test_the_error_of_a_write_reaches_whoever_comes_next_once(use):
    history = ReplayHistory()

    def fail():
        raise OSError("no space left")

    history.write_in_background(fail)
    with pytest.raises(OSError, match="no space left"):
        use(history)
    assert len(history) == 0
    history.write_in_background(fail)
    history.close()


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
