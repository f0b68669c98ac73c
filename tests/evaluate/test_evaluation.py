"""Held-out evaluation against a table worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from algorithms.config.sections import EvaluationSettings
from algorithms.evaluation.sampling import evaluate_policy, make_truncator
from algorithms.grpo.config import GRPOConfig
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout.attempts import AttemptTruncator
from algorithms.rollout.types import Context, Sampling, Split
from algorithms.utils.rng import RngStream, request_seeds
from r3env import chat
from r3env.envs.math import MathEnv
from tests.hand_made import answer

TRAINING = Sampling(temperature=0.8, max_response_tokens=30)

# problem: correct and length of each of four samples; a length of 30 is the limit.
TABLE = {
    "easy": ((True, 5), (True, 7), (True, 6), (True, 10)),
    "medium": ((True, 9), (False, 30), (False, 12), (False, 20)),
    "hard": ((False, 30), (False, 30), (False, 11), (False, 30)),
}
PROMPT = [1, 2, 3]
GUIDANCE = "No."
TOKENIZER = load_tokenizer(resolve_model("embedded:tiny"))


class Player:
    """Answers the first try from `TABLE` and a second one by `second_try`; keeps what it was asked."""

    def __init__(self, second_try=lambda request: False, error=lambda request: None):
        self.calls, self.second_try, self.error = [], second_try, error

    def __call__(self, requests):
        self.calls.append(list(requests))
        return [self.rollout(request) for request in requests]

    def rollout(self, request):
        if request.prompt.attempt is None:
            correct, length = TABLE[request.uid][request.id % 4]
        else:
            correct, length = self.second_try(request), 4
        return answer(
            request,
            prompt=PROMPT,
            response=range(100, 100 + length),
            correct=correct,
            truncated=length == 30,
            verdict="equal" if correct else "different",
            weights_version=1,
            messages=({"role": "user", "content": request.uid}, {"role": "assistant", "content": f"try {request.id}"}),
            error=self.error(request),
        )


def evaluate(player, uids=tuple(TABLE), seed=0, reflection=False, context=None, **settings):
    chosen = EvaluationSettings(**{"samples": 4, "k": [1, 2, 4], **settings})
    longest = TRAINING.max_response_tokens
    truncator = AttemptTruncator(TOKENIZER, limit=None, context=context, guidance=GUIDANCE, max_response_tokens=longest)
    return evaluate_policy(player, uids, chosen, TRAINING, seed, truncator if reflection else None)


def test_the_numbers_are_those_of_the_table():
    metrics = evaluate(Player()).metrics()
    # pass@2 of one success in four: half of the six pairs hold it.
    assert metrics == {
        "pass@1": pytest.approx((1 + 1 / 4 + 0) / 3),
        "pass@2": pytest.approx((1 + 1 / 2 + 0) / 3),
        "pass@4": pytest.approx(2 / 3),
        "reward": pytest.approx((4 + 1) / 12),
        "mean_tokens": pytest.approx((28 + 71 + 101) / 12),
        "truncated": pytest.approx(4 / 12),
        "failed_share": 0.0,
        "problems": 3,
        "samples": 4,
        # An answer's tokens are those of every other one of its length: nine lengths among twelve.
        "distinct": 9 / 12,
    }


def test_the_share_of_correct_samples_is_given_by_problem():
    assert evaluate(Player()).share_correct() == {"easy": 1.0, "medium": 0.25, "hard": 0.0}


def test_problems_keep_their_rows_and_samples_their_order():
    evaluation = evaluate(Player(), uids=("hard", "easy"))
    assert [[one.correct for one in answers] for answers in evaluation.answers] == [[False] * 4, [True] * 4]
    assert [[one.tokens for one in answers] for answers in evaluation.answers] == [[30, 30, 11, 30], [5, 7, 6, 10]]
    assert [[one.uid for one in answers] for answers in evaluation.answers] == [["hard"] * 4, ["easy"] * 4]
    assert [[one.sample for one in answers] for answers in evaluation.answers] == [[0, 1, 2, 3]] * 2


def test_requests_are_held_out_sampled_as_in_training_and_seeded_apart():
    player = Player()
    evaluate(player)
    (requests,) = player.calls
    assert {request.split for request in requests} == {Split.EVALUATION}
    assert {request.sampling for request in requests} == {TRAINING}
    assert len({request.seed for request in requests}) == len(requests) == 12
    assert [request.id for request in requests] == list(range(12))
    assert [request.group for request in requests] == [0] * 4 + [1] * 4 + [2] * 4


def test_each_evaluation_of_a_run_draws_with_the_same_seeds_another_run_with_others():
    player = Player()
    evaluate(player), evaluate(player), evaluate(player, seed=1)
    first, second, other = ([request.seed for request in call] for call in player.calls)
    assert first == second
    assert not set(first) & set(other)


def test_the_sections_own_sampling_wins():
    player = Player()
    evaluate(player, temperature=0.3)
    evaluate(player, top_p=0.5)
    assert player.calls[0][0].sampling == replace(TRAINING, temperature=0.3)
    assert player.calls[1][0].sampling == replace(TRAINING, top_p=0.5)


def test_a_limit_keeps_the_first_problems():
    evaluation = evaluate(Player(), limit=2)
    assert evaluation.uids == ("easy", "medium")
    assert evaluation.metrics()["problems"] == 2


def test_without_reflection_nothing_is_asked_twice():
    player = Player()
    assert "pass@1_after_reflection" not in evaluate(player).metrics()
    assert len(player.calls) == 1


def test_reflection_gives_each_failure_one_more_turn():
    player = Player(second_try=lambda request: request.uid == "medium")
    evaluation = evaluate(player, reflection=True)
    assert evaluation.metrics()["pass@1_after_reflection"] == pytest.approx((4 + 4 + 0) / 12)
    assert evaluation.metrics()["pass@1"] == pytest.approx(5 / 12)
    first, again = player.calls
    assert [request.uid for request in again] == ["medium"] * 3 + ["hard"] * 4
    assert [request.id for request in again] == list(range(7))
    assert {request.context for request in again} == {Context.REFLECTION}
    seeds = request_seeds(0, 0, RngStream.EVALUATION, 24)
    assert [request.seed for request in first] == seeds[:12]
    assert [request.seed for request in again] == [seeds[12 + n] for n in (5, 6, 7, 8, 9, 10, 11)]


def test_the_second_turn_quotes_the_failed_response_as_it_was():
    player = Player()
    evaluate(player, uids=("medium",), reflection=True)
    attempts = [request.prompt.attempt for request in player.calls[1]]
    assert [attempt.prompt_tokens.tolist() for attempt in attempts] == [PROMPT] * 3
    assert [len(attempt.response_tokens) for attempt in attempts] == [30, 12, 20]
    assert [attempt.text for attempt in attempts] == ["try 1", "try 2", "try 3"]


def test_on_a_short_context_the_middle_is_left_out_so_that_the_second_answer_has_its_room():
    player = Player()
    turn = len(chat.next_turn(TOKENIZER, [], GUIDANCE))
    context = len(PROMPT) + 20 + turn + TRAINING.max_response_tokens
    evaluate(player, uids=("medium",), reflection=True, context=context)
    attempts = [request.prompt.attempt for request in player.calls[1]]
    assert [len(attempt.response_tokens) for attempt in attempts] == [20, 12, 20]
    first = attempts[0].response_tokens.tolist()
    assert first[0] == 100 and first[-1] == 129 and attempts[1].text == "try 2"


def test_the_quoter_of_a_configuration_leaves_the_whole_answer_room():
    config = GRPOConfig().env_runners(max_response_tokens=500).evaluation(reflection=True)
    truncator = make_truncator(config, TOKENIZER, MathEnv(reflection_guidance=GUIDANCE), 1024)
    player = Player()
    player.rollout = lambda request, own=player.rollout: _long(own(request), 900)
    evaluate_policy(player, ("hard",), EvaluationSettings(samples=1, k=[1]), TRAINING, 0, truncator)
    (again,) = player.calls[1]
    turn = chat.next_turn(TOKENIZER, again.prompt.attempt.response_tokens.tolist(), GUIDANCE)
    assert len(PROMPT) + len(again.prompt.attempt.response_tokens) + len(turn) + 500 == 1024
    assert make_truncator(GRPOConfig(), TOKENIZER, MathEnv(), 1024) is None


def _long(rollout, length):
    tokens = np.array([*PROMPT, *[100] * length], np.int32)
    return replace(rollout, tokens=tokens, loss_mask=np.repeat([False, True], [len(PROMPT), length]))


def test_an_answer_that_could_not_be_graded_counts_as_wrong_and_gets_no_second_turn():
    def broken(request):
        return "timeout" if request.uid == "hard" and request.prompt.attempt is None else None

    player = Player(second_try=lambda request: True, error=broken)
    evaluation = evaluate(player, reflection=True)
    assert evaluation.metrics()["pass@1_after_reflection"] == pytest.approx(8 / 12)
    assert {request.uid for request in player.calls[1]} == {"medium"}


def test_when_all_is_right_no_second_turn_is_played():
    player = Player()
    evaluation = evaluate(player, uids=("easy",), reflection=True)
    assert len(player.calls) == 1
    assert evaluation.metrics()["pass@1_after_reflection"] == evaluation.metrics()["pass@1"] == 1


def test_temperature_0_is_greedy_and_not_the_training_temperature():
    player = Player()
    evaluate(player, samples=1, k=[1], temperature=0.0)
    assert {request.sampling.temperature for request in player.calls[0]} == {0.0}
    assert len(player.calls[0]) == len(TABLE)
