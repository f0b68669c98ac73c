"""The filter of tasks, on made-up generators whose flaws are known."""

import hashlib

import pytest

from benchmarks.suite import protocol as registered
from benchmarks.suite import tasks
from benchmarks.suite.tasks import HELD_OUT_SEED, TRAINING_SEED, Problems, Screened

PROTOCOL, _ = registered.read()
LIMITS = PROTOCOL.filter.model_copy(update={"training": 12, "held_out": 8})


class Scorer:
    """Full marks for the reference, and none for anything else."""

    def score_answer(self, answer, entry):
        return float(answer == entry["answer"])


class Generous(Scorer):
    def score_answer(self, answer, entry):
        return 1.0


class Broken(Scorer):
    def score_answer(self, answer, entry):
        return 0.5


def generated(monkeypatch, *, question="{seed}: {index}", answer="{index}", scorer=None):
    def problems(name, seed, size):
        entries = [
            {text: form.format(seed=seed, index=index) for text, form in (("question", question), ("answer", answer))}
            for index in range(size)
        ]
        return Problems(scorer or Scorer(), entries)

    monkeypatch.setattr(tasks, "problems", problems)
    return tasks.screen("made_up", LIMITS)


def test_a_task_of_short_different_judged_problems_is_in(monkeypatch):
    one = generated(monkeypatch)
    assert one == Screened("made_up", None, len(f"{HELD_OUT_SEED}: 7"), 2, 2 / 20)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"question": "{seed}" + "x" * 200 + "{index}"}, "prompt of more than 192 characters"),
        ({"answer": "x" * 30 + "{index}"}, "answer of more than 24 characters"),
        ({"answer": "same"}, "can be guessed: one answer is right for 100%"),
        ({"question": "{index}"}, "too few different problems"),
        ({"question": "{seed}"}, "too few different problems"),
        ({"scorer": Generous()}, "its scorer accepts another problem's answer"),
        ({"scorer": Broken()}, "its scorer rejects its own answer"),
        ({"question": "{nothing}"}, "cannot be generated: KeyError"),
    ],
)
def test_every_other_is_left_out_with_its_reason(monkeypatch, how, reason):
    assert generated(monkeypatch, **how).reason == reason


def test_the_problems_are_those_that_the_environment_poses():
    from r3env.envs.reasoning_gym import ReasoningGymEnv

    drawn = tasks.problems("spell_backward", TRAINING_SEED, 5)
    queries = ReasoningGymEnv(f"spell_backward#seed={TRAINING_SEED},size=5", instruction="").queries
    posed = [queries[queries.uid_at(index)] for index in range(len(queries))]
    assert [query.problem for query in posed] == [entry["question"] for entry in drawn.entries]


def test_the_order_of_the_names_depends_on_nothing_but_them():
    names = tasks.names()
    assert len(names) > 90 and names != sorted(names)
    assert names == sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def test_what_was_screened_comes_back(tmp_path):
    found = [Screened("a", None, 3, 2, 0.1), Screened("b", "too long")]
    tasks.write_screened(found, tmp_path / "tasks.jsonl")
    assert tasks.read_screened(tmp_path / "tasks.jsonl") == found
