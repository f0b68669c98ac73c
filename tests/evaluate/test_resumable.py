"""Sampling part by part, and second tries after wrong answers."""

from types import SimpleNamespace

import pytest

from algorithms.evaluation.benchmarks import part_size, parts, sample_parts
from algorithms.evaluation.responses import ResponseFolder
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout.attempts import AttemptTruncator
from algorithms.rollout.types import Sampling
from r3env import chat
from r3env.core import Query
from tests.hand_made import answer

GUIDANCE, LONGEST, PROMPT = "No.", 30, [1, 2, 3]


def rollout_of(request):
    """The second sample is right; wrong ones are long."""
    correct = request.id % 2 == 1
    length = 4 if correct else LONGEST
    return answer(
        request,
        prompt=PROMPT,
        response=range(100, 100 + length),
        correct=correct,
        verdict="equal" if correct else "different",
        weights_version=1,
        messages=({"role": "user", "content": request.uid}, {"role": "assistant", "content": "so"}),
    )


@pytest.fixture
def asked(tmp_path):
    """Asks two problems in two parts, twice each; gives what was played and what was told of it."""

    def ask(truncator):
        played, told = [], []

        def rollout(requests, on_progress):
            played.append(list(requests))
            on_progress(1, len(requests))
            return [rollout_of(request) for request in requests]

        uids = ["b/one", "b/two"]
        sample_parts(
            rollout,
            SimpleNamespace(queries={uid: Query(uid, "?", "1") for uid in uids}),
            parts(uids, 1),
            ResponseFolder(tmp_path),
            samples=2,
            sampling=Sampling(1.0, 1.0, LONGEST),
            truncator=truncator,
            seed="0",
            on_progress=lambda *counts: told.append(counts),
        )
        return played, told

    return ask


def test_a_second_answer_has_its_whole_room_on_a_short_context(asked):
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    context = len(PROMPT) + 20 + len(chat.next_turn(tokenizer, [], GUIDANCE)) + LONGEST
    played, _ = asked(
        AttemptTruncator(tokenizer, limit=None, context=context, guidance=GUIDANCE, max_response_tokens=LONGEST)
    )
    attempts = [request.prompt.attempt for requests in played for request in requests if request.prompt.attempt]
    assert [len(attempt.response_tokens) for attempt in attempts] == [20, 20]
    assert attempts[0].response_tokens[[0, -1]].tolist() == [100, 99 + LONGEST]


def test_the_count_moves_during_second_tries(asked):
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    _, told = asked(
        AttemptTruncator(tokenizer, limit=None, context=None, guidance=GUIDANCE, max_response_tokens=LONGEST)
    )
    assert told == [(1, 4), (2, 4), (3, 5), (3, 5), (4, 5), (5, 5), (6, 6), (6, 6)]
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_without_second_tries_the_count_is_of_answers(asked):
    played, told = asked(None)
    assert len(played) == 2 and told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_part_is_some_eight_batches_of_all_engines():
    assert part_size(16, 256, 0) == part_size(16, 256, 1) == 128
    assert part_size(16, 256, 8) == 1024 and part_size(1000, 1, 0) == 1
