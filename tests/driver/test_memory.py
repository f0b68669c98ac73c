"""What the driver holds of a step: each array once, no text, and little beside. Counted, never measured."""

import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from algorithms.grpo import metrics
from algorithms.losses.base import LossSettings
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.conversation import last_text
from algorithms.rollout.types import Request, RunnerReport
from tests.driver.conftest import requests_of

LONG, PROMPT = 8192, 256
LIMIT = 130_000  # bytes of a response of LONG tokens
GROUPS, SIZE = 12, 8


@pytest.fixture(scope="module")
def algorithm(ray_session) -> Iterator[Any]:
    config = (
        R3GRPOConfig()
        .environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
        .rl_module(model="embedded:tiny")
        .env_runners(max_response_tokens=48, num_threads=1)
        .training(lr=1e-4, group_size=SIZE, queries_per_step=GROUPS)
        .debugging(seed=3)
    )
    algorithm = config.build_algo()
    yield algorithm
    algorithm.stop()


@pytest.fixture
def batch(algorithm):
    algorithm.keeps_entropies = False
    algorithm.train()
    return algorithm.batch


def objects_of(root: Any) -> list[Any]:
    """Everything that can be reached through data, each object once; of an array that is a view, its owner."""
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        while isinstance(one, np.ndarray) and isinstance(one.base, np.ndarray):
            one = one.base
        if id(one) in found or one is None or isinstance(one, bool | int | type | Request):
            continue
        found[id(one)] = one
        if isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif is_dataclass(one):
            waiting += [getattr(one, field.name) for field in fields(one)] + [getattr(one, "__dict__", None)]
    return list(found.values())


def arrays_of(root: Any) -> int:
    """Bytes of all arrays behind an object, whatever their dtypes and however often they are referred to."""
    return sum(one.nbytes for one in objects_of(root) if isinstance(one, np.ndarray))


def expected_arrays(samples) -> int:
    """Ids and mask, and the log-probs of engine and trainer."""
    return sum(5 * len(s.rollout.tokens) + 8 * s.rollout.response_length for s in samples)


def test_a_response_of_8k_tokens_takes_130_kb_of_the_driver(batch):
    samples = list(batch.fresh)
    assert len(samples) == GROUPS * SIZE and all(sample.old_logprobs is not None for sample in samples)
    # Rankings and replays have a few arrays of their own.
    arrays = arrays_of(samples) - sum(s.entropies.nbytes for s in samples if s.entropies is not None)
    assert arrays <= expected_arrays(samples)
    rest = sum(sys.getsizeof(one) for one in objects_of(samples) if not isinstance(one, np.ndarray))
    assert 5 * (PROMPT + LONG) + 8 * LONG + rest / len(samples) < LIMIT - 10_000


def test_no_text_of_a_response_stays_with_the_step(algorithm, batch):
    texts = {last_text(sample.rollout, algorithm.tokenizer) for sample in batch.fresh}
    long = {text for text in texts if len(text) > 8}
    held = {one for one in objects_of(batch) if isinstance(one, str)}
    assert len(long) > 10 and not long & held


def test_entropies_are_kept_where_they_are_written_and_then_in_half_precision(algorithm, batch):
    before = algorithm.batch.record["policy/entropy"]
    assert all(sample.entropies is None or sample.entropies.dtype == np.float32 for sample in batch.fresh)
    assert sum(sample.entropies is None for sample in batch.fresh) > 0.5 * GROUPS * SIZE and before > 0
    algorithm.keeps_entropies = True
    algorithm.train()
    samples = list(algorithm.batch.fresh)
    assert {sample.entropies.dtype for sample in samples} <= {np.dtype(np.float16), np.dtype(np.float32)}
    for sample in samples:
        assert float(sample.entropies.sum(dtype=np.float64)) == pytest.approx(sample.entropy, rel=2e-3, abs=1e-3)


def test_a_runner_sends_ids_mask_and_log_probs_and_nothing_of_their_length_beside(algorithm):
    rollouts = algorithm.rollout_workers.rollout(requests_of(algorithm, 64))
    buffers: list[pickle.PickleBuffer] = []
    report = RunnerReport(tuple(rollouts), 0, 0, 0.0)
    rest = len(pickle.dumps(report, protocol=5, buffer_callback=buffers.append))
    carried = sum(buffer.raw().nbytes for buffer in buffers)
    assert carried == sum(5 * len(r.tokens) + 4 * r.response_length for r in rollouts)
    assert rest / len(rollouts) < 1_000
    words = pickle.dumps(report, protocol=5, buffer_callback=lambda buffer: None)
    texts = [last_text(rollout, algorithm.tokenizer).encode() for rollout in rollouts]
    assert not any(text in words for text in texts if len(text) > 8)


def test_metrics_over_tokens_come_out_the_same_from_parts(batch, monkeypatch):
    settings = LossSettings(importance_cap=1.0, importance_level="sequence")
    for sample in batch.fresh:
        sample.old_logprobs = sample.old_logprobs + np.float32(0.01) * (sample.rollout.request_id % 3 - 1)
    whole = metrics.correction_metrics(batch.groups, settings), metrics.update_metrics(batch.groups, [])
    monkeypatch.setattr(metrics, "TOKENS_AT_ONCE", 100)
    assert len(list(metrics._in_parts(metrics._logprob_pairs(batch.groups)))) > 5
    parts = metrics.correction_metrics(batch.groups, settings), metrics.update_metrics(batch.groups, [])
    assert 0 < whole[0]["policy/is_bounded"] < 1 and whole[0] == parts[0]
    assert whole[1] == pytest.approx(parts[1], rel=1e-12)
