"""What a base is taught, what counts as correct, and what a worker leaves."""

import json

import pytest
import torch

from benchmarks.suite import bases
from benchmarks.suite import protocol as registered
from benchmarks.suite.bases import Pupil, Spec, make
from benchmarks.suite.jobs import Planned, key_of
from benchmarks.suite.worker import stored, work
from r3env.assets.lessons import Example

PROTOCOL, _ = registered.read()
LIMITS = PROTOCOL.filter.model_copy(update={"training": 8, "held_out": 4})
SPEC = Spec("spell_backward", "own_failures", 0)


@pytest.fixture(scope="module")
def pupil():
    return Pupil(SPEC, LIMITS)


def test_a_base_is_never_shown_a_problem_that_it_is_tested_on(pupil):
    shown = {pupil.tokenizer.decode(pupil.example(0.0).prompt) for _ in range(50)}
    assert not any(question in text for text in shown for question in pupil.kept_from_it)


def test_an_answer_counts_as_in_the_environment(pupil):
    entry = pupil.development.entries[0]
    for text, right in ((entry["answer"], True), (entry["answer"] + "x", False)):
        response = pupil._answered(text)
        assert pupil._is_right(pupil.development, entry, response) == right
        assert not pupil._is_right(pupil.development, entry, response[:-1]), "cut off"


def test_second_turns_show_its_own_wrong_answers_and_then_the_right_one(pupil):
    pupil.fail(4)
    assert pupil.failures  # a model of random weights
    example = pupil.example(1.0)
    prompt, attempt, answer = next(one for one in pupil.failures if example.prompt[: len(one[0])] == one[0])
    assert example.prompt[len(prompt) :][: len(attempt)] == attempt
    assert example.response == pupil._answered(answer)


def test_the_probability_of_the_reference_answers_is_that_of_the_model(pupil):
    expected = []
    for entry in pupil.development.entries:
        prompt, answer = pupil._prompt(entry), pupil._answered(entry["answer"])
        with torch.inference_mode():
            log_probs = pupil.model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        at = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
        expected.append(sum(log_probs[i, token] for i, token in zip(at, answer, strict=True)).exp().item())
    assert pupil.reference_probability() == pytest.approx(sum(expected) / len(expected), rel=1e-3)


class Slow:
    """A pupil that gets a tenth of a percent better with each measurement, and writes no weights."""

    failures = ()
    model = torch.nn.Linear(1, 1)

    def __init__(self, spec, limits):
        self.measured = 0

    def example(self, share):
        return Example([1], [1])

    def fail(self, count):
        pass

    def reference_probability(self):
        self.measured += 1
        return self.measured / 1e4

    def accuracy(self, count):
        return self.measured / 1000

    def save(self, folder):
        folder.mkdir(parents=True)


@pytest.fixture
def slow_pupil(monkeypatch):
    monkeypatch.setattr(bases, "Pupil", Slow)
    monkeypatch.setattr(bases, "learn", lambda *_: 0.0)


def test_a_difficulty_is_taken_where_pass_at_1_first_lies_in_its_band(slow_pupil, tmp_path):
    recipe = PROTOCOL.recipe.model_copy(
        update={
            "steps": 90,
            "interval": 10,
            "hopeless": (90, 5e-4),
            "bands": {"blind": (0.002, 0.012), "medium": (1, 1)},
        }
    )
    made = make(SPEC, recipe, LIMITS, tmp_path, wanted=["blind", "medium"])
    assert made.curve == [(10, 1e-4), *((step, step / 1e4) for step in range(20, 100, 10))], "sampled from 1.25e-4 on"
    assert made.taken == {"blind": 20}
    assert (tmp_path / "blind").is_dir() and not (tmp_path / "medium").exists()
    assert make(SPEC, recipe, LIMITS, tmp_path, wanted=[]) == made, "read, not made again"


def test_a_hopeless_base_is_given_up(slow_pupil, tmp_path):
    recipe = PROTOCOL.recipe.model_copy(update={"interval": 10, "hopeless": (40, 0.005)})
    assert make(SPEC, recipe, LIMITS, tmp_path, wanted=["medium"]).curve[-1][0] == 40


@pytest.mark.slow
def test_a_base_and_its_runs_are_made_once_and_each_leaves_a_record(tmp_path):
    update = {"steps": 40, "learnable": 0.0, "bands": {"medium": (0.0, 1.0)}, "interval": 20, "problems": 32}
    settings = {**PROTOCOL.settings, "evaluation": {"samples": 8, "k": [1, 8], "interval": 1}}
    protocol = PROTOCOL.model_copy(
        update={
            "filter": LIMITS,
            "recipe": PROTOCOL.recipe.model_copy(update=update),
            "difficulties": ("medium",),
            "tokens": 200,
            "settings": settings,
        }
    )
    runs = [Planned("test", SPEC, "medium", arm, 1e-4) for arm in ("grpo", "r3")]
    records = tmp_path / "suite.jsonl"
    for planned in (runs[:1], runs):
        work(SPEC, planned, protocol, "digest", tmp_path / "out", records)
    found = stored(records)
    assert [key_of(record) for record in found] == [run.key for run in runs]
    for record in found:
        assert record["supervised_steps"] == 20 and record["protocol"] == "digest"
        assert [point["step"] for point in record["curve"]][0] == 0 and record["curve"][-1]["tokens"] >= 200
        assert record["curve"][-1]["cpu_s"] > 0 and 0 <= record["final"]["pass@1"] <= record["final"]["pass@8"] <= 1
    assert json.loads((tmp_path / "out/bases" / SPEC.name / "base.json").read_text())["taken"] == {"medium": 20}
    assert not list(tmp_path.glob("out/runs/**/checkpoints"))
