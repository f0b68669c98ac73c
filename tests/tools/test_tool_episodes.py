"""Episodes with tools: what the policy wrote and what the tools returned, in tokens, turns and metrics."""

import numpy as np
import pytest

from algorithms.rollout.engines.base import Completion, FinishReason
from algorithms.rollout.metrics import completion_metrics, tool_metrics
from algorithms.rollout.turns import Episode, Turns
from algorithms.rollout.types import NEW_CONTEXT, Attempt, Prompt, Request, Sampling
from r3env.chat import ChatFormat
from r3env.envs.tools import ToolEnv
from tests.chat_families import encode

from .templates import CALLS, ENDS, NAMES, published
from .test_tool_env import HERE

PROBLEM = '{"uid": "q", "problem": "What is 3 times 4?", "answer": "12"}\n'


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "problems.jsonl").write_text(PROBLEM)
    return ToolEnv(str(tmp_path / "problems.jsonl"), tools=f"{HERE}:multiply", instruction="")


def played(environment, tokenizer, responses, chat_format=None, prompt=None):
    """The rollout of an episode in which the policy writes these responses."""
    turns = Turns(tokenizer, None, chat_format or ChatFormat())
    request = Request(0, prompt or Prompt("q"), 0, 0, Sampling())
    episode = Episode(request, environment, 0)
    turns.begin(episode)
    for response in responses:
        assert not episode.done, episode.error
        tokens = np.array(encode(tokenizer, response), np.int32)
        logprobs = np.full(len(tokens), -0.5, np.float32)
        turns.step(episode, Completion(tokens, logprobs, FinishReason.STOP, ((0, len(tokens)),)))
    assert episode.done
    return request, episode.rollout(0)


@pytest.mark.parametrize("name", NAMES)
def test_only_what_the_policy_wrote_is_trained_on(environment, name):
    tokenizer = published(name)
    responses = [CALLS[name] + ENDS[name], f"\\boxed{{12}}{ENDS[name]}"]
    request, rollout = played(environment, tokenizer, responses)
    assert rollout.error is None and rollout.correct and rollout.reward == 1.0
    assert tokenizer.decode(rollout.tokens[rollout.loss_mask]) == "".join(responses)
    asked = [{"role": "user", "content": "What is 3 times 4?"}, {"role": "assistant", "content": CALLS[name]}]
    asked.append({"role": "tool", "name": "multiply", "content": "12"})
    whole = tokenizer.apply_chat_template(asked, tools=environment.tools, add_generation_prompt=True)["input_ids"]
    assert rollout.tokens[: len(whole)].tolist() == whole
    assert [message if isinstance(message, dict) else "own" for message in rollout.messages] == [
        asked[0],
        "own",
        asked[2],
        "own",
    ]
    first, second = rollout.turns
    assert (first.reward, first.correct, first.feedback) == (0.0, False, "12") and second.correct
    assert rollout.counts == {"tool_calls": 1, "failed_tool_calls": 0}
    metrics = completion_metrics([request], [rollout])
    assert metrics["tools/calls"] == metrics["tools/used"] == 1.0 and metrics["tools/failed"] == 0.0


def test_turns_that_are_rendered_anew_show_tools_and_results(environment):
    tokenizer = published("qwen2_5")
    responses = [CALLS["qwen2_5"] + ENDS["qwen2_5"], f"\\boxed{{12}}{ENDS['qwen2_5']}"]
    _, rollout = played(environment, tokenizer, responses, ChatFormat(rerender=True))
    (cut,) = np.flatnonzero(rollout.tokens == NEW_CONTEXT)
    anew = rollout.tokens[cut + 1 :]
    assert tokenizer.decode(anew[: len(anew) - len(encode(tokenizer, responses[1]))]).count("Multiply two whole") == 1
    assert "<tool_response>\n12\n</tool_response>" in tokenizer.decode(anew)


def test_a_second_turn_after_a_stored_failure_has_tools(environment):
    tokenizer = published("qwen2_5")
    _, failed = played(environment, tokenizer, [f"\\boxed{{13}}{ENDS['qwen2_5']}"])
    attempt = Attempt(failed.tokens[: failed.prompt_length], failed.response_tokens, "\\boxed{13}")
    responses = [CALLS["qwen2_5"] + ENDS["qwen2_5"], f"\\boxed{{12}}{ENDS['qwen2_5']}"]
    _, rollout = played(environment, tokenizer, responses, prompt=Prompt("q", "reflection", attempt))
    assert rollout.correct and rollout.tokens[: len(failed.tokens)].tolist() == failed.tokens.tolist()


def test_metrics_are_means_of_episodes_and_a_share_of_calls(environment):
    tokenizer = published("qwen2_5")
    end = ENDS["qwen2_5"]
    calls = [f"{CALLS['qwen2_5']}<tool_call>no</tool_call>{end}", CALLS["qwen2_5"] + end]
    rollouts = [
        played(environment, tokenizer, [*calls, f"\\boxed{{12}}{end}"])[1],
        played(environment, tokenizer, [f"\\boxed{{12}}{end}"])[1],
    ]
    assert rollouts[0].counts == {"tool_calls": 3, "failed_tool_calls": 1}
    assert tool_metrics(rollouts) == {"tools/calls": 1.5, "tools/used": 0.5, "tools/failed": 1 / 3}
    assert tool_metrics([]) == {}
