"""The kill sweep kills where it is told to, and finds what is not the undisturbed run's."""

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from benchmarks import kills
from benchmarks.kills import Place, compile_killer, killed_at
from benchmarks.soaking import checks

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
        (Place(3, 50), {"a": None, "a/b": b"1234"}),
        (Place(4, 50), {"a": None, "a/b": b"12345678"}),
    ],
)
def test_a_process_is_killed_at_its_nth_call(killer, tmp_path, place, left):
    code, calls, found = change(killer, tmp_path, place)
    assert code == -signal.SIGKILL and len(calls) == place.call
    assert found == left


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


def test_runs_that_differ_are_told_apart(pair):
    parts = {name: read for name, read in checks._PARTS.items() if name.startswith(("conv", "the roll", "the wei"))}

    def unlike():
        return [name.split()[-2] for name, read in parts.items() if read(pair[0]) != read(pair[1])]

    assert len(parts) == 3 and unlike() == []
    newest = pair[1] / "checkpoints" / "step_000002" / "model" / "model.safetensors"
    save_file({"weight": np.array([0.25, 0.25, 0.25, 0.2500001], np.float32)}, newest)
    assert unlike() == ["checkpoint"]
    pq.write_table(pa.table({"text": ["b"], "logprob": [float("nan")]}), pair[1] / "rollouts" / "step-000001.parquet")
    (pair[1] / "conversations.jsonl").write_text("")
    assert sorted(unlike()) == ["checkpoint", "conversations.jsonl", "rollouts"]
