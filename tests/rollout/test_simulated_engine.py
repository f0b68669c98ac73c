"""The engine that only models time: the clock of these tests is a number."""

import numpy as np
import pytest

from algorithms.rollout.engines.base import FinishReason, GenerationRequest
from algorithms.rollout.types import Sampling
from benchmarks.simulation.engine import Latency, Lengths, ModelClock, SimulatedEngine

PER_TOKEN = 0.5
NO_PREFILL = Latency(prefill_tokens_per_s=1e12, step_s=PER_TOKEN, sequence_s=0.0)
SAME = Lengths(mean=100, sigma=0.0)


class Clock(ModelClock):
    time = 0.0

    def now(self) -> float:
        return self.time


@pytest.fixture
def clock():
    return Clock()


def request(prompt: int = 0, seed: int = 0, limit: int = 10**6, length: int = 4) -> GenerationRequest:
    return GenerationRequest(np.full(length, prompt, np.int32), seed, Sampling(max_response_tokens=limit))


def keys(ended) -> list[int]:
    return [key for key, _ in ended]


def test_a_response_takes_a_step_a_token(clock):
    engine = SimulatedEngine(NO_PREFILL, SAME, clock=clock)
    engine.submit(7, request())
    clock.time = 49.9
    assert engine.catch_up() == []
    assert engine.next_end_s() == pytest.approx(0.1)
    clock.time = 50.1
    ((key, completion),) = engine.catch_up()
    assert key == 7
    assert len(completion.tokens) == len(completion.logprobs) == 100
    assert (completion.tokens.dtype, completion.logprobs.dtype) == (np.int32, np.float32)
    assert completion.finish_reason is FinishReason.STOP
    assert engine.unfinished == 0


def test_each_sequence_of_the_batch_slows_the_others_down(clock):
    engine = SimulatedEngine(Latency(1e12, step_s=0.5, sequence_s=0.25), SAME, clock=clock)
    engine.submit(1, request())
    engine.submit(2, request())
    clock.time = 99.9
    assert engine.catch_up() == []
    clock.time = 100.1
    assert keys(engine.catch_up()) == [1, 2]


def test_a_request_joins_the_running_batch_when_it_comes(clock):
    engine = SimulatedEngine(NO_PREFILL, SAME, clock=clock)
    engine.submit(1, request())
    clock.time = 30.0
    engine.submit(2, request())
    clock.time = 79.0
    assert keys(engine.catch_up()) == [1]
    clock.time = 81.0
    assert keys(engine.catch_up()) == [2]


def test_what_finds_no_slot_waits_for_the_first_that_ends_however_late_that_is_seen(clock):
    engine = SimulatedEngine(NO_PREFILL, SAME, max_num_seqs=2, clock=clock)
    for key in range(3):
        engine.submit(key, request())
    clock.time = 99.0
    assert keys(engine.catch_up()) == [0, 1]
    clock.time = 101.0
    assert keys(engine.catch_up()) == [2], "it began at 50, not when somebody looked"


def test_a_prompt_is_read_once_until_the_weights_change(clock):
    engine = SimulatedEngine(Latency(1.0, step_s=PER_TOKEN, sequence_s=0.0), SAME, clock=clock)
    for key in (1, 2):
        engine.submit(key, request(length=10))
    clock.time = 59.0
    assert engine.catch_up() == []
    clock.time = 61.0
    assert keys(engine.catch_up()) == [1, 2]
    engine.load_weights({}, 5)
    assert engine.weights_version == 5
    engine.submit(3, request(length=10))
    clock.time = 120.0
    assert engine.catch_up() == []
    clock.time = 122.0
    assert keys(engine.catch_up()) == [3]


def test_an_aborted_request_frees_its_slot_and_never_comes_back(clock):
    engine = SimulatedEngine(NO_PREFILL, SAME, max_num_seqs=1, clock=clock)
    engine.submit(1, request())
    engine.submit(2, request())
    engine.submit(3, request())
    clock.time = 10.0
    engine.abort([1, 3, 99])
    assert engine.unfinished == 1
    clock.time = 61.0
    assert keys(engine.catch_up()) == [2]
    engine.submit(1, request())  # the same key again
    clock.time = 112.0
    assert keys(engine.catch_up()) == [1]


def test_lengths_depend_on_prompt_and_seed_alone_and_have_a_heavy_tail():
    lengths = Lengths(mean=8192, sigma=0.6, limit=32768)
    drawn = np.array([lengths.sample(prompt, 31 * prompt + 1, 10**6)[0] for prompt in range(20_000)])
    assert lengths.sample(3, 94, 10**6)[0] == drawn[3]
    assert drawn.mean() == pytest.approx(8192, rel=0.03)
    assert np.log(drawn[drawn < 32768]).std() == pytest.approx(0.6, rel=0.05)
    assert np.percentile(drawn, 99) > 3 * np.median(drawn)
    assert drawn.max() == 32768


def test_a_response_that_reaches_the_limit_says_so(clock):
    engine = SimulatedEngine(NO_PREFILL, SAME, clock=clock)
    engine.submit(1, request(limit=40))
    clock.time = 1000.0
    ((_, completion),) = engine.catch_up()
    assert len(completion.tokens) == 40
    assert completion.finish_reason is FinishReason.LENGTH


def test_as_an_engine_it_generates_in_order_without_a_clock_of_its_own():
    engine = SimulatedEngine(clock=ModelClock(speed=5000.0))
    completions = engine.generate([request(seed=seed, prompt=seed % 3) for seed in range(40)])
    again = engine.generate([request(seed=seed, prompt=seed % 3) for seed in range(40)])
    assert [len(c.tokens) for c in completions] == [len(c.tokens) for c in again]
    assert all(np.array_equal(c.tokens, d.tokens) for c, d in zip(completions, again, strict=True))
    assert len({c.tokens.tobytes() for c in completions}) == 40
