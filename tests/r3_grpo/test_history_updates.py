"""What a step writes to the history."""

from dataclasses import replace

import numpy as np
import pytest

from algorithms.grpo.types import with_prompt_of
from algorithms.r3_grpo.reflection import distillation_gap, distilled_samples
from algorithms.rollout.types import Context, Turn

from .conftest import (
    PROMPT,
    REFLECTION_PROMPT,
    batch_of,
    finish,
    logprob_under,
    plain_group,
    reflected,
    reflection_group,
    sample,
    stored,
)


def responses(history):
    return sorted(entry.response_tokens.tolist() for entry in stored(history))


def store(algorithm, groups):
    """The stages that matter to it."""
    return finish(algorithm, *groups)


def test_replayed_samples_are_not_written_back(stub):
    algorithm = stub(reflection={"distill": False})
    batch = store(
        algorithm,
        [
            plain_group(sample([10]), sample([11]), sample([12], True, replayed=True)),
            reflection_group(reflected([20], True), reflected([21], replayed=True)),
        ],
    )
    assert responses(algorithm.history) == [[10], [11], [20]]
    assert batch.record["replay/stored"] == 3


def test_replayed_samples_and_reflected_ones_count_for_no_statistic(stub):
    algorithm = stub()
    store(
        algorithm,
        [
            plain_group(sample([10]), sample([11]), sample([12], True, replayed=True)),
            reflection_group(reflected([20], True), reflected([21], True)),
        ],
    )
    assert algorithm.history.attempts("q") == 2
    assert algorithm.history.mean("q", "correct") == 0


def test_a_ranking_reward_is_not_remembered(stub):
    algorithm = stub()
    cut_off = sample([10], truncated=True)
    cut_off.shaped_reward = -0.05
    store(algorithm, [plain_group(cut_off)])
    assert [entry.reward for entry in stored(algorithm.history)] == [0.0]
    assert algorithm.history.mean("q", "reward") == 0


def test_a_correct_reflected_answer_is_distilled_to_the_bare_prompt(stub):
    algorithm = stub()
    store(algorithm, [plain_group(sample([10, 11, 12])), reflection_group(reflected([20, 21], True), reflected([22]))])
    (distilled,) = [e for e in stored(algorithm.history) if e.correct and e.context == Context.DISTILLED]
    assert distilled.tokens.tolist() == [*PROMPT, 20, 21]
    assert distilled.loss_mask.tolist() == [False, False, True, True]
    np.testing.assert_allclose(distilled.old_logprobs, [logprob_under(PROMPT)] * 2)
    assert algorithm.metric("reflection/distilled") == 1

    (as_it_was,) = [e for e in stored(algorithm.history) if e.correct and e.context == Context.REFLECTION]
    assert as_it_was.tokens.tolist() == [*REFLECTION_PROMPT, 20, 21]
    assert as_it_was.old_logprobs[-1] == pytest.approx(logprob_under(REFLECTION_PROMPT))


@pytest.mark.parametrize("first", [{"borrowed": True}, {"replayed": True}])
def test_what_other_mechanisms_put_first_into_the_plain_group_is_not_taken_for_its_prompt(stub, first):
    """Scaf-GRPO puts a hinted answer in any place, behind its own prompt."""
    algorithm = stub()
    foreign = replace(sample([30], True, prompt=(*PROMPT, 77)), **first)
    store(algorithm, [plain_group(foreign, sample([10])), reflection_group(reflected([20], True))])
    (distilled,) = (e for e in stored(algorithm.history) if e.correct and e.context == Context.DISTILLED)
    assert distilled.tokens.tolist() == [*PROMPT, 20]
    replaced = plain_group(foreign)
    replaced.left_out = [sample([10])]
    (pair,) = distilled_samples([replaced, reflection_group(reflected([21], True))])
    assert pair[1].rollout.tokens.tolist() == [*PROMPT, 21]


def test_a_distilled_answer_answers_a_plain_group_that_fails(stub):
    algorithm = stub(replay={"contexts": "same"})
    store(algorithm, [plain_group(sample([10])), reflection_group(reflected([20], True))])
    group = plain_group(sample([11]), sample([12]))
    algorithm.compose_groups(batch_of(group))
    assert [one.rollout.tokens.tolist() for one in group.samples if one.replayed] == [[*PROMPT, 20]]


def test_a_flood_of_distilled_answers_keeps_the_plain_ones(stub):
    algorithm = stub()
    algorithm.history.capacity = 2
    store(algorithm, [plain_group(sample([10], True), sample([11]))])
    store(algorithm, [plain_group(sample([11])), reflection_group(*(reflected([20 + n], True) for n in range(4)))])
    contexts = [entry.context for entry in stored(algorithm.history) if entry.correct]
    assert contexts.count(Context.PLAIN) == 1 and contexts.count(Context.DISTILLED) == 2


def test_a_replayed_success_is_not_distilled(stub):
    algorithm = stub()
    store(
        algorithm, [plain_group(sample([10])), reflection_group(reflected([20]), reflected([21], True, replayed=True))]
    )
    assert responses(algorithm.history) == [[10], [20]]


def test_without_distillation_nothing_enters_under_the_bare_prompt(stub):
    algorithm = stub(reflection={"distill": False})
    store(algorithm, [plain_group(sample([10])), reflection_group(reflected([20], True))])
    assert [entry.context for entry in stored(algorithm.history) if entry.correct] == [Context.REFLECTION]


def test_a_bare_sample_takes_the_plain_rollouts_prompt_and_nothing_else_of_it():
    answer = reflected([20, 21], True, logprob=-7.0)
    start = answer.rollout.prompt_length
    answer.rollout = replace(answer.rollout, turns=(Turn(start, start + 2, state="s"),))
    bare = with_prompt_of(answer, sample([10, 11, 12], prompt=(7, 8, 9)).rollout)
    assert bare.rollout.turns == (Turn(3, 5, state="s"),)
    assert bare.rollout.tokens.tolist() == [7, 8, 9, 20, 21]
    assert bare.rollout.loss_mask.tolist() == [False] * 3 + [True] * 2
    assert bare.rollout.context == Context.PLAIN
    assert bare.rollout.correct and bare.reward == 1.0
    assert bare.old_logprobs is None


@pytest.mark.parametrize(("limit", "kept"), [(None, 2), (0.3, 1), (0.05, 0)])
def test_an_answer_that_lives_on_the_attempt_is_not_distilled(stub, limit, kept):
    """Each answer's log-probs after the attempt lie so many nats a token above those under the bare prompt."""
    algorithm = stub(reflection={"distill_gap": limit})
    answers = [reflected([20, 21], True), reflected([22, 23], True)]
    for answer, gap in zip(answers, (0.1, 0.5), strict=True):
        logprobs = np.full(2, logprob_under(PROMPT) + gap, np.float32)
        answer.rollout = replace(answer.rollout, sampling_logprobs=logprobs)
    store(algorithm, [plain_group(sample([10])), reflection_group(*answers)])
    bare = [e for e in stored(algorithm.history) if e.correct and e.context == Context.DISTILLED]
    assert [e.response_tokens.tolist() for e in bare] == [[20, 21], [22, 23]][:kept]
    assert algorithm.metric("reflection/distilled") == kept
    assert algorithm.metric("reflection/distill_gap") == pytest.approx(0.3)


def test_an_answer_without_log_probs_under_the_bare_prompt_loses_everything():
    answer = reflected([20, 21], True)
    bare = with_prompt_of(answer, sample([10]).rollout)
    assert distillation_gap(answer, bare) == np.inf
    bare.old_logprobs = np.array([np.nan, 0.0], np.float32)
    assert distillation_gap(answer, bare) == np.inf
