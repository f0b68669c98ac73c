"""Retrieve, then answer: what a search finds, what each part of the reward is for, and how the process fades."""

import math
from types import SimpleNamespace

import pytest

from algorithms.grpo.mechanism import Group, Prompt, Sample, Services, StepBatch
from algorithms.train.main import main
from examples.retrieve_answer import CORPUS, FACTS, REFLECT, ProcessSchedule, RetrieveAnswer, ScheduleSettings, search

from .test_examples_train import OWN_DATA, RETRIEVE_ANSWER, check_run

TOWN, PERSON, THING = FACTS[0]


@pytest.fixture
def env():
    environment = RetrieveAnswer()
    environment.reset(options={"uid": TOWN})
    return environment


def test_a_search_ranks_by_the_rarest_common_words():
    assert search(f"mayor of {TOWN}", CORPUS, 3)[0] == CORPUS[0]
    assert search(f"{PERSON}?", CORPUS, 2) == [CORPUS[1], CORPUS[0]], "the shorter of two that hold both words"
    assert search("nothing of this", ["a b", "c"], 3) == [] and len(search("the mayor", CORPUS, 40)) == len(FACTS)


def test_bm25_by_hand():
    corpus = ["x y", "x x z z", "w"]
    # Of 3 chunks, 7/3 words long on average, 2 hold x and 1 holds z; y is as rare as z, in a shorter chunk.
    rare, common = math.log(1 + 2.5 / 1.5), math.log(1 + 1.5 / 2.5)

    def weight(often, length):
        return often * 2.2 / (often + 1.2 * (0.25 + 0.75 * length / (7 / 3)))

    first = common * weight(1, 2) + rare * weight(1, 2)
    second = common * weight(2, 4)
    assert first > second and search("x y", corpus, 3) == ["x y", "x x z z"]
    second, first = common * weight(2, 4) + rare * weight(2, 4), common * weight(1, 2)
    assert second > first and search("z x", corpus, 3) == ["x x z z", "x y"]
    assert search("x", corpus, 1) == (["x y"] if weight(1, 2) > weight(2, 4) else ["x x z z"])


def test_the_whole_way_is_paid_for_each_part(env):
    text, reward, over, _, info = env.step(f"<think>who?</think><search>mayor of {TOWN}</search>")
    assert text.splitlines()[0] == CORPUS[0] and (reward, over) == (0, False)
    assert info["state"] == "missing" and info["verdict"] == "no_answer"
    text, reward, over, _, info = env.step(f"<search>{PERSON} collects</search>")
    assert CORPUS[1] in text.splitlines() and info["state"] == "found"
    text, reward, over, _, info = env.step("<think>so</think><answer>nothing</answer>")
    assert (text, reward, info["verdict"]) == (REFLECT, 0, "different")
    _, reward, over, _, info = env.step(f"<think>no</think><answer> {THING.title()}. </answer>")
    assert over and info["correct"] and reward == pytest.approx(1 + 0.6 * 3 / 4 + 0.3 + 0.3)


@pytest.mark.parametrize(
    ("turns", "reward"),
    [
        ([f"<answer>{THING}</answer>"], 1.0),
        ([f"<think>x</think><answer>{THING}</answer>"], 1.6),
        ([f"<think> </think><answer>{THING}</answer>"], 1.0),
        (["<answer>no</answer>", f"<answer>{THING}</answer>"], 1.3),
        (["<answer>no</answer>"] * 5, 0.0),
        (["<think>x</think><answer>no</answer>"] * 5, 0.6),
        ([THING] * 5, 0.0),
        ([f"<search>{PERSON} mayor</search>"] * 5, 0.3),
        (["<search>?</search>", f"<answer>no</answer><answer>{THING}</answer>"], 1.0),
    ],
)
def test_rewards_by_hand(env, turns, reward):
    paid = [env.step(turn) for turn in turns]
    assert [over for _, _, over, _, _ in paid] == [False] * (len(turns) - 1) + [True]
    assert sum(each for _, each, _, _, _ in paid) == pytest.approx(reward)


def test_an_episode_begins_with_nothing_found(env):
    for turn in (f"<search>{PERSON} mayor</search>", f"<answer>{THING}</answer>"):
        _, _, _, _, info = env.step(turn)
    assert info["state"] == "found"
    _, info = env.reset(options={"uid": TOWN})
    assert info["state"] == "missing" and env.step(f"<answer>{THING}</answer>")[1] == 1.0
    text, _ = env.reset(options={"uid": TOWN, "failed_attempt": "<answer>no</answer>"})
    assert text == REFLECT


def schedule(step, **settings):
    services = Services(config=None, seed=0, uids=[], query=print, score=print, truncator=print, step=step)
    return ProcessSchedule(ScheduleSettings(**settings), services)


def sample(reward, correct, replayed=False):
    return Sample(SimpleNamespace(reward=reward, correct=correct), reward=reward, replayed=replayed)


def test_the_process_fades_out_and_the_answer_stays():
    weights = [schedule(step, steps=100).weight(step) for step in (0, 80, 90, 100, 10**6)]
    assert weights == pytest.approx(
        [1 / (1 + math.exp(-9)), 1 / (1 + math.exp(-1)), 0.5, 1 / (1 + math.e), 0], abs=1e-9
    )
    one = schedule(90, steps=100)
    group = Group(Prompt("q"), [sample(1.9, True), sample(0.6, False), sample(2.2, True, replayed=True)])
    group.samples[1].reward, group.samples[1].length_penalty = 0.5, -0.1
    one.rewards(group)
    assert [each.training_reward for each in group.samples] == pytest.approx([1.45, 0.2, 2.2])
    long = Group(Prompt("q"), [sample(1.9, True)])
    long.samples[0].reward *= 1.5  # its length's bonus, which stays the answer's
    schedule(10**6, steps=100).rewards(long)
    assert long.samples[0].training_reward == pytest.approx(1.5)
    one.update_history(StepBatch(90, groups=[group]))
    assert one.metrics == {
        "process_schedule/weight": pytest.approx(0.5),
        "process_schedule/process": pytest.approx(0.75),  # fmt: skip
    }


def test_trained_with_the_schedule(small_run, metrics, tmp_path, ray_session):
    own = ["training.mechanisms=[examples.retrieve_answer:ProcessSchedule]", "process_schedule.steps=2"]
    assert (
        main("grpo", [f"environment.id={RETRIEVE_ANSWER}", *OWN_DATA, *small_run, *own, "environment.max_turns=2"]) == 0
    )
    rows = metrics()
    check_run(rows, tmp_path / "run")
    expected = [1 / (1 + math.exp((step - 1.8) / 10)) for step in (0, 1)]
    assert [row["process_schedule/weight"] for row in rows] == pytest.approx(expected)
    assert all(row["process_schedule/process"] == 0 for row in rows), "the embedded model neither thinks nor searches"
