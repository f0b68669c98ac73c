"""What a hook returns has to be of use: else one line names the class, the hook, what came, and the fix."""

import numpy as np
import pytest

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.advantages import AdvantageEstimator
from algorithms.grpo.mechanism import Mechanism, Settings
from algorithms.grpo.plugin_checks import PluginError, check_rewards, check_terms, checked_advantages, checked_state
from algorithms.grpo.query_sampler import EpochSampler, QuerySampler
from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.losses.base import LossTerm
from algorithms.losses.term import term
from algorithms.rollout.types import Context, Request, Sampling
from tests.hand_made import answer

from .simulated import services

LENGTHS = (1, 3)


def group() -> Group:
    prompt = Prompt("q")
    rollouts = [
        answer(Request(number, prompt, 0, 0, Sampling(1.0, 1.0, 8)), prompt=[1], response=[2] * length, correct=True)
        for number, length in enumerate(LENGTHS)
    ]
    assert prompt.context == Context.PLAIN
    return Group(prompt, [Sample(rollout, reward=rollout.reward) for rollout in rollouts])


class Mine(AdvantageEstimator):
    """Somebody's own."""


@pytest.mark.parametrize(
    "found",
    [np.array([1.0, -1.0]), [1, -1], [np.zeros(1, np.float32), np.zeros(3, np.float32)], [0.5, np.zeros(3)]],
    ids=["array", "list", "per token", "mixed"],
)
def test_advantages_for_each_response_or_each_of_its_tokens_are_taken_as_they_are(found):
    assert checked_advantages(Mine(), group(), found) is found


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (None, "returned a NoneType \\("),
        (0.5, "returned a float \\("),
        (["x", "y"], "returned a list \\("),
        ([1.0], r"returned 1 values for a group of 2 responses; fix: return float \[G\], or for each response"),
        ([np.zeros(1), np.zeros(2)], r"returned an array of shape \(2,\) for a response of 3 tokens; fix: "),
        (np.zeros((2, 1)), r"returned an array of shape \(1,\) for a response of 3 tokens; fix: "),
        ([1.0, np.nan], "returned nan for a group with the rewards 1, 1; fix: return finite numbers, also for a group"),
        ([0.0, np.array([0, 0, np.inf])], "returned inf for a group with the rewards 1, 1"),
    ],
)
def test_other_advantages_are_refused(found, line):
    with pytest.raises(PluginError, match=rf"^{__name__}:Mine.advantages {line}"):
        checked_advantages(Mine(), group(), found)


def test_a_policy_that_overflowed_is_not_the_estimators_fault():
    overflowed = group()
    overflowed.samples[0].old_logprobs = np.array([np.nan], np.float32)
    overflowed.samples[0].shaped_reward = np.nan
    checked_advantages(Mine(), overflowed, [1.0, np.nan])
    check_rewards(Mine(), overflowed)


@pytest.mark.parametrize("paid", [np.nan, np.inf, "1", np.zeros(2)])
def test_a_reward_that_is_no_finite_number_is_refused(paid):
    paying = group()
    check_rewards(Mine(), paying)
    paying.samples[1].shaped_reward = np.float32(2.0)
    check_rewards(Mine(), paying)
    paying.samples[1].shaped_reward = paid
    with pytest.raises(
        PluginError, match="Mine.rewards set shaped_reward to .*; fix: set a finite shaped_reward, or None"
    ):
        check_rewards(Mine(), paying)


@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        (["q01"], "returned 1 queries where 2 were asked for; fix: repeat some"),
        (["q01", "x"], "returned 'x'; fix: return uids of self.services.uids"),
        (["q01", 2], "returned 2; fix: return uids of self.services.uids"),
        (None, "returned None; fix: return a list of 2 uids"),
        ("q01", "returned 'q01'; fix: return a list of 2 uids"),
    ],
)
def test_a_sampler_has_to_choose_as_many_training_queries_as_the_step_wants(chosen, line):
    class Few(QuerySampler):
        def choose(self, count, step, occasion=0):
            return chosen

    sampler = Few(Settings(), services())
    with pytest.raises(PluginError, match=f"Few.choose {line}"):
        sampler.take(2, 0)
    assert sampler.drawn == 0
    assert len(EpochSampler(Settings(), services()).take(2, 0)) == 2


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (None, "returned None; fix: return a dict of NumPy arrays, and a dict of what JSON holds"),
        ({"seen": 1}, "returned .*seen.*; fix: "),
        (({}, {"seen": {1, 2}}), r"returned set is not a JSON value: \{1, 2\}; fix: "),
        (({}, {"rates": np.zeros(2)}), r"returned ndarray is not a JSON value: .*; fix: "),
        (({"rates": [0.0]}, {}), "returned rates, which is no array of numbers; fix: "),
        (({"rates": np.array([{}])}, {}), "returned rates, which is no array of numbers; fix: "),
    ],
)
def test_a_state_that_fits_no_checkpoint_is_refused(state, line):
    with pytest.raises(PluginError, match=f"Mechanism.state {line}"):
        checked_state(Mechanism(Settings(), services()), state)


def test_a_state_of_numpys_numbers_becomes_plain_data():
    arrays = {"rates": np.zeros(2)}
    assert checked_state(Mechanism(Settings(), services()), (arrays, {"n": np.int64(3)})) == (arrays, {"n": 3})


@pytest.mark.parametrize(
    ("terms", "inputs", "line"),
    [
        ({"anchor": 0.1}, {}, "set the term 'anchor' .*; fix: name one with term"),
        ({term("anchr"): 0.1}, {}, "set the term .*did you mean anchor.*; fix: name one with term"),
        ({term("policy", dual_clp=3.0): 1.0}, {}, "set the term .*a row has no dual_clp of its own.*"),
        ({term("policy", importance_cap=0.0): 1.0}, {}, "set the term .*known: clip_high, clip_low, .*"),
        (
            {term("kl", coefficient=0.1): 1.0},
            {},
            "set the term kl, which reads reference_logprobs; fix: set training.beta",
        ),
        (
            {term(f"{__name__}:Aimed"): 1.0},
            {},
            r"set the term .*, which reads targets; fix: set sample.inputs\['targets'\]",
        ),
        (
            {term(f"{__name__}:Misspelled"): 1.0},
            {},
            r"set the term .*, which reads sampling_logprob \(did you mean sampling_logprobs\?\); fix: rename ",
        ),
        (
            {term("anchor"): np.zeros(7)},
            {},
            r"set the weight of anchor to an array of shape \(7,\) for a response of 1 tokens; fix: ",
        ),
        ({term("anchor"): np.nan}, {}, "set the weight of anchor to nan; fix: set a finite number, or float"),
        ({term("anchor"): "much"}, {}, "set the weight of anchor to 'much'; fix: "),
        ({}, {"advantages": 0.0}, r"set inputs\['advantages'\]; fix: give it another name"),
    ],
)
def test_a_term_that_the_learner_could_not_compute_is_refused_before_it_is_sent(terms, inputs, line):
    sample, *_ = group().samples
    sample.old_logprobs = np.zeros(1, np.float32)
    check_terms(Mine(), "before_update", [sample], TrainingSettings())
    sample.terms, sample.inputs = terms, inputs
    with pytest.raises(PluginError, match=f"Mine.before_update {line}"):
        check_terms(Mine(), "before_update", [sample], TrainingSettings())


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (
            np.ones(2),
            r"an array of shape \(2,\) for a response of 3 tokens; fix: set a finite number, or float \[3\], ",
        ),
        (np.ones((3, 1)), r"an array of shape \(3, 1\) for a response of 3 tokens; fix: "),
        (np.array([0.0, np.inf, 0.0]), "inf; fix: set a finite number"),
        ("high", "'high'; fix: set a finite number"),
        (None, "None; fix: set a finite number"),
    ],
)
def test_an_input_is_a_finite_number_or_a_value_per_token(value, line):
    _, sample = group().samples
    for right in (1, np.float32(0.5), np.ones(3, np.float32), [1.0, 2.0, 3.0]):
        sample.inputs = {"targets": right}
        check_terms(Mine(), "before_update", [sample], TrainingSettings())
    sample.inputs = {"targets": value}
    with pytest.raises(PluginError, match=rf"Mine.before_update set inputs\['targets'\] to {line}"):
        check_terms(Mine(), "before_update", [sample], TrainingSettings())


def test_an_input_may_be_no_number_where_the_policy_overflowed():
    sample, _ = group().samples
    sample.old_logprobs, sample.inputs = np.array([np.nan], np.float32), {"targets": np.nan}
    check_terms(Mine(), "before_update", [sample], TrainingSettings())


class Aimed(LossTerm):
    """A term that reads what rows carry."""

    def token_loss(self, logprobs, targets):
        return logprobs - targets


class Misspelled(LossTerm):
    """A term that means to read what every row has."""

    def token_loss(self, logprobs, sampling_logprob):
        return logprobs - sampling_logprob
