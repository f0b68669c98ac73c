"""Generated prompts with precise instructions: what is posed, what is paid, and what a second turn says."""

import json

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from r3env.constraints.generation import OPENINGS, REQUIREMENTS, TOPICS
from r3env.constraints.requirements import Requirements
from r3env.core import Reason
from r3env.envs.constraints import ConstraintsEnv
from r3env.registry import CONSTRAINTS_ID


def test_it_is_registered_and_passes_gymnasiums_check():
    check_env(gymnasium.make(CONSTRAINTS_ID, disable_env_checker=True).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("level", [1, 2, 3, 5])
def test_every_prompt_has_a_text_that_meets_it(level):
    env = ConstraintsEnv("train", size=150, level=level)
    queries = [env.query(uid) for uid in env.uids]
    assert len({query.problem for query in queries}) == 150
    for query in queries:
        wanted = Requirements.parse(query.answer)
        assert len(set(wanted.kinds)) == len(wanted.kinds) == level
        assert env.verify(query, env.reference_response(query)).correct
        assert f"{wanted.low} " in query.problem and f"{wanted.high} words" in query.problem
        assert wanted.topic in query.problem


def test_the_same_arguments_make_the_same_prompts_and_others_others():
    texts = {
        name: [query.problem for query in ConstraintsEnv(name).queries.values()]
        for name in ("train#size=60", "train#size=60,seed=1", "train#size=30", "train#size=60,level=2")
    }
    assert texts["train#size=60"][:30] == texts["train#size=30"]
    assert [query.problem for query in ConstraintsEnv("train", size=60).queries.values()] == texts["train#size=60"]
    assert len({*texts["train#size=60"]} & {*texts["train#size=60,seed=1"]}) < 3
    assert len({*texts["train#size=60"]} & {*texts["train#size=60,level=2"]}) == 0


def test_the_splits_share_no_topic_and_no_wording():
    for ways in (TOPICS, OPENINGS, REQUIREMENTS):
        assert sum(map(len, ways.values())) == len(set().union(*ways.values()))


def test_kinds_take_turns_and_name_the_level():
    env = ConstraintsEnv("heldout", size=30, kinds=["bullets", "lowercase", "quoted"])
    levels = [query.level for query in env.queries.values()]
    assert {level: levels.count(level) for level in levels} == {"bullets": 10, "lowercase": 10, "quoted": 10}
    assert {query.level for query in ConstraintsEnv("heldout", size=5, level=3).queries.values()} == {"3"}


def bees(**arguments):
    env = ConstraintsEnv(size=40, max_turns=2, **arguments)
    uid = env.uids[0]
    wanted = Requirements("bees", 4, 8, [{"kind": "lowercase"}, {"kind": "commas", "n": 2}])
    query = env.queries[uid]
    env.queries._by_uid[uid] = type(query)(uid, "Write about bees.", wanted.dump(), "2", {"reference": "x"})
    env.reset(options={"uid": uid})
    return env, uid


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("bees, birds, and cats", 4),
        ("<think>Hm, what?</think>\nbees, birds, and cats", 4),
        ("Bees, birds, and cats", 3),
        ("bees, birds and cats", 3),
        ("bees, birds,", 3),
        ("wasps, birds, and cats", 3),
        ("Wasps", 0),
    ],
)
@pytest.mark.parametrize("partial", [False, True])
def test_all_requirements_are_paid_together_or_each_its_share(text, met, partial):
    env, _ = bees(partial_credit=partial)
    _, reward, terminated, _, info = env.step(text)
    assert reward == (met / 4 if partial else float(met == 4)) and info["correct"] is terminated is (met == 4)
    assert sum(info["rewards"].values()) == met and [*info["rewards"]] == ["topic", "length", "lowercase", "commas"]


@pytest.mark.parametrize("text", ["", "  \n", "<think>bees, birds, and cats"])
def test_without_a_text_there_is_no_answer(text):
    env, _ = bees(partial_credit=True)
    _, reward, _, _, info = env.step(text)
    assert (reward, info["verdict"]) == (0.0, Reason.NO_ANSWER)


def test_the_second_turn_says_which_requirement_failed_and_how():
    env, uid = bees()
    observation, *_, info = env.step("Wasps, birds")
    for said in ("does not name bees", "2 words, and must have 4 to 8", "capital letter W", "1 commas, not 2"):
        assert said in observation and said in info["feedback"]
    assert observation.endswith(env.reflection_guidance)
    env.reset(options={"uid": uid})
    assert env.step("bees, birds, and cats")[4].get("feedback") is None
    again, _ = env.reset(options={"uid": uid, "failed_attempt": "Wasps", "attempt_feedback": info["feedback"]})
    assert again == observation
    bare, _ = env.reset(options={"uid": uid, "failed_attempt": "Wasps"})
    assert bare == env.reflection_guidance


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": "test"}, "data: 'test' is none of train, development, heldout"),
        ({"data": "train#sed=1"}, "unknown key 'sed'; the nearest is 'seed'"),
        ({"data": "train#level=9"}, "level: must be a whole number, from 1 to 5, it is 9"),
        ({"size": 0}, "size: must be a whole number, at least 1, it is 0"),
        ({"seed": -1}, "seed: must be a whole number, at least 0"),
        ({"level": True}, "level: must be a whole number, from 1 to 5, it is True"),
        ({"kinds": ["bulets"]}, "kinds: there is no kind 'bulets'; the nearest is 'bullets'"),
        ({"kinds": "bullets"}, "kinds: must be a list of names"),
        ({"kinds": ["bullets"], "level": 2}, "level: must be a whole number, from 1 to 1"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        ConstraintsEnv(**arguments)


def test_kinds_that_exclude_each_other_are_an_error_that_says_what_to_change():
    env = ConstraintsEnv(kinds=["lowercase", "uppercase"], level=2, size=3)
    with pytest.raises(ValueError, match="only 0 of 3 prompts found; fix: a smaller size or level"):
        env.queries  # noqa: B018 - loads them


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"constraints": [{"kind": "bulets", "n": 2}]}, "nearest is 'bullets'"),
        ({"constraints": [{"kind": "bullets"}]}, "bullets needs n such as 2, not None"),
        ({"constraints": [{"kind": "bullets", "n": "2"}]}, "bullets needs n such as 2, not '2'"),
        ({"constraints": [{"kind": "quoted", "n": 2}]}, "quoted takes no n"),
        ({"topics": "x"}, "no requirements of a text"),
    ],
)
def test_requirements_that_cannot_be_checked_are_refused(change, message):
    good = {"topic": "bees", "low": 4, "high": 8, "constraints": [{"kind": "bullets", "n": 2}]}
    assert Requirements.parse(json.dumps(good)).kinds == ["bullets"]
    with pytest.raises(ValueError, match=message):
        Requirements.parse(json.dumps(good | change))
