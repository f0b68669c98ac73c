"""What a base is taught, what counts as correct, and what a worker leaves."""

import json

import pytest
import torch

from benchmarks.suite import bases
from benchmarks.suite import protocol as registered
from benchmarks.suite.bases import Made, Pupil, Spec, make
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
    """A pupil whose pass@1 is its number of steps / 10,000, or another curve, and which writes no weights."""

    failures, learns_from_failures = (), False
    curve = staticmethod(lambda step: step / 1e4)

    def __init__(self, spec, limits):
        self.model = torch.nn.Linear(1, 1, bias=False)
        self.model.weight.data.zero_()

    def example(self, share):
        return Example([1], [1])

    def measure(self, recipe, lows):
        return self.curve(round(self.model.weight.item()))

    def save(self, folder):
        folder.mkdir(parents=True)


@pytest.fixture
def slow_pupil(monkeypatch):
    def learn(model, *_):
        model.weight.data += 1

    monkeypatch.setattr(bases, "Pupil", Slow)
    monkeypatch.setattr(bases, "learn", learn)


BANDS = {"blind": (0.002, 0.012), "medium": (1, 1)}


def recipe_of(**update):
    return PROTOCOL.recipe.model_copy(
        update={"steps": 90, "interval": 10, "hopeless": (90, 0.0), "bands": BANDS} | update
    )


def test_a_difficulty_is_taken_where_pass_at_1_first_lies_in_its_band(slow_pupil, tmp_path):
    made = make(SPEC, recipe_of(), LIMITS, tmp_path, wanted=["blind", "medium"])
    assert made == Made([(step, step / 1e4) for step in range(10, 100, 10)], {"blind": 20})
    assert (tmp_path / "blind").is_dir() and not (tmp_path / "medium").exists()
    assert make(SPEC, recipe_of(), LIMITS, tmp_path, wanted=[]) == made, "read, not made again"


def test_a_band_that_was_jumped_over_is_looked_for_step_by_step(slow_pupil, tmp_path, monkeypatch):
    monkeypatch.setattr(Slow, "curve", staticmethod(lambda step: 0.0 if step < 14 else (step - 13) / 200))
    made = make(SPEC, recipe_of(), LIMITS, tmp_path, wanted=["blind"])
    assert [step for step, _ in made.curve[:7]] == [10, 11, 12, 13, 14, 20, 30]
    assert made.taken == {"blind": 14}


def test_what_never_lies_in_a_band_is_not_taken_and_ends_where_the_task_is_learned(slow_pupil, tmp_path, monkeypatch):
    monkeypatch.setattr(Slow, "curve", staticmethod(lambda step: 0.0 if step < 14 else 0.5))
    made = make(SPEC, recipe_of(), LIMITS, tmp_path, wanted=["blind"])
    assert made.curve[-1] == (14, 0.5) and not made.taken


def test_a_hopeless_base_is_given_up(slow_pupil, tmp_path):
    recipe = recipe_of(hopeless=(40, 0.005))
    kept, given_up = (
        make(SPEC, recipe, LIMITS, tmp_path / str(early), wanted=["medium"], gives_up=early) for early in (False, True)
    )
    assert given_up.curve[-1] == (40, 0.004) and kept.curve[-1][0] > 40


def test_answers_are_sampled_once_the_right_ones_are_likely(pupil, monkeypatch):
    monkeypatch.setattr(pupil, "accuracy", lambda count: 0.5)
    for bound, measured in ((4e-4, 4e-4), (6e-4, 0.5)):
        monkeypatch.setattr(pupil, "reference_probability", lambda bound=bound: bound)
        assert pupil.measure(recipe_of(hopeless=(40, 0.02)), [0.002, 0.03]) == measured


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
