"""Agents on a real vLLM engine; in a file that comes after the one whose engines end what all of a process share."""

import pytest

from algorithms.rollout.episode_runner import EpisodeRunner
from algorithms.rollout.types import Prompt, Request, Split

from .test_agents import SAMPLING, Chat, OneQuery, check_logprobs


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_answers_agents_while_others_decode(vllm_engine, tokenizer, policy):
    def agent(query, base_url, model):
        talk = Chat(base_url, model)
        talk.say(query.problem)
        talk.say("Again.", max_tokens=5)
        talk.messages[2] = {"role": "assistant", "content": "9"}
        talk.say("Sure?")
        return "3"

    runner = EpisodeRunner(vllm_engine, tokenizer, dict.fromkeys(Split, lambda: OneQuery(agent=agent)), 4)
    rollouts = runner.rollout([Request(i, Prompt("q"), i, 10 + i, SAMPLING) for i in range(8)])
    for rollout in rollouts:
        assert rollout.error is None and rollout.correct and rollout.counts["changed_prefixes"] == 1
        assert len(rollout.turns) == 3 and rollout.turns[1].end - rollout.turns[1].start <= 5
        check_logprobs(rollout, policy)
