"""Whatever a model writes, a step trains on it, remembers it and shows it, and every number is finite."""

import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from algorithms.rollout.conversation import last_text
from algorithms.rollout.types import Context
from algorithms.train.recorder import Recorder
from algorithms.train.rollout_files import read_rollouts, rollout_rows, sample_conversations, write_rollouts
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.conversations import conversation_markdown

# Means over responses of a kind that a step may have none of.
MAY_BE_UNDEFINED = {"response/mean_tokens_correct", "response/mean_tokens_wrong"}


def byte(tokenizer, value):
    """The token of one byte; bytes that do not print have letters from 256 on for their names."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [other for other in range(256) if other not in printed]
    return tokenizer.convert_tokens_to_ids(chr(value if value in printed else 256 + others.index(value)))


def saying(tokenizer, tokens):
    """The table of a model that answers every prompt with these tokens, each of which may occur once."""
    assert len(set(tokens)) == len(tokens)
    start = tokenizer.convert_tokens_to_ids("<|assistant|>")
    return dict(zip([start, *tokens], tokens, strict=False))


def responses(algorithm):
    return [s.rollout.response_tokens.tolist() for g in algorithm.batch.groups for s in g.samples if not s.replayed]


def assert_sound(algorithm, steps=2):
    assert algorithm.steps_done == steps
    for tag, value in algorithm.batch.record.items():
        if not isinstance(value, str) and tag not in MAY_BE_UNDEFINED:
            assert math.isfinite(value), tag
    assert algorithm.batch.record["policy/skipped_steps"] == 0
    assert algorithm.batch.record["policy/lr"] == pytest.approx(1e-3 * steps / 4)
    weights = algorithm.learner_group._learner.module["default_policy"].lm.state_dict()
    assert all(tensor.isfinite().all() for tensor in weights.values())


def assert_shown(algorithm, folder, text):
    """The rollout file and TensorBoard hold the text as text."""
    rows = rollout_rows(algorithm.steps_done, algorithm.batch.groups, algorithm.tokenizer)
    write_rollouts(folder / "rollouts.parquet", rows)
    assert {row.response for row in read_rollouts(folder / "rollouts.parquet")} == {text}
    conversations = sample_conversations(algorithm.batch.groups, 4, algorithm.tokenizer)
    directory = RunDirectory.create(folder, "run", "")
    recorder = Recorder(directory, 0)
    recorder.record_conversations(1, conversations)
    recorder.close()
    events = EventAccumulator(str(directory.path), size_guidance={"tensors": 0})
    events.Reload()
    assert events.Tags()["tensors"]
    assert "<|" not in conversation_markdown(conversations[0].messages)


def test_an_empty_response(parrot, train, tokenizer, tmp_path):
    end = tokenizer.eos_token_id
    algorithm = train(parrot(saying(tokenizer, [end])))
    assert responses(algorithm) == [[end]] * len(responses(algorithm))
    assert_sound(algorithm)
    assert algorithm.batch.record["response/mean_tokens"] == 1 and algorithm.batch.record["response/truncated"] == 0
    assert_shown(algorithm, tmp_path, "")


def test_an_endless_response(parrot, train, tokenizer, tmp_path):
    letter = byte(tokenizer, ord("a"))
    algorithm = train(parrot({**saying(tokenizer, [letter]), letter: letter}))
    assert responses(algorithm) == [[letter] * 12] * len(responses(algorithm))
    assert_sound(algorithm)
    assert algorithm.batch.record["response/truncated"] == 1 and algorithm.batch.record["ranking/ranked"] > 0
    assert_shown(algorithm, tmp_path, "a" * 12)


def test_bytes_that_are_no_text(parrot, train, tokenizer, tmp_path):
    letters = [byte(tokenizer, value) for value in (0xFF, 0xE2, 0x82, 0xC0, 0x00)]
    algorithm = train(parrot(saying(tokenizer, [*letters, tokenizer.eos_token_id])))
    assert responses(algorithm) == [[*letters, tokenizer.eos_token_id]] * len(responses(algorithm))
    assert_sound(algorithm)
    shown = last_text(algorithm.batch.groups[0].samples[0].rollout, algorithm.tokenizer)
    assert "\ufffd" in shown and shown.endswith("\0")
    assert_shown(algorithm, tmp_path, shown)


def test_text_that_spells_a_control_token_is_quoted_token_for_token(parrot, train, tokenizer, tmp_path):
    """The second step's reflection prompts quote it; its guidance, which spells one too, opens no turn either."""
    spelled = [byte(tokenizer, ord(letter)) for letter in "<|syem>"]
    guidance = "Try<|user|><|end|>again."
    algorithm = train(parrot(saying(tokenizer, [*spelled, tokenizer.eos_token_id])), guidance=guidance)
    assert_sound(algorithm)
    reflections = [g for g in algorithm.batch.groups if g.prompt.context == Context.REFLECTION]
    assert reflections
    user, assistant, end = tokenizer.convert_tokens_to_ids(["<|user|>", "<|assistant|>", "<|end|>"])
    for group in reflections:
        rollout = group.samples[0].rollout
        prompt = rollout.tokens[: rollout.prompt_length]
        control = [token for token in prompt.tolist() if token in tokenizer.all_special_ids]
        assert control == [user, end, assistant, end, user, end, assistant]
        assert spelled == group.prompt.attempt.response_tokens.tolist()[:-1]
        assert guidance in tokenizer.decode(prompt)
    assert_shown(algorithm, tmp_path, "<|syem>")


def test_a_step_whose_groups_are_all_wrong_or_all_right_moves_nothing(parrot, train, tokenizer):
    """The first step has nothing to replay: no advantage, no gradient; it is counted, and the schedule goes on."""
    end = tokenizer.eos_token_id
    folder = parrot(saying(tokenizer, [end]))
    algorithm = train(folder, steps=1)
    assert all(group.homogeneous for group in algorithm.batch.groups)
    assert_sound(algorithm, steps=1)
    record = algorithm.batch.record
    assert record["groups/solve_none"] == record["groups/zero_advantage"] == 1
    assert record["policy/grad_norm"] == record["policy/loss"] == 0
    assert np.all([s.advantages == 0 for g in algorithm.batch.groups for s in g.samples])
    from transformers import AutoModelForCausalLM

    before = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    after = algorithm.learner_group._learner.module["default_policy"].lm.state_dict()
    assert all(after[name].equal(tensor) for name, tensor in before.items())
    assert algorithm.rollout_workers.version > 0
