"""Episodes with several turns through a streaming vLLM engine: nobody waits for anybody."""

import functools
import threading
import time

import numpy as np
import pytest

from algorithms.rollout.engines.base import GenerationRequest
from algorithms.rollout.episode_runner import EpisodeRunner
from algorithms.rollout.types import Prompt, Request, Sampling, Split
from benchmarks.embedded_model.arithmetic import REFLECTION_GUIDANCE
from r3env.core import Query, Reason, Verdict, VerifiableEnv
from r3env.envs.math import MathEnv

from .full_forward import logprobs

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SAMPLING = Sampling(1.0, 1.0, 48)
LONG = Sampling(1.0, 1.0, 180)


class Watched(VerifiableEnv):
    """Never content. A verdict on "patient" is only reached when the engine has made some steps meanwhile."""

    def __init__(self, steps, events, **arguments):
        super().__init__(reflection_guidance=REFLECTION_GUIDANCE, **arguments)
        self.steps, self.events = steps, events

    def load_queries(self):
        return [Query("patient", "7+1", "8"), Query("long", "7+2", "9")]

    def verify(self, query, response):
        if query.uid == "patient":
            begun, deadline = self.steps[0], time.monotonic() + 120
            while self.steps[0] < begun + 5 and time.monotonic() < deadline:
                time.sleep(0.001)
        self.events.append((query.uid, self.steps[0]))
        return Verdict(False, Reason.DIFFERENT)


@pytest.fixture
def runner_with(vllm_engine, tokenizer):
    runners = []

    def make(environment, concurrency=None, **arguments):
        makers = dict.fromkeys(Split, functools.partial(environment, **arguments))
        runners.append(EpisodeRunner(vllm_engine, tokenizer, makers, concurrency))
        return runners[-1]

    yield make
    for runner in runners:
        runner.withdraw([*runner._waiting, *runner._running])


@pytest.fixture
def math(runner_with):
    return functools.partial(runner_with, MathEnv, data="embedded:train", instruction="")


@pytest.fixture
def endless(vllm_engine, monkeypatch):
    """Every response goes on to its limit."""
    monkeypatch.setattr(vllm_engine, "_parameters", functools.partial(vllm_engine._parameters, ignore_eos=True))
    monkeypatch.setattr(vllm_engine, "eos_token_ids", [])


@pytest.fixture
def counted_steps(vllm_engine, monkeypatch):
    """How many steps the engine has made."""
    steps, step = [0], vllm_engine.step

    def counted():
        steps[0] += 1
        return step()

    monkeypatch.setattr(vllm_engine, "step", counted)
    return steps


def requests_of(uids, sampling=SAMPLING):
    return [Request(i, Prompt(uid), i, 100 + i, sampling) for i, uid in enumerate(uids)]


def test_an_environment_steps_while_others_decode_and_its_next_turn_joins_them(runner_with, endless, counted_steps):
    events = []
    runner = runner_with(Watched, steps=counted_steps, events=events, max_turns=3)
    patient = Request(0, Prompt("patient"), 0, 1, Sampling(0.0, 1.0, 8))
    long = Request(1, Prompt("long"), 1, 2, LONG)
    rollouts = runner.rollout([patient, long])
    assert len(rollouts[0].turn_correct) == 3
    assert [uid for uid, _ in events][:3] == ["patient"] * 3, "three turns of one within the first turn of the other"
    assert events[2][1] < LONG.max_response_tokens


def test_every_turn_has_the_log_probs_of_the_whole_conversation(math, policy):
    uids = MathEnv("embedded:train").uids
    rollouts = math(max_turns=3, reflection_guidance=REFLECTION_GUIDANCE).rollout(
        requests_of(uids[-12:], Sampling(1.3, 1.0, 40))
    )
    assert max(len(rollout.turn_correct) for rollout in rollouts) == 3
    for rollout in rollouts:
        start = rollout.prompt_length
        expected = logprobs(policy, rollout.tokens[:start], rollout.tokens[start:], 1.3)
        own = rollout.loss_mask[start:]
        assert np.abs(rollout.sampling_logprobs - expected[own]).max() < 1e-3


def test_what_is_drawn_does_not_depend_on_who_decodes_beside_it(math):
    requests = requests_of(MathEnv("embedded:train").uids[:30])
    runner = math(max_turns=2)
    together = [rollout.tokens.tolist() for rollout in runner.rollout(requests)]
    assert [rollout.tokens.tolist() for rollout in runner.rollout(requests[:3])] == together[:3]


def test_control_comes_back_in_time_and_everything_ends_in_the_end(math, endless):
    runner = math()
    requests = requests_of(MathEnv("embedded:train").uids[:100], LONG)
    runner.add(requests)
    came_back, calls = [], 0
    while runner.unfinished:
        started = time.monotonic()
        came_back += runner.advance(0.2)
        assert time.monotonic() - started < 120
        assert len(came_back) + runner.unfinished == len(requests)
        calls += 1
    assert calls > 3
    assert sorted(rollout.request_id for rollout in came_back) == list(range(100))
    tokens = sum(rollout.response_length for rollout in came_back)
    assert runner.generated_tokens == tokens and 0 < runner.engine_seconds


def test_withdrawn_episodes_leave_the_batch_and_never_come_back(math, endless, vllm_engine):
    runner = math(concurrency=16)
    runner._most_begun = 24
    runner.add(requests_of(MathEnv("embedded:train").uids[:40], LONG))
    while vllm_engine.unfinished < 24:
        assert runner.advance(0.05) == []
    assert len(runner._running) == 24
    gone = [3, 7, 39, 1000]
    assert runner.withdraw(gone) == [3, 7, 39]
    assert runner.unfinished == 37 and vllm_engine.unfinished == 22
    rollouts = runner.advance(float("inf"))
    assert sorted(rollout.request_id for rollout in rollouts) == sorted(set(range(40)) - set(gone))
    runner.add(requests_of(MathEnv("embedded:train").uids[:2], LONG))
    runner.advance(0.1)
    runner.withdraw([0, 1])
    assert vllm_engine.unfinished == 0 and vllm_engine.llm.llm_engine.get_num_unfinished_requests() == 0
    assert vllm_engine.llm.reset_prefix_cache(), "aborted requests hold no cache"


def test_an_episode_withdrawn_while_its_environment_steps_ends_unheard(runner_with, vllm_engine):
    go_on, verified = threading.Event(), []

    class Held(Watched):
        def verify(self, query, response):
            verified.append(query.uid)
            go_on.wait(600)
            return Verdict(True, Reason.EQUAL)

    runner = runner_with(Held, steps=[0], events=[])
    request = Request(5, Prompt("patient"), 0, 1, SAMPLING)
    runner.add([request])
    while not verified:
        assert runner.advance(0.05) == []
    assert runner.withdraw([5]) == [5] and runner.unfinished == 0
    runner.add([request])
    go_on.set()
    (rollout,) = runner.advance(float("inf"))
    assert rollout.request_id == 5 and rollout.correct
    assert verified == ["patient"] * 2


def test_an_engines_failure_is_raised_and_the_next_play_starts_afresh(math, vllm_engine, monkeypatch):
    runner, requests = math(), requests_of(MathEnv("embedded:train").uids[:20])
    expected = [rollout.tokens.tolist() for rollout in runner.rollout(requests)]

    def fails():
        raise MemoryError("the cache is gone")

    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="the cache is gone"):
        patch.setattr(vllm_engine.llm.llm_engine, "step", fails)
        runner.rollout(requests)
    assert runner.unfinished == 0 and vllm_engine.unfinished == 0
    assert [rollout.tokens.tolist() for rollout in runner.rollout(requests)] == expected


def test_the_samples_of_a_prompt_share_its_cache_until_there_are_new_weights(vllm_engine, policy, prompts):
    vllm_engine.llm.reset_prefix_cache()
    block = vllm_engine.llm.llm_engine.vllm_config.cache_config.block_size
    prompt = np.resize(np.concatenate(prompts), block + 30).astype(np.int32)
    assert len(prompt) + 8 < vllm_engine.context_length

    def cached(samples):
        before = vllm_engine.cached_prompt_tokens
        vllm_engine.generate([GenerationRequest(prompt, seed, Sampling(1.0, 1.0, 8)) for seed in range(samples)])
        return vllm_engine.cached_prompt_tokens - before

    assert cached(8) == 7 * block, "the first sample reads the prompt for all others"
    assert cached(8) == 8 * block
    vllm_engine.load_weights(policy.state_dict(), 21)
    assert cached(1) == 0, "keys and values of the old weights"
