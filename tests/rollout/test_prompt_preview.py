"""Prompts that the driver writes without rolling them out."""

import json
import logging
import threading
import urllib.error
import urllib.request

import gymnasium
import numpy as np
import pytest

from algorithms.grpo.config import GRPOConfig
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout.prompt_preview import PromptRenderer
from algorithms.rollout.types import Attempt, Prompt


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("embedded:tiny"))


@pytest.fixture
def environment():
    return gymnasium.make(
        "r3env/Math-v0", data="embedded:train", instruction="", reflection_guidance="Wrong. Try again."
    )


def test_a_hint_an_attempt_and_a_begun_answer_stand_where_an_env_runner_puts_them(tokenizer, environment):
    render = PromptRenderer.of(GRPOConfig(), tokenizer, environment, 1024).render
    uid = environment.unwrapped.uids[0]
    problem = environment.unwrapped.query(uid).problem

    def written(prompt):
        return tokenizer.decode(render(prompt, 1))

    assert written(Prompt(uid)) == f"<|user|>{problem}<|end|><|assistant|>"
    begun = np.array(tokenizer.encode("7+8", add_special_tokens=False), np.int32)
    assert (
        written(Prompt(uid, hint="Look.", response_prefix=begun))
        == f"<|user|>{problem}\n\nLook.<|end|><|assistant|>7+8"
    )
    attempt = Attempt(render(Prompt(uid), 1), begun, "7+8")
    assert written(Prompt(uid, attempt=attempt)).startswith(f"<|user|>{problem}<|end|><|assistant|>7+8")
    assert "Wrong. Try again." in written(Prompt(uid, attempt=attempt))


def test_without_room_there_is_no_prompt(tokenizer, environment):
    uid = environment.unwrapped.uids[0]
    length = len(PromptRenderer.of(GRPOConfig(), tokenizer, environment, None).render(Prompt(uid), 10**6))
    render = PromptRenderer.of(GRPOConfig(), tokenizer, environment, length + 5).render
    assert len(render(Prompt(uid), 5)) == length
    assert render(Prompt(uid), 6) is None


def test_an_environment_that_fails_is_logged_and_an_interrupt_goes_through(tokenizer, environment, caplog, monkeypatch):
    render = PromptRenderer.of(GRPOConfig(), tokenizer, environment, 1024).render
    with caplog.at_level(logging.WARNING):
        assert render(Prompt("no such query"), 1) is None
    assert "a prompt of query no such query cannot be rendered" in caplog.text

    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "reset", interrupted)
    with pytest.raises(KeyboardInterrupt):
        render(Prompt("any"), 1)


def test_an_agent_whose_first_request_was_rendered_waits_no_longer(tokenizer):
    refused, ended = [], threading.Event()

    def agent(query, base_url, model):
        body = json.dumps({"messages": [{"role": "user", "content": query.problem}]}).encode()
        try:
            urllib.request.urlopen(base_url + "/chat/completions", body).close()
        except urllib.error.HTTPError as error:
            refused.append(error.code)
        ended.set()

    environment = gymnasium.make("r3env/Agent-v0", data="embedded:train", agent=agent)
    render = PromptRenderer.of(GRPOConfig(), tokenizer, environment, 1024).render
    assert render(Prompt(environment.unwrapped.uids[0])) is not None
    assert ended.wait(60) and refused == [410]
