import io
import math

import pytest

from algorithms.utils.progress import Progress, duration


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run_steps(total, seconds, *, start=0, row=None):
    stream, clock = io.StringIO(), Clock()
    with Progress(total, start, stream=stream, clock=clock) as progress:
        for step in range(start + 1, total + 1):
            clock.now += seconds
            progress.update({"step": step, **(row or {})})
    return stream.getvalue()


ROW = {
    "reward/mean": 0.5, "groups/solve_none": 0.25, "response/truncated": 0.1,
    "throughput/response_tokens_per_s": 1234.5,
}  # fmt: skip


def test_a_log_gets_whole_lines_without_control_characters():
    text = run_steps(3, 10.0, row=ROW)
    assert text.splitlines()[0] == (
        "step 1/3  reward 0.500  unsolved 25%  truncated 10%  1,234 tokens/s  10s elapsed  20s left"
    )
    assert len(text.splitlines()) == 3
    assert "\r" not in text
    assert "\x1b" not in text


def test_the_line_says_where_the_time_went_and_leaves_small_parts_out():
    times = {"step": 10.0, "generate": 6.1, "grade": 0.4, "statistics": 0.0, "update": 2.96, "transfer": 0.51}
    row = {f"time/{part}": seconds for part, seconds in times.items()}
    line = run_steps(1, 10.0, row={**row, "throughput/mfu": 0.428, "throughput/padding_share": 0.214})
    assert "  MFU 43%  padding 21%  generate 61% update 30% transfer 5%  10s elapsed" in line
    assert "padding" not in run_steps(1, 10.0, row={"throughput/padding_share": 0.02})
    assert "generate" not in run_steps(1, 10.0, row={"time/generate": 1.0})


def test_episodes_that_are_left_out_are_in_the_line_and_only_then():
    assert "  unsolved 25%  left out 70%  truncated 10%  " in run_steps(
        1, 1.0, row={**ROW, "rollout/failed_share": 0.7}
    )
    assert "left out <1%" in run_steps(1, 1.0, row={**ROW, "rollout/failed_share": 0.001})
    assert "left out" not in run_steps(1, 1.0, row={**ROW, "rollout/failed_share": 0.0})


def test_answers_of_an_evaluation_that_failed_are_beside_its_pass_rate():
    row = {"eval/pass@1": 0.375, "eval/failed_share": 0.125}
    assert "pass@1 37.5%  (12% failed, as incorrect)" in run_steps(1, 1.0, row=row)
    assert "failed" not in run_steps(1, 1.0, row={**row, "eval/failed_share": 0.0})


def test_fast_steps_share_lines_and_the_first_and_the_last_are_shown():
    steps = [line.split()[1] for line in run_steps(12, 1.0).splitlines()]
    assert steps == ["1/12", "6/12", "11/12", "12/12"]


def test_a_step_with_an_evaluation_always_has_its_line():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(10, stream=stream, clock=clock)
    progress.update({"step": 1})
    progress.update({"step": 2, "eval/pass@1": 0.375})
    assert "pass@1 37.5%" in stream.getvalue().splitlines()[1]


def test_the_estimate_counts_the_steps_of_this_process_only():
    assert run_steps(110, 10.0, start=100).splitlines()[0].endswith("10s elapsed  1m30s left")


def test_the_last_step_has_nothing_left():
    assert run_steps(2, 10.0).splitlines()[-1].endswith("20s elapsed")


@pytest.mark.parametrize("value", [None, math.nan])
def test_a_missing_number_is_left_out(value):
    assert "reward" not in run_steps(1, 1.0, row={"reward/mean": value})


def test_a_terminal_gets_one_line_redrawn(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Progress(50, stream=stream) as progress:
        for step in range(1, 51):
            progress.update({"step": step, **ROW})
        progress.message("saved")
    assert "step 50/50" in stream.getvalue()
    assert "saved" in stream.getvalue()
    assert stream.getvalue().count("\n") < 5


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Progress(1, stream=stream, clock=Clock()) as progress:
        progress.update({"step": 1})
        progress.message("saved")
    assert stream.getvalue().splitlines() == ["step 1/1  0s elapsed", "saved"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.4, "59s"), (59.6, "1m00s"), (185, "3m05s"), (7620, "2h07m")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
