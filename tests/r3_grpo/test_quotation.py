"""How a failed attempt is quoted: whole where it fits, else head and tail around the marked gap."""

from dataclasses import replace

import numpy as np
import pytest

from algorithms.grpo.types import to_entry
from algorithms.models.names import context_length, resolve_model
from algorithms.models.tokenizer import ModelConfigs, load_tokenizer
from algorithms.preflight.context_window import engine_context
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.attempts import AttemptTruncator, attempt_of, context_of
from algorithms.rollout.conversation import GAP_TEXT
from r3env import chat

from .conftest import PROMPT, sample

GUIDANCE = "Wrong. Try again."
ANSWER_ROOM = 16
LENGTH = 60
AS_STORED = "the text as the environment saw it"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("embedded:tiny"))


@pytest.fixture
def failure(tokenizer):
    """A failure whose first and last tokens tell themselves apart."""
    written = tokenizer.encode("0123456789" * 20, add_special_tokens=False)[:LENGTH]
    assert len(written) == LENGTH
    return replace(to_entry(sample(written), 1), text=AS_STORED)


@pytest.fixture
def truncator(tokenizer):
    def make(limit=None, context=None):
        return AttemptTruncator(
            tokenizer, limit=limit, context=context, guidance=GUIDANCE, max_response_tokens=ANSWER_ROOM
        )

    return make


def of(failure):
    return attempt_of(failure.tokens, failure.prompt_length, failure.text)


def check_cut(attempt, failure, length, tokenizer):
    """`length` tokens: a head and a tail of the attempt's own, the gap between, and the text that they spell."""
    gap = tokenizer.encode(GAP_TEXT, add_special_tokens=False)
    written, quoted = failure.response_tokens.tolist(), attempt.response_tokens.tolist()
    assert len(quoted) == length
    head = -(-(length - len(gap)) // 2)
    tail = length - len(gap) - head
    assert head >= tail >= 1
    assert quoted == written[:head] + gap + written[len(written) - tail :]
    assert attempt.text == tokenizer.decode(quoted)
    assert GAP_TEXT in attempt.text
    assert attempt.prompt_tokens.tolist() == list(PROMPT)
    assert attempt.response_tokens.dtype == np.int32


def test_an_attempt_that_fits_is_quoted_whole_with_its_own_text(truncator, failure):
    for fitting in (truncator(), truncator(limit=LENGTH), truncator(limit=LENGTH, context=1000)):
        attempt = fitting.truncate(of(failure))
        assert attempt.response_tokens.tolist() == failure.response_tokens.tolist()
        assert attempt.text == AS_STORED


@pytest.mark.parametrize("limit", [LENGTH - 1, 30, 9])
def test_a_longer_one_is_cut_to_the_limit(truncator, failure, tokenizer, limit):
    check_cut(truncator(limit=limit).truncate(of(failure)), failure, limit, tokenizer)


@pytest.mark.parametrize("limit", [None, 2048, 41])
def test_the_second_turn_and_its_answer_fit_into_the_context(truncator, failure, tokenizer, limit):
    turn = len(chat.next_turn(tokenizer, [], GUIDANCE))
    context = len(PROMPT) + 40 + turn + ANSWER_ROOM
    attempt = truncator(limit=limit, context=context).truncate(of(failure))
    check_cut(attempt, failure, 40, tokenizer)
    following = chat.next_turn(tokenizer, attempt.response_tokens, GUIDANCE)
    assert len(PROMPT) + len(attempt.response_tokens) + len(following) + ANSWER_ROOM <= context


def test_the_limit_holds_where_the_context_has_more_room(truncator, failure, tokenizer):
    check_cut(truncator(limit=30, context=1000).truncate(of(failure)), failure, 30, tokenizer)


def test_a_context_without_room_leaves_nothing_of_the_attempt(truncator, failure):
    attempt = truncator(context=ANSWER_ROOM).truncate(of(failure))
    assert attempt.response_tokens.tolist() == []
    assert attempt.text == ""


def test_what_follows_the_prompt_is_quoted_over_all_turns(truncator, failure):
    mask = failure.loss_mask.copy()
    mask[20:30] = False
    attempt = truncator().truncate(of(replace(failure, loss_mask=mask, old_logprobs=failure.old_logprobs[10:])))
    assert attempt.response_tokens.tolist() == failure.tokens[len(PROMPT) :].tolist()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, 1024),
        ({"vllm": {"max_model_len": 64}}, 1024),
        ({"engine": "vllm", "vllm": {"max_model_len": 64}}, 64),
        ({"engine": "vllm", "vllm": {"max_model_len": 4096}}, 1024),
        ({"engine": "vllm"}, 1024),
    ],
)
def test_the_context_is_the_model_s_or_what_vllm_holds_of_it(settings, told):
    assert engine_context(R3GRPOConfig().env_runners(**settings), 1024) == told


def test_a_model_that_does_not_say_how_much_it_holds_has_what_vllm_was_told():
    told = {"engine": "vllm", "vllm": {"max_model_len": 64}}
    assert engine_context(R3GRPOConfig().env_runners(**told), None) == 64
    assert engine_context(R3GRPOConfig(), None) is None


def test_a_run_that_trains_for_days_knows_the_context_from_its_own_copy_of_the_configuration(tokenizer):
    module = R3GRPOConfig().rl_module(model="embedded:tiny").rl_module_settings
    context = context_of(ModelConfigs.read(module).model)
    assert context == context_length(module) == 1024
    gone = R3GRPOConfig().rl_module(model="/nowhere").env_runners(max_response_tokens=ANSWER_ROOM)
    truncator = AttemptTruncator.of(gone, tokenizer, GUIDANCE, context=context)
    long = np.zeros(2048, np.int32)
    turn = len(chat.next_turn(tokenizer, [], GUIDANCE))
    assert len(truncator.truncate(attempt_of(long, 3, "")).response_tokens) == context - 3 - turn - ANSWER_ROOM


def test_a_longer_turn_after_the_attempt_leaves_less_room_for_it(truncator, failure, tokenizer):
    said = "Nine is not what is left of it."
    context = len(PROMPT) + LENGTH + len(chat.second_turn(tokenizer, GUIDANCE)) + ANSWER_ROOM
    whole, cut = (truncator(context=context).truncate(of(failure), following) for following in ("", said))
    assert len(whole.response_tokens) == LENGTH
    more = len(chat.second_turn(tokenizer, said)) - len(chat.second_turn(tokenizer, GUIDANCE))
    check_cut(cut, failure, LENGTH - more, tokenizer)


def test_a_text_is_shortened_in_its_middle(truncator, tokenizer):
    text = "0123456789" * 20
    assert truncator().shorten(text, 1000) == text and truncator().shorten("", 16) == ""
    short = truncator().shorten(text, 40)
    assert len(tokenizer.encode(short, add_special_tokens=False)) == 40 and GAP_TEXT in short
