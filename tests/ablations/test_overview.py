"""The progress line, with a clock of its own."""

import io
import json

from benchmarks.ablation.arms import ARMS
from benchmarks.ablation.plan import Task, plan
from benchmarks.ablation.processes import Overview, part_done


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def jobs_in(folder, *arms, tokens=0):
    return plan([ARMS[name] for name in arms], [0], Task(overrides=("run.steps=10",), tokens=tokens), folder)


def reach(job, step, tokens):
    job.folder.mkdir(exist_ok=True)
    row = {"step": step, "throughput/generated_tokens": tokens}
    (job.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")


def test_a_run_is_as_far_as_its_steps_or_its_tokens(tmp_path):
    (job,) = jobs_in(tmp_path, "grpo", tokens=1000)
    assert part_done(job) == 0
    reach(job, 2, 500)
    assert part_done(job) == 0.5
    reach(job, 9, 1010)
    assert part_done(job) == 1


def test_the_pace_is_that_of_this_call_and_failed_runs_are_no_work_that_is_left(tmp_path):
    jobs = jobs_in(tmp_path, "grpo", "r3", "dapo")
    reach(jobs[0], 5, 0)
    clock = Clock()
    overview = Overview(jobs, 1, stream=io.StringIO(), clock=clock)
    clock.now = 100.0
    reach(jobs[0], 6, 0)
    line = overview.line([jobs[0]], {"r3-0": 1})
    # A tenth of a run in 100 s; four tenths of this one and all of the last are left.
    assert line == "1/4 runs done  1 failed  grpo-0 60%  1m40s elapsed  23m20s left"
