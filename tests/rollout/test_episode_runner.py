"""Episodes: what the policy saw is what is trained on."""

import functools
import threading
import time

import numpy as np
import pytest

from algorithms.rollout import episode_runner
from algorithms.rollout.conversation import conversation
from algorithms.rollout.types import Attempt, Context, Prompt, Request, Sampling
from benchmarks.embedded_model.arithmetic import REFLECTION_GUIDANCE
from r3env import chat
from r3env.core import Query, Reason, Verdict, VerifiableEnv
from r3env.envs.math import MathEnv

from .full_forward import logprobs
from .requests import LIMIT, SAMPLING, requests_of


class Agreeable(VerifiableEnv):
    """Every answer is right."""

    def load_queries(self):
        return [Query("a", "7+1+9-5-2", "10")]

    def verify(self, query, response):
        return Verdict(True, Reason.EQUAL)


class OneSession(Agreeable):
    """A server that holds one episode: the next one begins when it ends."""

    free = threading.Semaphore(1)

    def reset(self, **arguments):
        assert self.free.acquire(timeout=60.0), "its episodes wait for each other"
        return super().reset(**arguments)

    def step(self, action):
        outcome = super().step(action)
        self.free.release()
        return outcome


def test_episodes_that_have_begun_end_while_others_wait_to_begin(runner_with, monkeypatch):
    monkeypatch.setattr(episode_runner, "BEGINNING_S", 0.2)
    rollouts = runner_with(OneSession).rollout(requests_of(["a"] * 3))
    assert [(rollout.error, rollout.correct) for rollout in rollouts] == [(None, True)] * 3


@pytest.fixture
def patient(monkeypatch):
    """Batches do not depend on how busy the machine is: no environment here is slow by itself."""
    monkeypatch.setattr(episode_runner, "PATIENCE_S", 600.0)


@pytest.fixture
def math(runner_with):
    return functools.partial(runner_with, MathEnv, data="embedded:train", instruction="")


def runs_of(rollout):
    """The token sequence cut where the loss mask flips: [(policy's own?, tokens), …]."""
    edges = np.flatnonzero(np.diff(rollout.loss_mask.astype(int))) + 1
    parts = zip(np.split(rollout.tokens, edges), np.split(rollout.loss_mask, edges), strict=True)
    return [(bool(mask[0]), tokens.tolist()) for tokens, mask in parts]


def first_prompt(tokenizer, text):
    return chat.first_turn(tokenizer, [{"role": "user", "content": text}])


def test_one_turn_is_the_prompt_and_the_response(math, tokenizer):
    uids = MathEnv("embedded:train").uids[:6]
    for uid, rollout in zip(uids, math().rollout(requests_of(uids)), strict=True):
        problem = MathEnv("embedded:train").query(uid).problem
        (own, prompt), (policys, response) = runs_of(rollout)
        assert (own, policys) == (False, True)
        assert prompt == first_prompt(tokenizer, problem)
        assert rollout.response_tokens.tolist() == response
        assert rollout.prompt_length == len(prompt)
        assert rollout.context == Context.PLAIN and rollout.error is None
        assert conversation(rollout, tokenizer)[-1]["content"] == tokenizer.decode(response, skip_special_tokens=True)


def test_several_turns_only_ever_append(math, tokenizer, policy):
    uids = MathEnv("embedded:train").uids[-6:]
    runner = math(max_turns=3, reflection_guidance=REFLECTION_GUIDANCE)
    rollouts = runner.rollout(requests_of(uids))
    assert max(len(rollout.turn_correct) for rollout in rollouts) == 3
    for uid, rollout in zip(uids, rollouts, strict=True):
        expected = [(False, first_prompt(tokenizer, MathEnv("embedded:train").query(uid).problem))]
        responses = [tokens for own, tokens in runs_of(rollout) if own]
        for index, response in enumerate(responses):
            if index:
                expected.append((False, chat.next_turn(tokenizer, responses[index - 1], REFLECTION_GUIDANCE)))
            expected.append((True, response))
        assert runs_of(rollout) == expected
        assert len(responses) == len(rollout.turn_correct)
        assert rollout.turn_correct[:-1] == (False,) * (len(responses) - 1)
        assert rollout.correct == rollout.turn_correct[-1]
        assert [message["role"] for message in conversation(rollout, tokenizer)] == ["user", "assistant"] * len(
            responses
        )


def test_log_probs_of_every_turn_are_those_of_the_whole_conversation(math, policy):
    rollouts = math(max_turns=3).rollout(requests_of(MathEnv("embedded:train").uids[-4:]))
    for rollout in rollouts:
        start = rollout.prompt_length
        expected = logprobs(policy, rollout.tokens[:start], rollout.tokens[start:])
        own = rollout.loss_mask[start:]
        assert np.abs(rollout.sampling_logprobs - expected[own]).max() < 3e-4


def test_a_reflection_prompt_quotes_the_stored_tokens_as_they_are(math, tokenizer):
    uid = MathEnv("embedded:train").uids[3]
    prompt = first_prompt(tokenizer, MathEnv("embedded:train").query(uid).problem)
    # One letter a token: text that the tokenizer itself would never cut so.
    response = [token for letter in r"3+4=8\boxed{8}" for token in tokenizer.encode(letter, add_special_tokens=False)]
    text = tokenizer.decode(response)
    assert tokenizer.encode(text, add_special_tokens=False) != response
    attempt = Attempt(np.array(prompt, np.int32), np.array(response, np.int32), text)
    runner = math(reflection_guidance=REFLECTION_GUIDANCE)
    (rollout,) = runner.rollout(requests_of([uid], context=Context.REFLECTION, attempt=attempt))
    quoted = prompt + response + chat.next_turn(tokenizer, response, REFLECTION_GUIDANCE)
    assert rollout.tokens[: rollout.prompt_length].tolist() == quoted
    assert rollout.loss_mask[rollout.prompt_length :].all()
    assert rollout.context == Context.REFLECTION
    contents = [message["content"] for message in rollout.messages[:-1]]
    assert contents == [MathEnv("embedded:train").query(uid).problem, text, REFLECTION_GUIDANCE]


def test_a_correct_box_in_a_truncated_response_is_wrong(math, tokenizer):
    runner = math()
    uids = MathEnv("embedded:train").uids[:40]
    whole = next(r for r in runner.rollout(requests_of(uids, sampling=Sampling(0.0, 1.0, LIMIT))) if r.correct)
    assert whole.reward == 1.0 and not whole.truncated
    one_short = Sampling(0.0, 1.0, whole.response_length - 1)
    (cut,) = runner.rollout(requests_of([whole.uid], sampling=one_short))
    assert cut.response_tokens.tolist() == whole.response_tokens[:-1].tolist()
    assert conversation(cut, tokenizer)[-1] == conversation(whole, tokenizer)[-1]
    assert (cut.truncated, cut.correct, cut.reward, cut.turn_correct) == (True, False, 0.0, (False,))
    assert cut.verdict == "truncated" and cut.error is None


def test_an_environment_that_pays_for_unfinished_answers_is_overruled(runner_with):
    (rollout,) = runner_with(Agreeable).rollout(requests_of(["a"], sampling=Sampling(1.0, 1.0, 3)))
    assert (rollout.truncated, rollout.correct, rollout.reward) == (True, False, 0.0)


def test_no_requests_no_rollouts(math):
    assert math().rollout([]) == []


def test_run_in_pieces_every_bit_is_the_same(math, patient):
    requests = requests_of(MathEnv("embedded:train").uids[:80])
    runner = math(max_turns=2)
    whole = runner.rollout(requests)
    runner.add(requests)
    pieces = []
    while runner.unfinished:
        pieces.append(runner.advance(0.0))
    assert len(pieces) > 3, "two batches a round, two rounds"
    assert _bits(rollout for piece in pieces for rollout in piece) == _bits(whole)


def test_withdrawn_episodes_do_not_come_back_and_the_others_are_as_they_would_be(math, patient):
    requests = requests_of(MathEnv("embedded:train").uids[:80])
    runner = math(max_turns=2)
    whole = runner.rollout(requests)
    runner.add(requests)
    rollouts = runner.advance(0.0)  # asks the engine
    rollouts += runner.advance(0.0)  # decodes the first batch of 64
    assert runner.engine.unfinished == 16
    gone = runner.withdraw(range(0, 90, 2))
    assert set(gone) == set(range(0, 80, 2)) - {rollout.request_id for rollout in rollouts}
    assert runner.engine.unfinished < 16 and runner.unfinished == 80 - len(gone) - len(rollouts)
    rollouts += runner.advance(600)
    assert runner.withdraw(range(80)) == [] and runner.unfinished == runner.engine.unfinished == 0
    tokens = {key: (own, rest) for key, own, rest in _tokens(whole)}
    assert {key: (own, rest) for key, own, rest in _tokens(rollouts)} == {
        key: value for key, value in tokens.items() if key not in gone
    }


def _bits(rollouts):
    return sorted((r.request_id, r.tokens.tobytes(), r.sampling_logprobs.tobytes(), r.turn_correct) for r in rollouts)


def _tokens(rollouts):
    return [(rollout.request_id, rollout.tokens.tolist(), rollout.turn_correct) for rollout in rollouts]


def test_a_request_runs_once(math):
    runner = math()
    runner.add(requests_of(MathEnv("embedded:train").uids[:2]))
    with pytest.raises(ValueError, match="request 1"):
        runner.add([Request(1, Prompt(MathEnv("embedded:train").uids[5]), 0, 0, SAMPLING)])
    with pytest.raises(RuntimeError, match="2 episodes are unfinished"):
        runner.rollout([])
    runner.withdraw([0, 1])


def test_an_engines_failure_is_nobodys_data(math, engine, monkeypatch):
    def fails():
        raise MemoryError("no room for the batch")

    runner, requests = math(), requests_of(MathEnv("embedded:train").uids[:2])
    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="no room"):
        patch.setattr(engine, "step", fails)
        runner.rollout(requests)
    assert runner.unfinished == engine.unfinished == 0
    assert len(runner.rollout(requests)) == 2


class SlowToVerify(VerifiableEnv):
    """Never content; one query's first answer takes until the other's three are done. Notes the order."""

    verified: list[str] = []

    def __init__(self):
        super().__init__(max_turns=3, reflection_guidance=REFLECTION_GUIDANCE)

    def load_queries(self):
        return [Query("slow", "7+1", "8"), Query("quick", "7+2", "9")]

    def verify(self, query, response):
        if query.uid == "slow" and "slow" not in self.verified:
            deadline = time.monotonic() + 60
            while self.verified.count("quick") < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
        self.verified.append(query.uid)
        return Verdict(False, Reason.DIFFERENT)


def test_a_slow_verifier_does_not_hold_up_the_turns_of_others(runner_with):
    SlowToVerify.verified.clear()
    rollouts = runner_with(SlowToVerify).rollout(
        [Request(i, Prompt(uid), i, i, SAMPLING) for i, uid in enumerate(("slow", "quick"))]
    )
    assert SlowToVerify.verified == ["quick"] * 3 + ["slow"] * 3
    assert [len(rollout.turn_correct) for rollout in rollouts] == [3, 3]


class LongWinded(VerifiableEnv):
    """Never content, and each time it says more."""

    def __init__(self, words=100, **arguments):
        super().__init__(**arguments)
        self.words = words

    def load_queries(self):
        return [Query("long", "1+2" * self.words, "3")]

    def verify(self, query, response):
        return Verdict(False, Reason.DIFFERENT)

    def feedback(self, query, response, verdict):
        return "9-1" * self.words


def test_a_conversation_never_outgrows_the_models_context(runner_with, engine):
    (rollout,) = runner_with(LongWinded, words=80, max_turns=20).rollout(requests_of(["long"]))
    assert len(rollout.turn_correct) > 1
    assert len(rollout.tokens) <= engine.context_length == 1024
    assert rollout.verdict == "environment_error" and "no room in a context of 1024" in rollout.error


def test_a_response_gets_the_room_that_is_left(runner_with, engine, tokenizer):
    words = max(w for w in range(200, 520) if len(first_prompt(tokenizer, "1+2" * w)) <= engine.context_length - 2)
    hot = Sampling(3.0, 1.0, 1024)
    rollouts = runner_with(LongWinded, words=words).rollout(requests_of(["long"] * 8, sampling=hot))
    assert all(rollout.error is None for rollout in rollouts)
    assert max(len(rollout.tokens) for rollout in rollouts if rollout.truncated) == engine.context_length
    (without_room,) = runner_with(LongWinded, words=600).rollout(requests_of(["long"], sampling=hot))
    assert "no room" in without_room.error and not len(without_room.tokens)


@pytest.mark.parametrize("turns", [1, 3])
def test_a_token_behind_a_finished_response_is_measured_and_sampled_from_nothing(math, policy, patient, turns):
    uids = MathEnv("embedded:train").uids[-8:]
    settings = {"max_turns": turns, "reflection_guidance": REFLECTION_GUIDANCE}
    asked = Sampling(0.8, 1.0, LIMIT, asked_token=192)
    runner = math(**settings)
    rollouts = runner.rollout(requests_of(uids, sampling=asked))
    plain = math(**settings).rollout(requests_of(uids, sampling=Sampling(0.8, 1.0, LIMIT)))
    assert [r.tokens.tolist() for r in rollouts] == [r.tokens.tolist() for r in plain]
    assert all(rollout.asked_logprob is None for rollout in plain)
    assert runner.generated_tokens == sum(rollout.response_length for rollout in rollouts)
    finished = [rollout for rollout in rollouts if not rollout.truncated]
    assert finished
    for rollout in rollouts:
        if rollout.truncated:
            assert rollout.asked_logprob is None
        else:
            expected = logprobs(policy, rollout.tokens, np.array([192], np.int32), 1.0)[0]
            assert rollout.asked_logprob == pytest.approx(expected, abs=1e-4)


def test_without_room_for_the_token_it_is_not_asked(runner_with, monkeypatch):
    runner = runner_with(Agreeable)
    request = requests_of(["a"], sampling=Sampling(0.0, 1.0, LIMIT, asked_token=192))
    (rollout,) = runner.rollout(request)
    assert rollout.asked_logprob is not None
    for spare, there in ((2, True), (1, False)):
        monkeypatch.setattr(runner.turns, "context_length", len(rollout.tokens) + spare)
        (again,) = runner.rollout(request)
        assert (again.asked_logprob is not None) == there and again.tokens.tolist() == rollout.tokens.tolist()
