"""Every example is started and trained by its name; the embedded model only knows arithmetic, so it wins nothing."""

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import ray

from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.conversation import conversation
from algorithms.train.main import main

SORT_DIGITS = "examples.sort_digits:SortDigits-v0"
GUESS_NUMBER = "examples.guess_number:GuessNumber-v0"
WRITE_FUNCTION = "examples.write_function:WriteFunction-v0"
OWN_DATA = ("environment.data=train", "evaluation.data=heldout")


def check_run(rows, folder):
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["rollout/prompts_completed"] == row["rollout/prompts_expected"] >= 3
        assert {"reward/mean", "groups/solve_none", "policy/grad_norm", "response/mean_tokens"} <= row.keys()
        assert abs(row["reward/mean"]) <= 1
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 2 and "pass@1" in summary["eval"]["after"]
    rollouts = pq.read_table(folder / "rollouts").to_pylist()
    assert len(rollouts) >= 2 * 3 * 2
    return rollouts


@pytest.mark.slow
def test_started_from_the_shell(small_run, metrics, tmp_path, ray_session):
    command = [sys.executable, "-m", "algorithms.r3_grpo", f"environment.id={SORT_DIGITS}", *OWN_DATA, *small_run]
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert finished.returncode == 0, finished.stderr[-2000:]
    rollouts = check_run(metrics(), tmp_path / "run")
    assert all("Sort the digits of" in str(rollout["prompt"]) for rollout in rollouts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "setting"),
    [(GUESS_NUMBER, "environment.max_turns=3"), (WRITE_FUNCTION, "env_runners.num_env_runners=1")],
)
def test_trained(name, setting, small_run, metrics, tmp_path, ray_session):
    assert main("r3_grpo", [f"environment.id={name}", *OWN_DATA, *small_run, setting]) == 0
    check_run(metrics(), tmp_path / "run")


def test_an_unknown_split_is_one_line(small_run, capsys):
    assert main("r3_grpo", [f"environment.id={SORT_DIGITS}", "environment.data=tests", *small_run]) == 2
    assert "data must be train or heldout, it is 'tests'" in capsys.readouterr().err.splitlines()[-1]


def test_every_turn_of_a_game_is_in_the_tokens_and_only_the_policys_are_trained(ray_session):
    config = (
        R3GRPOConfig()
        .environment(GUESS_NUMBER, env_config={"max_turns": 3})
        .rl_module(model="embedded:tiny")
        .env_runners(max_response_tokens=12)
        .training(lr=1e-4, group_size=4, queries_per_step=2)
        .evaluation(samples=1, k=[1], limit=2)
        .reflection(enabled=False)
        .debugging(seed=3)
    )
    algorithm = config.build_algo()
    try:
        algorithm.train()
        samples = [sample for group in algorithm.batch.groups for sample in group.samples]
    finally:
        algorithm.stop()
    assert len(samples) == 8
    for sample in samples:
        check_episode(sample.rollout, algorithm.tokenizer)


def check_episode(rollout, tokenizer):
    messages = conversation(rollout, tokenizer)
    roles = [message["role"] for message in messages]
    turns = len(rollout.turn_correct)
    assert roles == ["user", "assistant"] * turns
    assert turns == 3 or rollout.correct
    spans = policy_spans(rollout.loss_mask)
    assert len(spans) == turns
    for (start, end), message in zip(spans, messages[1::2], strict=True):
        assert 1 <= end - start <= 12
        assert tokenizer.decode(rollout.tokens[start:end].tolist(), skip_special_tokens=True) == message["content"]
    between = [*(start for start, _ in spans), len(rollout.tokens)]
    for (_, end), start, message in zip(spans[:-1], between[1:], messages[2::2], strict=False):
        assert message["content"] in tokenizer.decode(rollout.tokens[end:start].tolist())
        assert message["content"].endswith("Guess again.")
    assert spans[-1][1] == len(rollout.tokens)
    assert rollout.sampling_logprobs.shape == (rollout.response_length,) and (rollout.sampling_logprobs < 0).any()


def policy_spans(mask):
    """[start, end) of each run of True."""
    edges = [i for i in range(1, len(mask)) if mask[i] != mask[i - 1]]
    edges = edges + [len(mask)] if mask[-1] else edges
    return list(zip(edges[::2], edges[1::2], strict=True))
