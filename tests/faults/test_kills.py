"""The kill sweep kills where it is told to, and finds what is not the undisturbed run's."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from benchmarks import kills
from benchmarks.kills import KILLS, Place, Sweep, Triple, compile_killer, draw_places, in_words, killed_at
from benchmarks.soaking import checks
from benchmarks.soaking.command import Command

LIMIT_S = 600
# Each line is one counted call, but for the last two: outside, and one that changes nothing.
CHANGES = """
import os, sys
os.chdir(sys.argv[1])
os.mkdir("a")
folder = os.open("a", os.O_RDONLY)
file = os.open("b", os.O_CREAT | os.O_WRONLY, dir_fd=folder)
os.write(file, b"12345678")
os.rename("a/b", sys.argv[1] + "/c")
os.pwrite(file, b"90", 8)
os.ftruncate(file, 9)
os.unlink("c")
os.rmdir("a")
os.write(os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY), b"outside")
os.fsync(file)
"""
CALLS = ["mkdir a", "openat64 a/b", "write a/b", "rename c", "pwrite64 c", "ftruncate64 c", "unlink c", "rmdir a"]


@pytest.fixture(scope="module")
def killer(tmp_path_factory):
    try:
        return compile_killer(tmp_path_factory.mktemp("library"))
    except RuntimeError as error:
        pytest.skip(str(error))


def change(killer, folder, place):
    """Make the changes; return the exit code, the calls, and what is left by name."""
    root, log = folder / "root", folder / "calls"
    root.mkdir()
    process = subprocess.run(
        [sys.executable, "-c", CHANGES, root, folder / "other"],
        env=os.environ | killed_at(killer, root, log, place),
        timeout=LIMIT_S,
    )
    left = {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}
    return process.returncode, log.read_text().splitlines(), left


def test_calls_that_change_the_folder_are_counted_and_no_others(killer, tmp_path):
    code, calls, left = change(killer, tmp_path, kills.NOWHERE)
    assert code == 0 and left == {} and (tmp_path / "other").read_bytes() == b"outside"
    assert [call.replace("openat ", "openat64 ").replace("ftruncate ", "ftruncate64 ") for call in calls] == CALLS


@pytest.mark.parametrize(
    "place, left",
    [
        (Place(1), {}),
        (Place(2), {"a": None}),
        (Place(3), {"a": None, "a/b": b""}),
        (Place(3, 50), {"a": None, "a/b": b"1234"}),
        (Place(4, 50), {"a": None, "a/b": b"12345678"}),
        (Place(5, 50), {"a": None, "c": b"123456789"}),
        (Place(7), {"a": None, "c": b"123456789"}),
    ],
)
def test_a_process_is_killed_at_its_nth_call(killer, tmp_path, place, left):
    code, calls, found = change(killer, tmp_path, place)
    assert code == -signal.SIGKILL and len(calls) == place.call
    assert found == left


def test_a_process_that_the_killed_one_starts_is_not_watched(killer, tmp_path):
    inner = f"open({str(tmp_path / 'root' / 'by the inner one')!r}, 'w').close()"
    (tmp_path / "root").mkdir()
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)",
        ],
        env=os.environ | killed_at(killer, tmp_path / "root", tmp_path / "calls", Place(1)),
        timeout=LIMIT_S,
    )
    assert process.returncode == 0 and (tmp_path / "root" / "by the inner one").exists()


CALLS_OF_A_RUN = [f"write {'rare' if number % 50 == 0 else 'often'}" for number in range(100)]


def test_places_are_those_of_seed_and_number_and_all_lie_in_the_run():
    drawn = [draw_places(0, number, CALLS_OF_A_RUN) for number in range(300)]
    assert drawn == [draw_places(0, number, CALLS_OF_A_RUN) for number in range(300)]
    assert len({*drawn, *(draw_places(1, number, CALLS_OF_A_RUN) for number in range(300))}) > 500
    assert all(len(places) == KILLS and all(place.call >= 1 for place in places) for places in drawn)
    assert all(sum(place.call for place in places) <= 100 for places in drawn)
    assert {place.share for places in drawn for place in places} == {0, 50}
    cuts = Counter(sum(place.call for place in places[:last]) for places in drawn for last in range(1, KILLS + 1))
    assert len(cuts) == 100 and min(cuts[1], cuts[51]) > 3 * 9, "a rare call is drawn more often than one of 100"


def test_a_line_has_places_calls_and_what_differs():
    one = Triple(17, (Place(3, 50), Place(9), Place(20)), ["write metrics.jsonl", "rename a"], 2.0, ["it differs"])
    assert in_words(one) == "triple 17: killed at 3:50 (write metrics.jsonl), 9 (rename a); 2 s; it differs"
    assert [Place.of(text) for text in ("3:50", "9")] == [*one.places[:2]]


@pytest.mark.parametrize(
    "code, said",
    [
        ("sys.exit('error: the checkpoint is damaged')", "exit code 1 at call 0: error: the checkpoint is damaged"),
        ("os.kill(os.getpid(), 9)", "exit code -9 at call 0: "),
        ("pass", "no run"),
    ],
)
def test_an_end_that_no_kill_explains_is_found(killer, tmp_path, monkeypatch, code, said):
    monkeypatch.setattr(Command, "arguments", lambda command: ["-c", f"import os, sys; {code}"])
    one = Sweep(tmp_path, killer, 2).triple(1, (Place(5), Place(1), Place(1)), tmp_path)
    assert one.calls == [] and one.troubles == [f"Ended: {said}"]


@pytest.fixture
def pair(tmp_path):
    """Two run directories that are alike in rollouts, conversations and weights."""
    run = tmp_path / "whole"
    for number, weight in ((1, 0.5), (2, 0.25)):
        checkpoint = run / "checkpoints" / f"step_{number:06d}"
        (checkpoint / "model").mkdir(parents=True)
        save_file({"weight": np.full(4, weight, np.float32)}, checkpoint / "model" / "model.safetensors")
    (run / "rollouts").mkdir()
    pq.write_table(pa.table({"text": ["a"], "logprob": [float("nan")]}), run / "rollouts" / "step-000001.parquet")
    (run / "conversations.jsonl").write_text('{"step": 1, "rows": [{"text": "a"}]}\n')
    return run, shutil.copytree(run, tmp_path / "other")


READS = {name: checks._PARTS[name] for name in checks._PARTS if name.startswith(("conv", "the roll", "the wei"))}


def unlike(pair):
    return [name.split()[-2] for name, read in READS.items() if read(pair[0]) != read(pair[1])]


def test_runs_that_are_alike(pair):
    assert len(READS) == 3 and unlike(pair) == []


def test_other_weights_are_found_in_the_last_checkpoint(pair):
    newest = pair[1] / "checkpoints" / "step_000002" / "model" / "model.safetensors"
    save_file({"weight": np.array([0.25, 0.25, 0.25, 0.2500001], np.float32)}, newest)
    assert unlike(pair) == ["checkpoint"]


def test_another_response_is_found(pair):
    pq.write_table(pa.table({"text": ["b"], "logprob": [float("nan")]}), pair[1] / "rollouts" / "step-000001.parquet")
    assert unlike(pair) == ["rollouts"]


def test_a_conversation_that_is_missing_is_found(pair):
    (pair[1] / "conversations.jsonl").write_text("")
    assert unlike(pair) == ["conversations.jsonl"]


@pytest.mark.slow
def test_a_run_that_is_killed_at_three_calls_becomes_the_run_that_was_never_killed(killer, capfd):
    assert kills.main(["--triples", "1", "--seed", "0", "--steps", "2"]) == 0
    assert "1 triples, 3 kills, 0 differ: none" in capfd.readouterr().out
