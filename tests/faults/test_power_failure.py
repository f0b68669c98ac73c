"""Power failures in a real training: whatever was not synced may be lost, and the run is resumed as if nothing was.

One run is recorded while nobody disturbs it. Every state in which a power failure could leave its disk is rebuilt and
examined; from some of them the run is resumed, and has to become the run that was recorded.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

from benchmarks.soaking.checks import troubles
from tests.command_line.conftest import SMALL, rows, untimed
from tests.faults.resumable import shortcomings
from tests.faults.unsynced import State, Sync, power_failures, read_log, watched, write_state

pytestmark = pytest.mark.slow

STEPS, EVERY = 3, 2  # a step after the last checkpoint
MARKS = "marks"
NOT_SYNCED, CONTENT, AT_LENGTH = "all that was not synced", "content, not names", "content, not names and lengths"
# What a resume deletes unread, or leaves alone.
UNREAD = re.compile(rf"/\.|/events\.out|^{MARKS}$")
# A run to resume: the file whose sync is cut short, steps that were done, what is lost, steps that it starts from.
MOMENTS = {
    "begun": ("history.sqlite", 0, NOT_SYNCED, 0),
    "stepped": (MARKS, 1, AT_LENGTH, 0),
    "saving": ("checkpoints/.step_000002.partial/manifest.json", 1, CONTENT, 0),
    "saved": (MARKS, 2, NOT_SYNCED, 2),
    "measured": ("metrics.jsonl", 2, "every second block of runs/whole/metrics.jsonl", 2),
    "closed": (".summary.json", 3, AT_LENGTH, 3),
}


class Recording(NamedTuple):
    """A training, and what it synced.

    Args:
        run: its directory.
        syncs: in order, those that made the disk known before it began included.
        done: of each sync, how many steps were over for certain; below 0 before the first one.
    """

    run: Path
    syncs: list[Sync]
    done: list[int]


def recorded(library: Path, run: Path, commands: Sequence[Sequence[str]], done: int = -1) -> Recording:
    """Train, and record what becomes of `run`, which lies in a folder of a folder; of `done` steps at the start."""
    root, log = run.parents[1], run.parents[1].with_suffix(".log")
    root.mkdir(parents=True, exist_ok=True)
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    surroundings |= {"PYTHONPATH": str(Path(__file__).parents[2]), **watched(library, root, log)}
    process = subprocess.run(
        [sys.executable, "-m", "tests.faults.recorded_training", root / MARKS, json.dumps(commands)],
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert process.returncode == 0, process.stderr
    syncs, known = read_log(log), []
    for sync in syncs:
        known.append(done)
        steps, _, name = (sync.content or b"").decode("latin1").partition(" ") if sync.path == MARKS else ("", "", "")
        done = int(steps) if name == run.name else done
    return Recording(run, syncs, known)


@pytest.fixture(scope="module")
def whole(library, tmp_path_factory) -> Recording:
    """A run that nobody disturbed."""
    run = tmp_path_factory.mktemp("whole") / "disk" / "runs" / "whole"
    settings = [
        *SMALL,
        f"run.steps={STEPS}",
        f"run.checkpoint_every={EVERY}",
        f"run.dir={run.parent}",
        "run.name=whole",
    ]
    return recorded(library, run, [settings])


def states(recording: Recording) -> Iterator[tuple[int, str, State]]:
    """What a power failure may leave of a recorded training: the sync that it cuts short, what is lost, the state."""
    known = next(number for number, sync in enumerate(recording.syncs) if sync.path == MARKS)
    return power_failures(recording.syncs, known + 1)


def found_in_all_states(recording: Recording, folder: Path, expected: Sequence[dict[str, object]]) -> list[str]:
    """What is wrong in any of them, with what led there; states that a resume cannot tell apart are examined once."""
    found, seen = [], set()
    run = folder / recording.run.relative_to(recording.run.parents[1])
    for number, lost, whole_state in states(recording):
        state = {path: content for path, content in whole_state.items() if not UNREAD.search(path)}
        done = recording.done[number]
        if (key := (hash(frozenset(state.items())), done)) not in seen:
            seen.add(key)
            write_state(state, folder)
            said = shortcomings(run, done, max(0, done - done % EVERY), expected)
            found += [f"{recording.syncs[number].path}, {lost}, step {done}: {one}" for one in said]
    assert len(seen) > 30
    return found


@pytest.fixture(scope="module")
def expected(whole) -> list[dict[str, object]]:
    return [untimed(row) for row in rows(whole.run)]


def test_whenever_the_power_fails_all_that_is_done_is_there_and_can_be_resumed(whole, expected, tmp_path):
    assert [row["step"] for row in expected] == [1, 2, 3]
    assert found_in_all_states(whole, tmp_path / "disk", expected) == []


@pytest.fixture(scope="module")
def resumed(library, whole, tmp_path_factory) -> tuple[dict[str, Path], Recording]:
    """The run, resumed from where power failures left it; the last time from its older checkpoint, and recorded."""
    folder, found = tmp_path_factory.mktemp("resumed"), {}
    for number, lost, state in states(whole):
        path = whole.syncs[number].path.removeprefix("runs/whole/")
        for moment, (file, done, loss, _) in MOMENTS.items():
            if path.startswith(file) and (whole.done[number], lost) == (done, loss) and moment not in found:
                write_state(state, folder / moment)
                found[moment] = folder / moment / "runs" / "whole"
    assert list(found) == list(MOMENTS), "a moment never came"
    again = folder / "disk" / "runs" / "again"
    shutil.copytree(whole.run, again)
    older = ["--resume", str(again / "checkpoints" / "step_000002"), "run.keep_checkpoints=1", "run.best_metric=null"]
    commands = [*(["--resume", str(run)] for run in found.values()), older]
    return found, recorded(library, again, commands, done=EVERY)


@pytest.mark.parametrize("moment", MOMENTS)
def test_resumed_after_a_power_failure_it_becomes_the_undisturbed_run(moment, resumed, whole, expected):
    run, start = resumed[0][moment], MOMENTS[moment][-1]
    assert [untimed(row) for row in rows(run)] == expected
    # TensorBoard's events are not synced: the last of them may be gone, and none of the steps made again.
    found = troubles(run, STEPS, reference=whole.run, compared="numbers")
    assert [said for said in found if not said.startswith("TensorBoard")] == []
    events = EventAccumulator(str(run), {SCALARS: 0})
    events.Reload()
    if start < STEPS:
        assert [event.step for event in events.Scalars("reward/mean") if event.step > start] == [*range(start + 1, 4)]


def test_whenever_it_fails_while_an_older_checkpoint_is_resumed_the_run_can_be_resumed(resumed, expected, tmp_path):
    assert found_in_all_states(resumed[1], tmp_path / "disk", expected) == []
