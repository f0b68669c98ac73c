"""Agents that ask the policy through the `openai` package, with a real engine behind the endpoint."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings, score
from algorithms.rollout.attempts import AttemptTruncator
from algorithms.rollout.conversation import conversation
from algorithms.rollout.episode_runner import EpisodeRunner
from algorithms.rollout.metrics import completion_metrics
from algorithms.rollout.types import NEW_CONTEXT, Attempt, Prompt, Request, Sampling, Split
from r3env import chat
from r3env.agents.session import Session
from r3env.chat import ChatFormat
from r3env.core import Query
from r3env.envs.agent import AgentEnv
from tests.impatient_client import ask_and_leave

from .full_forward import logprobs

openai = pytest.importorskip("openai")

LIMIT = 24
SAMPLING = Sampling(1.0, 1.0, LIMIT)
SYSTEM = {"role": "system", "content": "1+1=2"}


class OneQuery(AgentEnv):
    def load_queries(self):
        return [Query("q", "1+2", "3"), Query("r", "2+2", "4")]


class Chat:
    """A conversation of an agent, and what came back."""

    def __init__(self, base_url, model, *, system=True, **options):
        self.client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
        self.options = {"model": model} | options
        self.messages = [SYSTEM] if system else []
        self.answers = []

    def say(self, text, **options):
        self.messages.append({"role": "user", "content": text})
        answer = self.client.chat.completions.create(messages=self.messages, **self.options, **options)
        self.messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        self.answers.append(answer)
        return answer


@pytest.fixture
def run(engine, tokenizer):
    """Run one episode, or several at once, of an agent."""

    def run(agent, *, uids=("q",), sampling=SAMPLING, form=chat.DEFAULT_FORMAT, timeout_s=300.0, **arguments):
        prompt, most_begun = arguments.pop("prompt", {}), arguments.pop("most_begun", None)
        makers = dict.fromkeys(Split, lambda: OneQuery(agent=agent, **arguments))
        runner = EpisodeRunner(
            engine, tokenizer, makers, step_timeout_s=timeout_s, chat_format=form, most_begun=most_begun
        )
        requests = [Request(i, Prompt(uid, **prompt), i, 10 + i, sampling) for i, uid in enumerate(uids)]
        rollouts = runner.rollout(requests)
        return rollouts if len(uids) > 1 else rollouts[0]

    return run


def whole(tokenizer, messages):
    return chat.first_turn(tokenizer, messages)


def sequences(rollout):
    return TrainingSample(rollout.tokens, rollout.loss_mask).sequences


def check_logprobs(rollout, policy):
    """What the engine recorded is what the model gives, and what the learner computes of the same row."""
    expected = []
    for tokens, mask in sequences(rollout):
        for start, end in runs(mask):
            expected.append(logprobs(policy, tokens[:start], tokens[start:end]))
    assert np.abs(rollout.sampling_logprobs - np.concatenate(expected)).max() < 3e-4
    row = TrainingSample(rollout.tokens, rollout.loss_mask)
    ((learned, _),) = score(policy, [row], ForwardSettings(), entropy=False)
    assert np.abs(rollout.sampling_logprobs - learned).max() < 3e-4


def runs(mask):
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2], edges[1::2], strict=True))


def test_requests_that_continue_are_turns_of_one_sample_token_for_token(run, tokenizer, policy):
    seen = {}

    def agent(query, base_url, model):
        talk = Chat(base_url, model)
        first = talk.say(query.problem, logprobs=True, extra_body={"return_token_ids": True})
        talk.say("Again.", extra_body={"return_token_ids": True})
        seen["talk"], seen["first"] = talk, first
        return 0.5

    rollout = run(agent)
    assert rollout.error is None and rollout.reward == 0.5 and not rollout.correct
    assert len(rollout.turns) == 2 and rollout.counts["changed_prefixes"] == 0 and NEW_CONTEXT not in rollout.tokens
    first, second = seen["talk"].answers
    prompt = whole(tokenizer, [SYSTEM, {"role": "user", "content": "1+2"}])
    assert first.prompt_token_ids == prompt == rollout.tokens[: len(prompt)].tolist()
    sampled = [rollout.tokens[turn.start : turn.end].tolist() for turn in rollout.turns]
    assert [answer.choices[0].token_ids for answer in (first, second)] == sampled
    assert second.prompt_token_ids == rollout.tokens[: rollout.turns[1].start].tolist()
    between = second.prompt_token_ids[rollout.turns[0].end :]
    assert between == chat.next_turn(tokenizer, sampled[0], "Again.")
    listed = [token.logprob for token in first.choices[0].logprobs.content]
    assert np.allclose(listed, rollout.sampling_logprobs[: len(sampled[0])])
    assert first.usage.prompt_tokens == len(prompt) and first.usage.completion_tokens == len(sampled[0])
    assert list(conversation(rollout, tokenizer)) == seen["talk"].messages
    check_logprobs(rollout, policy)


def test_a_changed_prefix_begins_a_new_sample_of_the_same_episode_and_is_counted(run, tokenizer, policy):
    def agent(query, base_url, model):
        talk = Chat(base_url, model)
        talk.say(query.problem)
        talk.messages[-1] = {"role": "assistant", "content": "It is 9."}
        talk.say("Are you sure?")
        talk.messages[:] = [{"role": "user", "content": "In short: 1+2"}]
        talk.say("Well?")
        return True

    rollout = run(agent)
    assert rollout.error is None and rollout.correct and rollout.reward == 1.0
    assert rollout.counts["changed_prefixes"] == 2 and len(rollout.turns) == 3
    edited = [SYSTEM, user("1+2"), {"role": "assistant", "content": "It is 9."}, user("Are you sure?")]
    prompts = [tokens[~mask].tolist() for tokens, mask in sequences(rollout)]
    expected = [[SYSTEM, user("1+2")], edited, [user("In short: 1+2"), user("Well?")]]
    assert prompts == [whole(tokenizer, messages) for messages in expected]
    check_logprobs(rollout, policy)
    request = Request(0, Prompt("q"), 0, 0, SAMPLING)
    assert completion_metrics([request], [rollout])["rollout/changed_prefixes"] == 2.0


def user(text):
    return {"role": "user", "content": text}


def test_two_answers_to_one_beginning_share_its_very_tokens_and_none_is_trained_twice(run, policy):
    def agent(query, base_url, model):
        talk = Chat(base_url, model)
        talk.say(query.problem)
        stem = list(talk.messages)
        talk.say("One way.")
        talk.messages[:] = stem
        talk.say("Another way.")
        talk.say("And on.")
        return "3"

    rollout = run(agent)
    assert rollout.error is None and rollout.correct and rollout.counts["changed_prefixes"] == 0
    (main, main_mask), (branch, branch_mask) = sequences(rollout)
    stem = rollout.turns[0].end
    assert branch[:stem].tolist() == main[:stem].tolist()
    assert not branch_mask[:stem].any() and main_mask[:stem].any()
    assert [len(runs(mask)) for mask in (main_mask, branch_mask)] == [2, 2]
    check_logprobs(rollout, policy)


def test_rendered_turns_are_rendered_for_agents_too(run, tokenizer, policy):
    def agent(query, base_url, model):
        talk = Chat(base_url, model, system=False)
        talk.say(query.problem)
        talk.say("Again.")
        return "4"

    rollout = run(agent, form=ChatFormat(rerender=True))
    assert rollout.error is None and not rollout.correct and rollout.counts["changed_prefixes"] == 0
    messages = conversation(rollout, tokenizer)
    prompts = [tokens[~mask].tolist() for tokens, mask in sequences(rollout)]
    assert prompts == [whole(tokenizer, messages[:1]), whole(tokenizer, messages[:3])]
    check_logprobs(rollout, policy)


def test_concurrent_agents_do_not_mix(run, tokenizer):
    """Each of many agents, some with conversations of their own at once, gets answers to what it asked."""

    def agent(query, base_url, model):
        talk = Chat(base_url, model, system=False)
        number = threading.get_ident()
        with ThreadPoolExecutor(2) as pool:
            others = [Chat(base_url, model, system=False) for _ in range(2)]
            list(pool.map(lambda other: other.say(f"{query.problem} {number}"), others))
        talk.say(f"{query.problem} {number}")
        talk.say("Again.")
        return float(number % 97)

    rollouts = run(agent, uids=["q", "r"] * 8)
    assert [rollout.error for rollout in rollouts] == [None] * 16
    for rollout in rollouts:
        texts = [message["content"] for message in conversation(rollout, tokenizer) if message["role"] == "user"]
        (own,) = {text for text in texts if text != "Again."}
        problem, number = own.split()
        assert problem == {"q": "1+2", "r": "2+2"}[rollout.uid] and rollout.reward == float(number) % 97
        assert len(rollout.turns) == 4


def test_agents_that_share_a_client_may_be_more_than_its_connections(run):
    """Where all began at once, those without a connection could not ask, and the round would wait for them."""
    limits = openai.DefaultHttpxClient(limits=httpx.Limits(max_connections=3), timeout=None)
    with openai.OpenAI(base_url="http://127.0.0.1", api_key="none", http_client=limits) as client:

        def agent(query, base_url, model):
            messages = [{"role": "user", "content": query.problem}]
            client.with_options(base_url=base_url).chat.completions.create(model=model, messages=messages)
            return True

        rollouts = run(agent, uids=["q"] * 8, timeout_s=60.0, most_begun=3)
    assert [rollout.error for rollout in rollouts] == [None] * 8


def test_an_agents_own_limit_cuts_its_answer_and_not_the_episode(run):
    reasons = []

    def agent(query, base_url, model):
        talk = Chat(base_url, model)
        reasons.append(talk.say(query.problem, max_tokens=1).choices[0].finish_reason)
        return True

    rollout = run(agent)
    assert reasons == ["length"] and rollout.response_length == 1
    assert rollout.correct and not rollout.truncated
    cut = run(agent, sampling=Sampling(1.0, 1.0, 1))
    assert cut.correct and not cut.truncated, "the run's own limit; what it is worth is the agent's to say"


def test_a_conversation_without_room_is_refused_and_the_agent_may_go_on(run, engine):
    errors = []

    def agent(query, base_url, model):
        talk = Chat(base_url, model)
        for text in ("1" * 2 * engine.context_length, query.problem, "2" * 2 * engine.context_length):
            try:
                talk.say(text)
            except openai.BadRequestError as error:
                errors.append((error.code, error.message))
                talk.messages.pop()
        return True

    rollout = run(agent)
    assert rollout.error is None and rollout.correct and len(rollout.turns) == 1
    assert [code for code, _ in errors] == ["context_length_exceeded"] * 2
    assert all("leave no room" in message for _, message in errors)


@pytest.fixture
def given_up(monkeypatch):
    """Begin a request whose client closes its connection before it is answered."""
    asked, closed = threading.Event(), threading.Event()
    complete, next_event = OneQuery.complete, Session.next

    def complete_later(self, completion):
        assert closed.wait(60)
        return complete(self, completion)

    def next_and_take_note(self):
        event = next_event(self)
        asked.set()
        return event

    def give_up(base_url, model, messages):
        asked.clear()
        closed.clear()
        ask_and_leave(base_url, model, messages, asked)
        closed.set()

    monkeypatch.setattr(Session, "next", next_and_take_note)
    monkeypatch.setattr(OneQuery, "complete", complete_later)
    return give_up


def test_a_client_that_gives_up_and_asks_again_gets_the_answer_that_was_sampled(run, given_up, policy):
    def agent(query, base_url, model):
        given_up(base_url, model, [user(query.problem)])
        talk = Chat(base_url, model, system=False)
        talk.say(query.problem)
        talk.say("Again.")
        return True

    rollout = run(agent)
    assert rollout.error is None and len(rollout.turns) == 2 and rollout.counts["changed_prefixes"] == 0
    assert NEW_CONTEXT not in rollout.tokens
    check_logprobs(rollout, policy)


@pytest.mark.parametrize("asks_again", [True, False])
def test_an_answer_that_no_client_reads_is_not_trained_on(run, given_up, asks_again):
    def agent(query, base_url, model):
        given_up(base_url, model, [user("2+2")])
        if asks_again:
            Chat(base_url, model, system=False).say(query.problem)
        return 0.5

    rollout = run(agent)
    assert "gave a request up before its answer came; fix: raise the client's timeout" in rollout.error


def test_a_second_turn_after_a_failed_attempt_begins_with_its_tokens(run, tokenizer):
    before = np.array(whole(tokenizer, [user("1+2")]), np.int32)
    answer = np.array([*tokenizer.encode("9", add_special_tokens=False), tokenizer.eos_token_id], np.int32)

    def agent(query, base_url, model):
        talk = Chat(base_url, model, system=False)
        talk.say("Solve 1+2.")
        talk.say("Again.")
        return "3"

    rollout = run(agent, prompt={"attempt": Attempt(before, answer, "9")})
    assert rollout.error is None and rollout.correct and rollout.counts["changed_prefixes"] == 0
    start = [*before.tolist(), *answer.tolist()]
    assert rollout.tokens[: len(start)].tolist() == start
    said = tokenizer.decode(rollout.tokens[len(start) : rollout.prompt_length].tolist())
    assert "not correct" in said and "Solve 1+2." in said


# -- What goes wrong ---------------------------------------------------------------------------------------------------


def crash(query, base_url, model):
    Chat(base_url, model).say(query.problem)
    raise RuntimeError("out of ideas")


def silent(query, base_url, model):
    return "3"


def nonsense(query, base_url, model):
    Chat(base_url, model).say(query.problem)
    return [1]


def leave(query, base_url, model):
    Chat(base_url, model).say(query.problem)
    raise SystemExit(3)


def too_hot(query, base_url, model):
    Chat(base_url, model).say(query.problem, temperature=0.2)


@pytest.mark.parametrize(
    ("agent", "error"),
    [
        (crash, "the agent failed: RuntimeError: out of ideas"),
        (silent, "without a request"),
        (nonsense, "fix: return the answer as text"),
        (leave, "the agent failed: SystemExit: 3"),
        (too_hot, "temperature: the run samples at 1, not 0.2"),
    ],
)
def test_an_agent_that_fails_fails_its_episode_alone(run, agent, error):
    def some(query, base_url, model):
        return (fine if query.uid == "r" else agent)(query, base_url, model)

    failed, other = run(some, uids=["q", "r"])
    assert failed.verdict == "environment_error" and error in failed.error
    assert other.error is None and other.correct


def fine(query, base_url, model):
    Chat(base_url, model).say(query.problem)
    return True


def test_an_agent_that_hangs_ends_with_the_deadline_of_environments_and_is_answered_no_more(run):
    release, late = threading.Event(), []
    over = threading.Event()

    def agent(query, base_url, model):
        talk = Chat(base_url, model)
        talk.say(query.problem)
        if query.uid == "q":
            release.wait()
            try:
                talk.say("Still there?")
            except openai.APIStatusError as error:
                late.append(error.status_code)
            over.set()
        return True

    hanging, other = run(agent, uids=["q", "r"], timeout_s=15.0)
    assert hanging.verdict == "environment_error" and "did not return within 15 s" in hanging.error
    assert len(hanging.sampling_logprobs) == hanging.response_length
    assert other.error is None and other.correct
    release.set()
    assert over.wait(60) and late == [410]


def test_an_agent_whose_episode_is_withdrawn_waits_no_longer(engine, tokenizer):
    refused, ended = [], threading.Event()

    def agent(query, base_url, model):
        try:
            Chat(base_url, model).say(query.problem)
        except openai.APIStatusError as error:
            refused.append(error.status_code)
        ended.set()

    runner = EpisodeRunner(engine, tokenizer, dict.fromkeys(Split, lambda: OneQuery(agent=agent)))
    runner.add([Request(0, Prompt("q"), 0, 10, SAMPLING)])
    runner.advance(0.0)
    assert runner.withdraw([0]) == [0]
    assert ended.wait(60) and refused == [410]


def test_requests_without_end_end(run):
    asked = []

    def agent(query, base_url, model):
        while True:
            Chat(base_url, model).say(query.problem, max_tokens=2)
            asked.append(1)

    rollout = run(agent, max_turns=3)
    assert len(asked) == 3 and rollout.verdict == "environment_error"
    assert "the episode has had its 3 requests" in rollout.error


def test_of_several_contexts_the_last_one_is_quoted_as_the_failed_attempt(run, tokenizer):
    def agent(query, base_url, model):
        Chat(base_url, model).say("What is it?")
        talk = Chat(base_url, model)
        talk.say(query.problem)
        talk.say("Again.")
        return 0.0

    rollout = run(agent)
    truncator = AttemptTruncator(tokenizer, limit=None, context=None, guidance="", max_response_tokens=LIMIT)
    attempt = truncator.attempt(rollout.tokens, rollout.loss_mask, "its text")
    (_, _), (tokens, mask) = sequences(rollout)
    prompt = whole(tokenizer, [SYSTEM, user("1+2")])
    assert attempt.prompt_tokens.tolist() == prompt and attempt.text == "its text"
    assert attempt.response_tokens.tolist() == tokens[len(prompt) :].tolist()
