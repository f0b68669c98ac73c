"""The task that pays for citing what an answer needs: its rewards by hand, and a short training run."""

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from algorithms.train.main import main
from examples.cite_sources import CiteSources, citations, f_score
from r3env.inspect import main as inspect

from .test_examples_train import OWN_DATA, check_run

NAME = "examples.cite_sources:CiteSources-v0"


@pytest.mark.parametrize("pays", ["outcome", "context", "rubric"])
def test_made_by_id_whatever_it_pays(pays):
    check_env(gymnasium.make(NAME, pays=pays).unwrapped)


@pytest.mark.parametrize("data", ["train", "heldout"])
def test_the_needed_passages_hold_the_answer_and_the_gold_earns_most(data):
    env = CiteSources(data)
    for query in env.queries.values():
        lines = query.problem.splitlines()
        needed = [lines[place - 1] for place in query.info["needed"]]
        assert sum(int(line.split(" has ")[1].split()[0]) for line in needed) == int(query.answer)
        assert all(line.startswith(f"[{place}] ") for line, place in zip(needed, query.info["needed"], strict=True))
        assert all(line.split()[1] in lines[-1] and line.split()[-1][:-1] in lines[-1] for line in needed)
        assert len(lines) == 9 and len(set(lines)) == 9
        verdict = env.verify(query, env.reference_response(query))
        assert verdict.correct and env.reward(query, verdict) == pytest.approx(2.0)
    assert not set(CiteSources("train").uids) & set(CiteSources("heldout").uids)


# F₂ of {2, 5} cited as: both 1; [2] alone 5·1/(8+1); with one more 5·2/(8+3); a wrong one alone 0.
@pytest.mark.parametrize(
    ("sources", "answer", "outcome", "context", "rubric"),
    [
        ("[2] [5]", 7, 1.0, 2.0, 1.0),
        ("[5], [2]", 8, 0.0, 0.1, 0.0),
        ("[2]", 7, 1.0, 1 + 5 / 9, 0.7 + 0.3 * 5 / 9),
        ("[2] [5] [1]", 7, 1.0, 1 + 10 / 11, 0.7 + 0.3 * 10 / 11),
        ("[2]", 8, 0.0, 0.1 * 5 / 9, 0.0),
        ("[1]", 7, 1.0, 1.0, 0.7),
        ("[1]", 8, 0.0, 0.0, 0.0),
    ],
)
def test_rewards_by_hand(sources, answer, outcome, context, rubric):
    for pays, expected in (("outcome", outcome), ("context", context), ("rubric", rubric)):
        env = CiteSources(pays=pays)
        (query,) = list(env.queries.values())[:1]
        query = type(query)("q", query.problem, "7", info={"needed": (2, 5)})
        verdict = env.verify(query, f"Sources: {sources} Answer: {answer}")
        assert env.reward(query, verdict) == pytest.approx(expected)
        assert verdict.correct == (answer == 7)


def test_the_last_list_and_the_last_answer_count():
    assert citations("Sources: [1] [2]\nNo. sources: [3]; [14] Answer: 5") == {3, 14}
    assert citations("I read [1] and [2].") == frozenset() and f_score(frozenset(), frozenset({1})) == 0
    env = CiteSources()
    query = env.query("cite-0")
    verdict = env.verify(query, f"Answer: 0. {env.reference_response(query)}")
    assert verdict.correct and verdict.feedback == "2 of the passages named are needed."
    assert env.verify(query, "no idea").reason == "no_answer"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"data": "tests"}, "data must be train or heldout"),
        ({"passages": 1}, "passages must be between 2 and 40"),
        ({"pays": "all"}, "pays must be outcome, context or rubric"),
        ({"share": 2.0}, "share between 0 and 1"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, line):
    with pytest.raises(ValueError, match=line):
        CiteSources(**arguments)


def test_inspect_shows_what_the_gold_earns(capsys):
    assert inspect(["--env", NAME, "--n", "2", "--gold"]) == 0
    assert capsys.readouterr().out.count("equal correct=True reward=2 (the end)") == 2


def test_trained(small_run, metrics, tmp_path, ray_session):
    options = "environment.options={pays: rubric, passages: 3}"
    assert main("grpo", [f"environment.id={NAME}", *OWN_DATA, *small_run, options]) == 0
    rollouts = check_run(metrics(), tmp_path / "run")
    assert all("together?" in str(rollout["prompt"]) for rollout in rollouts)
