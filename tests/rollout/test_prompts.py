"""What stands before an answer, and what the environment makes of each turn."""

import gymnasium
import numpy as np
import pytest

from algorithms.rollout.conversation import conversation
from algorithms.rollout.episode_record import Episode
from algorithms.rollout.turns import Turns
from algorithms.rollout.types import Attempt, Prompt, Request, Sampling, Turn
from r3env import chat
from r3env.core import Query, Reason, Verdict, VerifiableEnv

from .full_forward import logprobs

SAMPLING = Sampling(1.0, 1.0, 48)
PROBLEM, GUIDANCE, HINT = "7+1", "That was wrong.", "Eight legs has a spider."


class Judged(VerifiableEnv):
    """Never content; `read` has every answer that it was given."""

    read: list[str] = []

    def __init__(self, max_turns=1):
        super().__init__(max_turns=max_turns, reflection_guidance=GUIDANCE)

    def load_queries(self):
        return [Query("q", PROBLEM, "8")]

    def verify(self, query, response):
        self.read.append(response)
        return Verdict(False, Reason.DIFFERENT)


class TakesHints(Judged):
    """Puts the hint where it belongs by itself."""

    takes_hint = True

    def prompt(self, query):
        return f"{self.hint} {super().prompt(query)}"


class Explains(gymnasium.Env):
    """Names its states, pays for each turn, and explains the last one."""

    def reset(self, *, seed=None, options=None):
        self.turn = 0
        return PROBLEM, {"state": "begun"}

    def step(self, action):
        self.turn += 1
        info = {"state": f"turn {self.turn}", "correct": self.turn == 3}
        info |= {"feedback": "well done"} if self.turn == 3 else {}
        return f"go on {self.turn}", 0.25 * self.turn, self.turn == 3, False, info


def one(runner, **before):
    (rollout,) = runner.rollout([Request(0, Prompt("q", **before), 0, 1, SAMPLING)])
    assert rollout.error is None
    return rollout


def prompt_of(rollout):
    return rollout.tokens[: rollout.prompt_length].tolist()


def first_turn(tokenizer, text):
    return chat.first_turn(tokenizer, [{"role": "user", "content": text}])


def ids(tokenizer, text):
    return np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)


def test_a_context_is_any_name(runner_with):
    assert one(runner_with(Judged), context="a hint from a teacher").context == "a hint from a teacher"


def test_a_hint_joins_the_user_turn(runner_with, tokenizer):
    rollout = one(runner_with(Judged), hint=HINT)
    hinted = f"{PROBLEM}\n\n{HINT}"
    assert prompt_of(rollout) == first_turn(tokenizer, hinted)
    assert rollout.messages[0] == {"role": "user", "content": hinted}


def test_an_environment_that_takes_hints_places_them_itself(runner_with, tokenizer):
    rollout = one(runner_with(TakesHints), hint=HINT)
    assert prompt_of(rollout) == first_turn(tokenizer, f"{HINT} {PROBLEM}")


def test_a_hint_after_an_attempt_joins_the_turn_that_follows_it(runner_with, tokenizer):
    prompt, response = first_turn(tokenizer, PROBLEM), ids(tokenizer, r"\boxed{9}").tolist()
    attempt = Attempt(np.array(prompt, np.int32), np.array(response, np.int32), r"\boxed{9}")
    rollout = one(runner_with(Judged), attempt=attempt, hint=HINT)
    user_turn = f"{GUIDANCE}\n\n{HINT}"
    assert prompt_of(rollout) == prompt + response + chat.next_turn(tokenizer, response, user_turn)
    assert [message["content"] for message in rollout.messages[:-1]] == [PROBLEM, r"\boxed{9}", user_turn]


def test_feedback_stands_in_the_place_of_the_turn_that_follows_an_attempt(runner_with, tokenizer):
    prompt, response = first_turn(tokenizer, PROBLEM), ids(tokenizer, r"\boxed{9}").tolist()
    attempt = Attempt(np.array(prompt, np.int32), np.array(response, np.int32), r"\boxed{9}")
    rollout = one(runner_with(Judged), attempt=attempt, feedback="One too many.")
    assert prompt_of(rollout) == prompt + response + chat.next_turn(tokenizer, response, "One too many.")
    assert [message["content"] for message in rollout.messages[:-1]] == [PROBLEM, r"\boxed{9}", "One too many."]
    alone = one(runner_with(Judged), feedback="One too many.")
    assert prompt_of(alone) == prompt, "there is nothing that it is about"


def test_a_begun_answer_is_context_and_the_environment_reads_it_with_the_rest(runner_with, tokenizer, policy):
    begun = ids(tokenizer, "7+1=")
    Judged.read.clear()
    rollout = one(runner_with(Judged, max_turns=2), response_prefix=begun)
    assert prompt_of(rollout) == first_turn(tokenizer, PROBLEM) + begun.tolist()
    first, second = rollout.turns
    written = [
        tokenizer.decode(rollout.tokens[turn.start : turn.end], skip_special_tokens=True) for turn in rollout.turns
    ]
    assert Judged.read == ["7+1=" + written[0], written[1]]
    assert [m["content"] for m in conversation(rollout, tokenizer) if m["role"] == "assistant"] == Judged.read
    between = chat.next_turn(tokenizer, rollout.tokens[first.start : first.end].tolist(), GUIDANCE)
    assert rollout.tokens[first.end : second.start].tolist() == between
    start = rollout.prompt_length
    expected = logprobs(policy, rollout.tokens[:start], rollout.tokens[start:])[rollout.loss_mask[start:]]
    assert np.abs(rollout.sampling_logprobs - expected).max() < 3e-4


@pytest.mark.parametrize(("begun", "left"), [(0, 48), (33, 15), (80, 1)])
def test_a_begun_answer_and_what_follows_are_one_response_within_the_limit(tokenizer, begun, left):
    prompt = Prompt("q", response_prefix=np.full(begun, 5, np.int32))
    episode, turns = Episode(Request(0, prompt, 0, 1, SAMPLING), Judged(), 0), Turns(tokenizer, None)
    turns.begin(episode)
    assert turns.generation_request(episode).sampling.max_response_tokens == left
    episode.turns.append(Turn(0, 1))
    assert turns.generation_request(episode).sampling.max_response_tokens == 48, "a later turn begins with nothing"


def test_a_begun_answer_needs_room(runner_with, engine):
    long = np.full(engine.context_length, 5, np.int32)
    (rollout,) = runner_with(Judged).rollout([Request(0, Prompt("q", response_prefix=long), 0, 1, SAMPLING)])
    assert "no room" in rollout.error


def test_turns_say_where_they_are_and_what_the_environment_made_of_them(runner_with):
    rollout = one(runner_with(Explains))
    own = np.zeros(len(rollout.tokens), bool)
    for turn in rollout.turns:
        own[turn.start : turn.end] = True
    assert (own == rollout.loss_mask).all()
    assert [turn.reward for turn in rollout.turns] == [0.25, 0.5, 0.75] and rollout.reward == 1.5
    assert [turn.state for turn in rollout.turns] == ["begun", "turn 1", "turn 2"]
    assert [turn.feedback for turn in rollout.turns] == ["go on 1", "go on 2", "well done"]
    assert rollout.turn_correct == (False, False, True)


def test_the_last_turn_has_no_feedback_unless_the_environment_gives_some(runner_with):
    rollout = one(runner_with(Judged, max_turns=2))
    assert [turn.feedback for turn in rollout.turns] == [GUIDANCE, ""]
    assert [turn.state for turn in rollout.turns] == ["", ""]
