"""Agents that give the policy tools, or read its answers as a stream, through the `openai` package."""

import json

import numpy as np
import pytest

from algorithms.learner.batch import TrainingSample
from algorithms.rollout.engines.base import Completion, FinishReason
from algorithms.rollout.turns import Episode, Turns
from algorithms.rollout.types import NEW_CONTEXT, Prompt, Request, Sampling
from r3env.chat import ChatFormat
from r3env.core import Query
from r3env.envs.agent import AgentEnv
from tests.chat_families import FAMILIES, encode, make_tokenizer
from tests.tools.templates import CALLS, ENDS, NAMES, published

openai = pytest.importorskip("openai")

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiply two whole numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]
QUESTION = {"role": "user", "content": "What is 3 times 4?"}


class OneQuery(AgentEnv):
    def load_queries(self):
        return [Query("q", QUESTION["content"], "12")]


def played(agent, name, responses, tokenizer=None, chat_format=None):
    """The rollout of an agent's episode in which the policy writes these responses."""
    tokenizer = tokenizer or published(name)
    turns = Turns(tokenizer, None, chat_format or ChatFormat())
    episode = Episode(Request(0, Prompt("q"), 0, 0, Sampling()), OneQuery(agent=agent), 0)
    turns.begin(episode)
    for response in responses:
        if episode.done:
            break
        tokens = np.array(encode(tokenizer, response + ENDS[name]), np.int32)
        logprobs = np.full(len(tokens), -0.5, np.float32)
        turns.step(episode, Completion(tokens, logprobs, FinishReason.STOP, ((0, len(tokens)),)))
    episode.environment.close()
    assert episode.done
    return episode.rollout(0)


def asks(base_url, model, messages, **options):
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    return client.chat.completions.create(model=model, messages=messages, **{"tools": TOOLS, **options})


def result_of(call):
    arguments = json.loads(call.function.arguments)
    return {"role": "tool", "tool_call_id": call.id, "content": str(arguments["a"] * arguments["b"])}


@pytest.mark.parametrize("name", NAMES)
def test_calls_come_as_tool_calls_and_what_was_sampled_stays_token_for_token(name):
    seen = []

    def agent(query, base_url, model):
        messages = [QUESTION]
        while True:
            answer = asks(base_url, model, messages, extra_body={"return_token_ids": True})
            seen.append(answer)
            message = answer.choices[0].message
            if not message.tool_calls:
                return message.content
            messages += [message, *map(result_of, message.tool_calls)]

    rollout = played(agent, name, [CALLS[name], "\\boxed{12}"])
    assert rollout.error is None and rollout.correct and rollout.counts["changed_prefixes"] == 0
    first, second = seen
    (call,) = first.choices[0].message.tool_calls
    assert (call.type, call.function.name, call.function.arguments) == ("function", "multiply", '{"a": 3, "b": 4}')
    assert first.choices[0].finish_reason == "tool_calls" and second.choices[0].finish_reason == "stop"
    assert first.choices[0].message.content == ("<think>\nHm.\n</think>\n\n" if name == "qwen3" else None)
    # One sample: the prompt with the tools, what was sampled, the result of the tool, what was sampled.
    tokenizer = published(name)
    own = {"role": "assistant", "content": CALLS[name]}
    result = {"role": "tool", "name": "multiply", "content": "12"}
    whole = tokenizer.apply_chat_template([QUESTION, own, result], tools=TOOLS, add_generation_prompt=True)["input_ids"]
    assert NEW_CONTEXT not in rollout.tokens and rollout.tokens[: len(whole)].tolist() == whole
    assert tokenizer.decode(rollout.response_tokens) == f"{CALLS[name]}{ENDS[name]}\\boxed{{12}}{ENDS[name]}"
    assert [answer.choices[0].token_ids for answer in seen] == [
        rollout.tokens[turn.start : turn.end].tolist() for turn in rollout.turns
    ]
    assert second.prompt_token_ids == whole


def test_several_calls_have_ids_of_their_own_and_a_malformed_one_leaves_all_of_it_as_text():
    seen = []

    def agent(query, base_url, model):
        messages = [QUESTION]
        for _ in range(2):
            message = asks(base_url, model, messages).choices[0].message
            seen.append([call.id for call in message.tool_calls])
            messages += [message, *map(result_of, message.tool_calls)]
        messages.append({"role": "user", "content": "And?"})
        choice = asks(base_url, model, messages).choices[0]
        seen.append((choice.message.content, choice.message.tool_calls, choice.finish_reason))
        return True

    text = f"{CALLS['qwen2_5']}\n<tool_call>no</tool_call>"
    rollout = played(agent, "qwen2_5", [CALLS["qwen2_5"] * 2, CALLS["qwen2_5"], text])
    assert rollout.error is None and rollout.counts["changed_prefixes"] == 0 and len(rollout.turns) == 3
    assert seen == [["call_0_0", "call_0_1"], ["call_1_0"], (text, None, "stop")]


def test_an_edited_message_or_other_tools_begin_a_new_sample_that_shows_the_calls_as_they_were_written():
    def agent(query, base_url, model):
        first = asks(base_url, model, [QUESTION]).choices[0].message
        (call,) = first.tool_calls
        # As frameworks pass it on: no reasoning, and arguments that are spaced in another way.
        function = {"name": call.function.name, "arguments": '{"b":4,"a":3}'}
        edited = {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]}
        asks(base_url, model, [QUESTION, edited, result_of(call)])
        asks(base_url, model, [QUESTION, first, result_of(call)], tools=[])
        return True

    rollout = played(agent, "qwen3", [CALLS["qwen3"], "12", "12"])
    assert rollout.error is None and rollout.counts["changed_prefixes"] == 2
    tokenizer = published("qwen3")
    _, edited, bare = (
        tokenizer.decode(tokens[~mask]) for tokens, mask in TrainingSample(rollout.tokens, rollout.loss_mask).sequences
    )
    assert "Hm." not in edited and '<tool_call>\n{"name": "multiply", "arguments": {"a": 3, "b": 4}}' in edited
    assert "Multiply two whole" in edited and "Multiply two whole" not in bare


def test_calls_that_the_policy_did_not_make_are_refused():
    errors = []

    def agent(query, base_url, model):
        (call,) = asks(base_url, model, [QUESTION]).choices[0].message.tool_calls
        own = {"role": "assistant", "tool_calls": [call.model_dump()]}
        invented = {
            "role": "assistant",
            "tool_calls": [call.model_dump() | {"function": {"name": "f", "arguments": ""}}],
        }
        for messages in (
            [QUESTION, invented, result_of(call)],
            [QUESTION, own, result_of(call) | {"tool_call_id": "x"}],
        ):
            with pytest.raises(openai.BadRequestError) as error:
                asks(base_url, model, messages)
            errors.append(error.value.body["message"])
        return True

    rollout = played(agent, "qwen2_5", [CALLS["qwen2_5"]])
    assert rollout.error is None and len(rollout.turns) == 1
    assert "the policy has made no such tool_calls" in errors[0]
    assert "messages[2].tool_call_id: no call with the id 'x' stands before it" in errors[1]


def test_a_template_without_tools_refuses_them():
    errors = []

    def agent(query, base_url, model):
        with pytest.raises(openai.BadRequestError, match="tools: the model's chat template leaves them out") as error:
            asks(base_url, model, [QUESTION])
        errors.append(error.value)
        return asks(base_url, model, [QUESTION], tools=openai.NOT_GIVEN).choices[0].message.content

    tokenizer = make_tokenizer(FAMILIES["llama3"].template)
    assert played(agent, "llama3_1", ["12"], tokenizer).correct and len(errors) == 1


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_has_the_whole_message_and_its_end(usage):
    seen, gathered = [], []

    def agent(query, base_url, model):
        options = {"stream": True} | ({"stream_options": {"include_usage": True}} if usage else {})
        messages = [QUESTION]
        for _ in range(2):
            chunks = list(asks(base_url, model, messages, logprobs=True, **options))
            seen.append(chunks)
            delta = chunks[0].choices[0].delta
            messages.append({"role": "assistant", "content": delta.content})
            if delta.tool_calls:
                messages[-1]["tool_calls"] = [call.model_dump(exclude={"index"}) for call in delta.tool_calls]
                messages += map(result_of, delta.tool_calls)
        client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
        with client.chat.completions.stream(model=model, messages=[*messages, QUESTION], tools=TOOLS) as stream:
            gathered.append(stream.get_final_completion().choices[0])
        return messages[-1]["content"]

    rollout = played(agent, "qwen2_5", [CALLS["qwen2_5"], "\\boxed{12}", CALLS["qwen2_5"]])
    assert rollout.error is None and rollout.correct and rollout.counts["changed_prefixes"] == 0
    calling, answering = seen
    assert [chunk.choices[0].finish_reason for chunk in calling[:2]] == [None, "tool_calls"]
    assert [chunk.choices[0].finish_reason for chunk in answering[:2]] == [None, "stop"]
    assert answering[0].choices[0].delta.content == "\\boxed{12}" and len(calling) == len(answering) == 2 + usage
    assert all(entry.logprob == -0.5 for entry in answering[0].choices[0].logprobs.content)
    if usage:
        assert answering[-1].usage.completion_tokens == rollout.turns[1].end - rollout.turns[1].start
    (choice,) = gathered
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls[0].function.name == "multiply"


def test_a_stream_that_is_refused_is_an_error_of_the_client():
    errors = []

    def agent(query, base_url, model):
        asks(base_url, model, [QUESTION])
        with pytest.raises(openai.BadRequestError, match="top_k: not supported") as error:
            asks(base_url, model, [QUESTION], stream=True, extra_body={"top_k": 5})
        errors.append(error.value)
        return True

    assert played(agent, "qwen2_5", ["12"]).error is None and len(errors) == 1
