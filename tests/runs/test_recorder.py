import html
import math
import re
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.summary.writer import event_file_writer

from algorithms.train.recorder import Recorder
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.conversations import MAX_CHARACTERS, conversation_markdown, literal


@dataclass(frozen=True)
class Rollout:
    messages: tuple[dict[str, str], ...]
    uid: str = "abc"
    context: str = "plain"
    reward: float = 1.0
    verdict: str = "equal"


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "run", "")


def events(run):
    accumulator = EventAccumulator(str(run.path), size_guidance={"tensors": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


def scalars(run, tag):
    return [(event.step, event.value) for event in events(run).Scalars(tag)]


def test_a_row_reaches_both_files_under_its_own_tags(run):
    with Recorder(run) as recorder:
        recorder.record({"step": 1, "reward/mean": 0.5, "eval/pass@1": 0.25, "rollout/engine": "transformers"})
        recorder.record({"step": 2, "reward/mean": 0.75, "policy/entropy": math.nan})
    assert [row["step"] for row in run.read_metrics()] == [1, 2]
    assert scalars(run, "reward/mean") == [(1, 0.5), (2, 0.75)]
    assert scalars(run, "eval/pass@1") == [(1, 0.25)]
    assert set(events(run).Tags()["scalars"]) == {"reward/mean", "eval/pass@1"}


def test_a_point_that_an_earlier_process_drew_is_not_drawn_again(run):
    with Recorder(run) as recorder:
        recorder.record_evaluation(0, {"eval/pass@1": 0.25})
    with Recorder(run) as recorder:
        recorder.record_evaluation(0, {"eval/pass@1": 0.25})
        recorder.record({"step": 1, "eval/pass@1": 0.5})
    with Recorder(RunDirectory.open(run.path), start_step=1) as recorder:
        recorder.record_evaluation(1, {"eval/pass@1": 0.5, "eval/maj@8": 0.75})
    assert scalars(run, "eval/pass@1") == [(0, 0.25), (1, 0.5)]
    assert scalars(run, "eval/maj@8") == [(1, 0.75)]


def test_files_of_one_second_are_read_in_the_order_of_writing(run, monkeypatch):
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))
    with Recorder(run) as recorder:  # its file ends in 9, the next one's in 10, and TensorBoard sorts names as text
        recorder.record({"step": 1, "reward/mean": 0.5})
    with Recorder(run, start_step=1) as recorder:
        recorder.record_evaluation(1, {"eval/maj@8": 0.75})
    assert scalars(run, "reward/mean") == [(1, 0.5)]
    assert scalars(run, "eval/maj@8") == [(1, 0.75)]


def test_rows_are_readable_while_the_run_goes_on(run):
    with Recorder(run) as recorder:
        recorder.record({"step": 1, "reward/mean": 0.5})
        assert scalars(run, "reward/mean") == [(1, 0.5)]


def test_a_resumed_run_hides_the_steps_that_it_does_again(run):
    with Recorder(run) as recorder:
        for step in range(1, 6):
            recorder.record({"step": step, "reward/mean": float(step)})
    run.truncate_after(3)
    with Recorder(RunDirectory.open(run.path), start_step=3) as recorder:
        recorder.record({"step": 4, "reward/mean": 40.0})
    assert scalars(run, "reward/mean") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]
    assert [row["reward/mean"] for row in run.read_metrics()] == [1.0, 2.0, 3.0, 40.0]


def test_the_evaluation_before_training_is_drawn_at_step_0_and_makes_no_row(run):
    with Recorder(run) as recorder:
        recorder.record_evaluation(0, {"eval/pass@1": 0.25, "eval/pass@8": math.nan})
        recorder.record({"step": 1, "eval/pass@1": 0.5})
    assert scalars(run, "eval/pass@1") == [(0, 0.25), (1, 0.5)]
    assert [row["step"] for row in run.read_metrics()] == [1]


def test_conversations_are_text_events(run):
    rollout = Rollout(({"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "<think>2</think>"}))
    with Recorder(run) as recorder:
        recorder.record_conversations(1, [rollout, rollout])
    tags = events(run).Tags()["tensors"]
    assert {"conversations/0/text_summary", "conversations/1/text_summary"} <= set(tags)
    (event,) = events(run).Tensors("conversations/0/text_summary")
    shown = shown_by_tensorboard(event.tensor_proto.string_val[0].decode())
    assert "abc, plain: reward 1, equal" in shown
    assert "<think>2</think>" in shown


def test_closing_twice_is_harmless(run):
    recorder = Recorder(run)
    recorder.close()
    recorder.close()


def shown_by_tensorboard(markdown):
    return html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"<br ?/?>", "\n", markdown_to_safe_html(markdown))))


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "# no heading\n====\n- no list\n1. no list",
        "    no code\n\tno tab code",
        "a_b_c *no* **bold** `no code` ```\n~~~",
        "|a|b|\n|-|-|\n|1|2|",
        "\\frac{1}{2} $x_1^2$ \\(y\\) [no](link) ![no](image) &lt; &amp;",
        "two\n\n\nblank lines",
    ],
)
def test_nothing_that_a_model_writes_acts_as_markup(text):
    rendered = markdown_to_safe_html(literal(text))
    assert set(re.findall(r"<(\w+)", rendered)) <= {"p", "br"}
    assert shown_by_tensorboard(literal(text)).replace("\xa0", " ") == text


@settings(max_examples=200)
@given(st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=40))
def test_any_printable_text_is_shown_literally(text):
    assert shown_by_tensorboard(literal(text)).split() == text.split()


def test_a_very_long_turn_loses_its_middle_and_says_so():
    content = "a" * MAX_CHARACTERS + "b" * MAX_CHARACTERS
    text = conversation_markdown([{"role": "assistant", "content": content}])
    assert len(text) < 1.1 * MAX_CHARACTERS
    assert "20&#44;000 characters left out" in text
    assert "aaa" in text
    assert "bbb" in text
