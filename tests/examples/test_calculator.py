"""A base that mostly gives up learns to call a calculator, on the CPU."""

import json

import pyarrow.parquet as pq
import pytest

from algorithms.train.main import main
from benchmarks.embedded_model.build import build_tokenizer
from examples.calculator import LESSONS, Teacher, make, multiply


def test_a_first_turn_calls_as_often_as_it_is_told_to():
    from examples.calculator import CHAT_TEMPLATE, WORDS

    tokenizer = build_tokenizer(WORDS)
    tokenizer.chat_template = CHAT_TEMPLATE
    teacher = Teacher(tokenizer, seed=1)
    said = [tokenizer.decode(teacher.example(0.15).response) for _ in range(400)]
    calls, given_up = (sum(text.startswith(start) for text in said) for start in ("<tool_call>", "\\boxed{0}"))
    assert 10 <= calls <= 60 and 120 <= given_up <= 220
    assert LESSONS[-1][1] == 0.15 and multiply(12, 34) == 408


@pytest.mark.slow
def test_the_policy_learns_to_call_the_calculator(tmp_path, ray_session):
    make(tmp_path / "base")
    settings = [
        *("environment.id=r3env/Tools-v0", "environment.options.tools=[examples.calculator:multiply]"),
        *(f"environment.data={tmp_path}/base/train.jsonl", f"evaluation.data={tmp_path}/base/heldout.jsonl"),
        *("environment.instruction=''", "environment.max_turns=3", f"rl_module.model={tmp_path}/base"),
        *("env_runners.max_response_tokens=12", "training.lr=1e-3", "training.warmup_steps=0"),
        *("run.steps=8", f"run.dir={tmp_path}", "run.name=run"),
        *("evaluation.samples=1", "evaluation.k=[1]", "evaluation.limit=3"),
    ]
    assert main("grpo", settings) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    used = [row["tools/used"] for row in rows]
    assert used[0] < 0.4 and min(used[-3:]) > 0.8
    correct = [row["reward/correct"] for row in rows]
    assert sum(correct[-3:]) > 3 * correct[0] + 0.3
    assert all(row["rollout/environment_errors"] == 0 and row["tools/failed"] < 0.5 for row in rows)
    assert max(row["policy/logp_mismatch_max"] for row in rows) < 1e-3, "the tokens of tools' turns are the engine's"
    last = [row for row in pq.read_table(tmp_path / "run" / "rollouts").to_pylist() if row["step"] == 8]
    solved = next(row for row in last if row["correct"] and len(row["turn_lengths"]) == 2)
    assert [turn["role"] for turn in solved["turns"]] == ["user", "assistant", "tool"]
    assert solved["response"] == f"\\boxed{{{solved['turns'][2]['content']}}}"
