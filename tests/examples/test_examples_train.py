"""Every example is started and trained by its name; the embedded model only knows arithmetic, so it wins nothing."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.conversation import conversation
from algorithms.train.main import main

SORT_DIGITS = "examples.sort_digits:SortDigits-v0"
GUESS_NUMBER = "examples.guess_number:GuessNumber-v0"
RETRIEVE_ANSWER = "examples.retrieve_answer:RetrieveAnswer-v0"
WRITE_FUNCTION = "examples.write_function:WriteFunction-v0"
COUNTER_GAME = "examples.counter_game:CounterGame-v0"
HINTED_SUMS = "examples.hinted_sums:HintedSums-v0"
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
@pytest.mark.parametrize(
    ("name", "setting", "prompt"),
    [
        (SORT_DIGITS, "environment.max_turns=1", "Sort the digits of"),
        (GUESS_NUMBER, "environment.max_turns=3", ""),
        (WRITE_FUNCTION, "env_runners.num_env_runners=1", ""),
    ],
)
def test_trained(name, setting, prompt, small_run, metrics, tmp_path, ray_session):
    assert main("r3_grpo", [f"environment.id={name}", *OWN_DATA, *small_run, setting]) == 0
    assert all(prompt in str(rollout["prompt"]) for rollout in check_run(metrics(), tmp_path / "run"))


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


def example(file, name, *overrides):
    """A method's preset on an example, small."""
    files = [configs_folder() / "quickstart.yaml", configs_folder() / f"{file}.yaml"]
    own = [f"environment.id={name}", "environment.data=train", "evaluation.data=heldout"]
    small = ["training.queries_per_step=4", "training.group_size=4", "training.minibatches=1"]
    return load(files, [*own, *small, *overrides], GRPOConfig)[0]


@pytest.fixture
def trained_by(ray_session):
    """Trains an algorithm for some steps; returns it with the groups and metrics of each."""
    algorithms = []

    def train(config, steps=1):
        algorithms.append(config.build_algo())
        seen = []
        for _ in range(steps):
            algorithms[-1].train()
            batch = algorithms[-1].batch
            seen.append((batch.rolled_out, batch.record))
        return algorithms[-1], seen

    yield train
    for algorithm in algorithms:
        algorithm.stop()


def test_what_the_game_says_of_a_failure_is_the_next_user_turn(trained_by):
    config = example("fission", COUNTER_GAME, "environment.max_turns=2", "env_runners.max_response_tokens=12")
    algorithm, ((groups, record),) = trained_by(config)
    split = [group for group in groups if group.prompt.context == "fission"]
    assert record["fission/prompts"] == record["fission/feedback"] == len(split) == 4
    failures = {}
    for group in groups:
        for sample in group.fresh:
            if group.prompt.context == "plain":
                failures[sample.rollout.tokens.tobytes()] = sample.rollout.turns[-1].feedback
    for group in split:
        attempt = group.prompt.attempt
        whole = np.concatenate([attempt.prompt_tokens, attempt.response_tokens]).astype(np.int32)
        said = failures[whole.tobytes()]
        assert "The counter is at" in said and "It is set back to" in said
        for sample in group.fresh:
            begun = sample.rollout.tokens[: sample.rollout.prompt_length]
            assert begun[: len(whole)].tolist() == whole.tolist()
            user_turn = algorithm.tokenizer.decode(begun[len(whole) :].tolist(), skip_special_tokens=True)
            assert user_turn.strip() == said


def test_turns_of_one_counter_are_compared_and_wrong_commands_lose(trained_by):
    config = example("gigpo", COUNTER_GAME, "environment.max_turns=3", "env_runners.max_response_tokens=24")
    _, seen = trained_by(config.training(group_size=8), steps=2)
    states, told_apart = set(), 0
    for groups, _ in seen:
        for group in groups:
            assert len({sample.rollout.turns[0].state for sample in group.samples}) == 1, "all begin at the start"
            states |= {turn.state for sample in group.samples for turn in sample.rollout.turns}
            first = [(s.rollout.turns[0].reward, float(s.advantages[0])) for s in group.samples]
            told_apart += any(advantage for _, advantage in first)
    assert told_apart and len(states) > len(seen) * 4, "commands move the counter"


def test_hints_help_the_embedded_model_with_sums_that_it_cannot_do(trained_by):
    config = example("scaf_grpo", HINTED_SUMS, "scaf_grpo.warmup=0", "env_runners.max_response_tokens=48")
    _, seen = trained_by(config, steps=3)
    total = {tag: sum(record[f"scaf_grpo/{tag}"] for _, record in seen) for tag in ("unsolved", "solved", "replaced")}
    assert total["unsolved"] >= 4 and 2 * total["solved"] >= total["unsolved"]
    assert total["replaced"] == total["solved"]
    hinted = [sample for groups, _ in seen for group in groups if group.prompt.hint for sample in group.fresh]
    assert len(hinted) > total["solved"], "not each level helps"


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
