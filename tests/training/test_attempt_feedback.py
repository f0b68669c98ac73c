"""What the environment said about a failure stands in the second turn that quotes it."""

import pytest

from algorithms.rollout.types import Context

from .runs_of import train

ONE = {"size": 1, "kinds": ["commas"]}


@pytest.fixture(name="algorithm")
def algorithm_fixture(r3_config, build):
    config = (
        r3_config.environment(
            "r3env/Constraints-v0", data=None, instruction=None, reflection_guidance="Again.", env_config=ONE
        )
        .training(group_size=2, queries_per_step=1, minibatches=1)
        .reflection(enabled=True, min_attempts=1, max_share=1.0)
        .evaluation(data=None, samples=1, k=[1], reflection=True)
    )
    return build(config)


def turn_after_the_attempt(rollout):
    return rollout.messages[-2]["content"]


def turn_for(feedback):
    assert "It has " in feedback
    return f"Your text does not meet the requirements. {feedback}\nAgain."


def test_a_second_turn_in_training_says_what_was_wrong(algorithm):
    train(algorithm, 1)
    said = {turn_for(sample.rollout.feedback) for group in algorithm.batch.rolled_out for sample in group.fresh}
    train(algorithm, 1)
    reflected = [group for group in algorithm.batch.rolled_out if group.prompt.context == Context.REFLECTION]
    assert reflected
    assert {turn_after_the_attempt(sample.rollout) for group in reflected for sample in group.fresh} <= said


def test_a_second_turn_in_an_evaluation_says_what_was_wrong(algorithm):
    algorithm.evaluate()
    ((answer,),) = algorithm.evaluation.answers
    assert turn_after_the_attempt(answer.second) == turn_for(answer.first.feedback)
