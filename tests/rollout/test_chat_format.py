"""Episodes with a system turn, with variables of the template, and with conversations that are rendered anew."""

import functools

import numpy as np
import pytest

from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings, score
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer, stop_token_ids
from algorithms.rollout.attempts import AttemptTruncator
from algorithms.rollout.conversation import GAP_TEXT, conversation
from algorithms.rollout.engines.base import Completion, FinishReason
from algorithms.rollout.episode_record import Episode
from algorithms.rollout.episode_runner import EpisodeRunner
from algorithms.rollout.turns import Turns
from algorithms.rollout.types import NEW_CONTEXT, Attempt, Prompt, Request, Sampling, Split
from r3env import chat
from r3env.chat import ChatFormat
from tests.chat_families import FAMILIES, THOUGHT, encode, make_tokenizer

from .full_forward import logprobs
from .test_prompts import GUIDANCE, PROBLEM, Explains, Judged

SAMPLING = Sampling(1.0, 1.0, 48)
SYSTEM = "1+1=2"
# Of an earlier answer it keeps the end, and a mood is a token in front of each answer.
SHORTENS = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content[-3:] if m.role == 'assistant' else m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ mood | default('') }}{% endif %}"
)


@pytest.fixture(scope="module")
def shortening():
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    tokenizer.chat_template = SHORTENS
    return tokenizer


@pytest.fixture
def run(engine, shortening):
    def run(environment, chat_format, prompt=None, **arguments):
        makers = dict.fromkeys(Split, functools.partial(environment, **arguments))
        runner = EpisodeRunner(engine, shortening, makers, chat_format=chat_format)
        (rollout,) = runner.rollout([Request(0, prompt or Prompt("q"), 0, 1, SAMPLING)])
        return rollout

    return run


def whole(tokenizer, messages, **variables):
    copies = [dict(message) for message in messages]
    return tokenizer.apply_chat_template(copies, add_generation_prompt=True, **variables)["input_ids"]


def sequences(rollout):
    return TrainingSample(rollout.tokens, rollout.loss_mask).sequences


def test_a_system_turn_stands_in_front_of_the_prompt_and_of_the_messages(run, shortening):
    rollout = run(Judged, ChatFormat(system=SYSTEM))
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROBLEM}]
    assert rollout.messages[:2] == tuple(messages)
    assert rollout.tokens[: rollout.prompt_length].tolist() == whole(shortening, messages)


def test_variables_reach_the_template_at_every_turn(engine):
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    tokenizer.chat_template += "{% if add_generation_prompt %}{{ mood }}{% endif %}"
    makers = dict.fromkeys(Split, functools.partial(Judged, max_turns=3))
    runner = EpisodeRunner(engine, tokenizer, makers, chat_format=ChatFormat({"mood": "+"}))
    (rollout,) = runner.rollout([Request(0, Prompt("q"), 0, 1, SAMPLING)])
    assert len(rollout.turns) == 3
    for turn in rollout.turns:
        assert rollout.tokens[turn.start - 1 : turn.start].tolist() == encode(tokenizer, "+")


@pytest.mark.parametrize("environment", [Judged, Explains])
def test_each_turn_follows_the_conversation_rendered_anew_and_nothing_else(run, shortening, policy, environment):
    form = ChatFormat({"mood": "+"}, SYSTEM, rerender=True)
    rollout = run(environment, form, **({"max_turns": 3} if environment is Judged else {}))
    assert rollout.error is None and len(rollout.turns) == 3
    assert np.count_nonzero(rollout.tokens == NEW_CONTEXT) == 2
    sampled, expected = iter(rollout.turns), []
    for number, (tokens, mask) in enumerate(sequences(rollout)):
        before, written = tokens[~mask], tokens[mask]
        turn = next(sampled)
        assert rollout.tokens[turn.start : turn.end].tolist() == written.tolist()
        assert before.tolist() == whole(shortening, conversation(rollout, shortening)[: 2 + 2 * number], mood="+")
        expected.append(logprobs(policy, before, written))
    assert np.abs(rollout.sampling_logprobs - np.concatenate(expected)).max() < 3e-4
    row = TrainingSample(rollout.tokens, rollout.loss_mask)
    ((learned, _),) = score(policy, [row], ForwardSettings(), entropy=False)
    assert np.abs(rollout.sampling_logprobs - learned).max() < 3e-4


@pytest.mark.parametrize("rerender", [True, False])
def test_the_room_of_a_turn_is_counted_from_its_own_context(shortening, rerender):
    """A first answer that leaves no room behind itself is no matter where the template shortens it."""
    tokenizer = shortening if rerender else load_tokenizer(resolve_model("embedded:tiny"))
    turns = Turns(tokenizer, 100, ChatFormat(rerender=rerender))
    episode = Episode(Request(0, Prompt("q"), 0, 1, Sampling(1.0, 1.0, 100)), Judged(max_turns=2), 0)
    turns.begin(episode)
    long = np.array([*encode(tokenizer, "7" * 80), tokenizer.eos_token_id], np.int32)
    turns.step(episode, Completion(long, np.zeros(len(long), np.float32), FinishReason.STOP))
    if not rerender:
        assert "no room" in episode.error
        return
    request = turns.generation_request(episode)
    assert request.tokens.tolist() == whole(tokenizer, episode.messages)
    assert request.sampling.max_response_tokens == 100 - len(request.tokens)


def test_a_quoted_attempt_is_what_the_template_shows_of_it(run, shortening):
    attempt = Attempt(np.array([1], np.int32), np.array([2], np.int32), r"8+1=9 \boxed{9}")
    rollout = run(Judged, ChatFormat(system=SYSTEM, rerender=True), Prompt("q", attempt=attempt))
    contents = [SYSTEM, PROBLEM, attempt.text, GUIDANCE]
    assert [message["content"] for message in rollout.messages[:-1]] == contents
    expected = whole(shortening, rollout.messages[:-1])
    assert rollout.tokens[: rollout.prompt_length].tolist() == expected
    assert "8+1" not in shortening.decode(expected)


def test_an_environment_that_does_not_repeat_the_attempt_cannot_have_it_rendered(run):
    attempt = Attempt(np.array([1], np.int32), np.array([2], np.int32), "9")
    assert "no `conversation`" in run(Explains, ChatFormat(rerender=True), Prompt("q", attempt=attempt)).error


def test_of_reasoning_that_the_template_drops_nothing_is_quoted():
    tokenizer = make_tokenizer(FAMILIES["qwen3"].template)
    answer = "It is 5. " * 20
    text = THOUGHT.replace("It is 5.", answer)
    attempt = Attempt(np.arange(9, dtype=np.int32), np.array(encode(tokenizer, text), np.int32), text)

    def truncator(rerender, **bounds):
        bounds = {"limit": None, "context": None} | bounds
        return AttemptTruncator(
            tokenizer, guidance=GUIDANCE, max_response_tokens=8, chat_format=ChatFormat(rerender=rerender), **bounds
        )

    room = len(encode(tokenizer, answer))
    assert truncator(True, limit=room).truncate(attempt) is attempt
    assert truncator(False, limit=room).truncate(attempt).text != text
    cut = truncator(True, limit=room - 10).truncate(attempt)
    assert GAP_TEXT in cut.text and "2 and 3" not in cut.text and len(cut.response_tokens) == room - 10
    # Cut for the context, the whole prompt and the answer fit.
    context = 150
    cut = truncator(True, context=context).truncate(attempt)
    messages = [("user", "12345678"), ("assistant", cut.text), ("user", GUIDANCE)]
    first = chat.first_turn(tokenizer, [{"role": "user", "content": "12345678"}])
    prompt = chat.first_turn(tokenizer, [{"role": role, "content": content} for role, content in messages])
    assert len(prompt) + 8 <= context + len(first) - 9
    assert GAP_TEXT in cut.text


@pytest.mark.parametrize("name", FAMILIES)
def test_what_closes_the_policys_turn_ends_a_response(name, tmp_path):
    tokenizer = make_tokenizer(FAMILIES[name].template)
    stops = stop_token_ids(tokenizer, str(tmp_path))
    assert stops == tuple(sorted(tokenizer.convert_tokens_to_ids([FAMILIES[name].end, "<eos>"])))
