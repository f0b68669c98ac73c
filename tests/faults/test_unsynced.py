"""What a power failure may leave: by hand, and of processes that sync with care or without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.unsynced import BLOCK, Entry, Sync, power_failures, read_log, watched, write_state

ROOT, FOLDER = Entry("root", None, ""), Entry("folder", None, "folder")
NOTHING = "all that was not synced"


def left(*syncs, loss=None):
    """The states during the last of the syncs: all, or the one in which this is lost."""
    found = [(lost, state) for number, lost, state in power_failures(syncs) if number == len(syncs) - 1]
    return [state for lost, state in found if loss in (None, lost)]


def synced(entry, *tree, content=None):
    return Sync(entry.inode, entry.path, (ROOT, *tree), content)


def test_a_file_that_was_synced_in_a_folder_that_was_not_may_have_no_name():
    file = Entry("1", 3, "file")
    before, now = synced(file, file, content=b"abc"), synced(ROOT, file)
    assert left(before, now, loss=NOTHING) == [{}]
    assert left(before, now, now, loss=NOTHING) == [{"file": b"abc"}]


def test_what_was_appended_since_the_last_sync_may_be_lost_or_zeros():
    short, long = Entry("1", 3, "file"), Entry("1", 5, "file")
    states = left(synced(short, short, content=b"abc"), synced(ROOT, short), synced(ROOT, long))
    assert [state["file"] for state in states] == [b"abc", b"abc", b"abc\0\0"]


def test_after_a_rename_the_old_file_may_be_there_or_the_new_name_without_the_content():
    old, temporary, new = Entry("1", 3, "file"), Entry("2", 3, "tmp"), Entry("2", 3, "file")
    begun = (synced(old, old, content=b"old"), synced(ROOT, old))
    careless = left(*begun, synced(ROOT, new))
    assert {"file": b"old"} in careless and {"file": b""} in careless
    careful = left(*begun, synced(temporary, old, temporary, content=b"new"), synced(ROOT, new))
    assert {state["file"] for state in careful} == {b"old", b"new"}


def test_a_file_that_was_deleted_may_be_back():
    file = Entry("1", 3, "file")
    begun = (synced(file, file, content=b"abc"), synced(ROOT, file))
    assert {"file": b"abc"} in left(*begun, synced(ROOT))
    assert left(*begun, synced(ROOT), synced(ROOT)) == [{}] * 3


def test_a_sync_that_is_cut_short_may_leave_any_blocks_of_the_file():
    file = Entry("1", 3 * BLOCK, "file")
    before, after = b"a" * BLOCK, b"b" * 3 * BLOCK
    syncs = synced(file, file, content=before), synced(ROOT, file), synced(file, file, content=after)
    contents = {state["file"] for state in left(*syncs)}
    assert {b"b" * BLOCK + b"\0" * BLOCK + b"b" * BLOCK, b"a" * BLOCK + b"b" * BLOCK + b"\0" * BLOCK} <= contents


PREPARED = """
import os, sqlite3, sys
from pathlib import Path
from algorithms.history.database import HistoryDatabase
from algorithms.train import metrics_file
from algorithms.utils import files
root = Path(sys.argv[1])
(root / "file").write_text("old")
for path in (root / "file", root):
    files.sync(path)
BEGUN
WRITE
files.sync(root / "DONE")
"""


@pytest.fixture
def during_and_after(library, tmp_path):
    """Runs code in a process that is watched; gives the states while it writes, and those when it has written."""

    def run(write, begun=""):
        root = tmp_path / "disk"
        root.mkdir()
        (root / "DONE").touch()
        code = PREPARED.replace("BEGUN", begun).replace("WRITE", write)
        surroundings = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        surroundings |= watched(library, root, tmp_path / "log")
        subprocess.run([sys.executable, "-c", code, root], env=surroundings, check=True)
        syncs = read_log(tmp_path / "log")
        states = [(number, state) for number, _, state in power_failures(syncs, 2)]
        last = len(syncs) - 1
        return [state for number, state in states if number < last], [
            state for number, state in states if number == last
        ]

    return run


def test_a_file_that_is_replaced_whole_is_the_old_one_or_the_new_one_and_then_the_new_one(during_and_after):
    during, after = during_and_after("files.write_text(root / 'file', 'new' * 400)")
    assert {state["file"] for state in during} == {b"old", b"new" * 400}
    assert {state["file"] for state in after} == {b"new" * 400}


@pytest.mark.parametrize(
    ("careless", "found"),
    [  # what is synced, what is found
        ("if path.is_dir(): sync(path)", {b""}),  # the classic file of no length
        ("if path.is_file(): sync(path)", {b"old", b"new"}),  # its end is not the end
    ],
)
def test_one_sync_less_and_this_does_not_hold(during_and_after, careless, found):
    begun = f"sync = files.sync\ndef less(path):\n    {careless}\nfiles.sync = less"
    _, after = during_and_after("files.write_text(root / 'file', 'new')\nfiles.sync = sync", begun)
    assert found == {state["file"].rstrip(b"\0") for state in after}


@pytest.mark.parametrize("careless", [False, True])
def test_a_row_of_metrics_is_there_once_it_was_appended(during_and_after, careless):
    begun = "if True: metrics_file.os = type('', (), {'fsync': lambda descriptor: None})" if careless else ""
    _, after = during_and_after("metrics_file.append(root / 'rows', {'step': 1})", begun)
    assert ({state.get("rows") for state in after} == {b'{"step": 1}\n'}) != careless


def test_the_folders_of_a_table_are_there_once_it_was_written(during_and_after):
    write = "files.write_parquet(root / 'new' / 'below' / 'table', [{'n': 1}], pyarrow.schema({'n': 'int8'}))"
    _, after = during_and_after(write, "import pyarrow")
    assert all(state.get("new/below/table", b"").endswith(b"PAR1") for state in after)


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL", "OFF"])
def test_the_history_keeps_what_was_committed_and_would_not_with_fewer_syncs(during_and_after, tmp_path, synchronous):
    change = f"history._connection.execute('COMMIT; ')\nhistory._connection.execute('PRAGMA synchronous={synchronous}')"
    begun = f"history = HistoryDatabase(root / 'history')\n{change}\nhistory._connection.execute('BEGIN')"
    _, after = during_and_after("history.record('q', True, 1.0)\nhistory.commit()", begun)
    counts = set()
    for state in after:
        write_state(state, tmp_path / "found")
        counts.add(attempts(tmp_path / "found" / "history"))
    assert (counts == {1}) == (synchronous == "FULL")


def attempts(file):
    from algorithms.history.database import HistoryDatabase

    try:
        return HistoryDatabase(file).attempts("q")
    except ValueError:
        return "damaged"
