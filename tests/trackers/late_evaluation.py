"""A run of several processes, the evaluation at the end of each of which fails, and is made by the next one.

python -m tests.trackers.late_evaluation TRACKER FOLDER [DATABASES]

DATABASES: where a server of Trackio's writes, some time after it has been sent something.
"""

import sqlite3
import sys
import time
from pathlib import Path

from algorithms.train.recorder import Recorder
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.tracker import Outcome

from .stores import trackio_points

PATIENCE_S = 120.0  # with a server that has lost something

# From, to, and whether the evaluation after the first one is made: twice after step 3, as the process that made it may
# have died before it was on record; after step 4, whose successor is evaluated as well; and the last one.
PROCESSES = [(0, 3, False), (3, 3, True), (3, 4, True), (4, 6, True), (6, 6, True), (6, 6, False)]
STEPS = [(step, step / 8) for step in range(1, 7)]
EVALUATIONS = [(step, 1 - step / 8) for step in range(1, 7)]


def play(recorder, start, end, late):
    """Make the steps after `start` up to `end`, and evaluate after each but the last."""
    recorder.resume_settings({"algorithm": "grpo"}, changed=False)
    if late:
        recorder.record_evaluation(start, {"eval/pass@1": 1 - start / 8})
    for step in range(start + 1, end + 1):
        evaluation = {"eval/pass@1": 1 - step / 8} if step < end else {}
        recorder.record({"step": step, "reward/mean": step / 8} | evaluation)
    recorder.close(Outcome.FAILED)


def main(tracker, folder, databases=""):
    """Play one process after the other."""
    run = RunDirectory.create(folder, "run", "")
    for start, end, late in PROCESSES:
        play(Recorder(run, start, trackers=[tracker]), start, end, late)
        deadline = time.monotonic() + PATIENCE_S
        evaluated = start if start == end else end - 1
        while databases and not has(Path(databases), end, evaluated) and time.monotonic() < deadline:
            time.sleep(0.1)


def has(databases, steps, evaluations):
    """Whether a server of Trackio's has written so many steps and evaluations."""
    if not list(databases.glob("*.db")):
        return False
    try:
        written = [len(trackio_points(databases, tag)) for tag in ("reward/mean", "eval/pass@1")]
    except sqlite3.OperationalError:  # the file is there before its table
        return False
    return written[0] >= steps and written[1] >= evaluations


if __name__ == "__main__":
    main(*sys.argv[1:])
