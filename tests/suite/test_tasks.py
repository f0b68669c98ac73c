"""The filter of tasks, on made-up generators whose flaws are known."""

import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_text_that_all_prompts_share_counts_as_one_token(monkeypatch):
    one = generated(monkeypatch, question="Answer in " + "x" * 900 + " words: {index}/{seed}")
    assert one.reason is None and one.prompt == 1 + len(f"7/{HELD_OUT_SEED}")


def test_shared_pieces_do_not_overlap_and_the_longest_comes_first():
    potatoes = ["one potato two potato 1", "9 one potato, two potato", "one potato two potato"]
    assert tasks.shared(potatoes) == [" two potato", "one potato"]
    assert tasks.shared(["Add 1 + 2. Reply with the sum.", "Add 3 + 45. Reply with the sum."]) == [
        ". Reply with the sum."
    ]
    assert tasks.shared(["abc", "xyz"]) == []


@given(st.lists(st.text("ab", max_size=30), min_size=2, max_size=4))
def test_the_longest_shared_piece_is_that_of_a_search_through_all(texts):
    first = texts[0]
    pieces = [first[i:j] for i in range(len(first)) for j in range(i + 1, len(first) + 1)]
    longest = max((len(piece) for piece in pieces if all(piece in text for text in texts)), default=0)
    assert len(tasks._longest_shared(first, [[text] for text in texts])) == longest


def test_a_generator_that_does_not_end_is_left_out(monkeypatch):
    monkeypatch.setattr(tasks, "GENERATION_S", 1)
    monkeypatch.setattr(tasks, "problems", lambda *_: next(one for one in itertools.count() if one < 0))
    assert tasks.screen("made_up", LIMITS).reason == "cannot be generated: TimeoutError"


def test_a_task_is_tried_at_levels_of_its_curriculum_after_its_defaults():
    assert tasks.variants("chain_sum", LIMITS) == ["chain_sum", "chain_sum-level0", "chain_sum-level1"]
    assert tasks.plain("chain_sum-level1") == tasks.plain("chain_sum") == "chain_sum"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"question": "{index}" * 150}, "prompt of more than 96 tokens"),
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


@pytest.mark.parametrize("name", ["spell_backward", "chain_sum-level1"])
def test_the_problems_are_those_that_the_environment_poses(name):
    from r3env.envs.reasoning_gym import ReasoningGymEnv

    drawn = tasks.problems(name, TRAINING_SEED, 5)
    queries = ReasoningGymEnv(tasks.generated(name, TRAINING_SEED, 5), instruction="").queries
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
