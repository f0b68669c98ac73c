"""Longest-expected first, from what queries were answered before."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from algorithms.rollout.scheduler import ExpectedLengths
from algorithms.rollout.types import Context, Prompt, Request, Rollout, Sampling


def request(number, uid, context=Context.PLAIN):
    return Request(number, Prompt(uid, context), 0, 0, Sampling())


def rollout(uid, length, *, context=Context.PLAIN, error=None):
    return Rollout(
        request_id=0,
        uid=uid,
        group=0,
        context=context,
        tokens=np.zeros(length + 1, np.int32),
        loss_mask=np.arange(length + 1) > 0,
        sampling_logprobs=np.zeros(length, np.float32),
        reward=0.0,
        correct=False,
        truncated=False,
        verdict="different",
        weights_version=0,
        error=error,
    )


def test_longest_expected_first_and_unknown_before_all():
    lengths = ExpectedLengths()
    lengths.observe([rollout("short", 3), rollout("long", 40), rollout("short", 5)])
    requests = [request(i, uid) for i, uid in enumerate(["short", "new", "long", "short", "newer"])]
    assert [r.uid for r in lengths.longest_first(requests)] == ["new", "newer", "long", "short", "short"]
    assert lengths.expected(requests[0]) == 4


def test_a_reflected_answer_has_a_length_of_its_own():
    lengths = ExpectedLengths()
    lengths.observe([rollout("q", 10), rollout("q", 30, context=Context.REFLECTION)])
    assert lengths.expected(request(0, "q")) == 10
    assert lengths.expected(request(0, "q", Context.REFLECTION)) == 30


def test_what_failed_says_nothing():
    lengths = ExpectedLengths()
    lengths.observe([rollout("q", 7, error="the environment failed")])
    assert lengths.expected(request(0, "q")) == float("inf")


@given(st.lists(st.integers(0, 500), min_size=1, max_size=40))
def test_the_expectation_stays_within_what_was_seen_and_follows_a_change(seen):
    lengths = ExpectedLengths()
    lengths.observe([rollout("q", length) for length in seen])
    assert min(seen) - 1e-6 <= lengths.expected(request(0, "q")) <= max(seen) + 1e-6
    lengths.observe([rollout("q", 1000)] * 60)
    assert lengths.expected(request(0, "q")) > 990
