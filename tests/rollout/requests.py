"""Requests for the episode runner."""

from algorithms.rollout.types import Prompt, Request, Sampling

LIMIT = 48
SAMPLING = Sampling(1.0, 1.0, LIMIT)


def requests_of(uids, *, sampling=SAMPLING, **before):
    return [Request(i, Prompt(uid, **before), i, 100 + i, sampling) for i, uid in enumerate(uids)]
