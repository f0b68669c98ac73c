"""A function gets from `r3env/Function-v0` what TRL's own trainer gives it, one completion at a time."""

import functools
import json
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
pytestmark = pytest.mark.slow  # the trainer's imports

import torch  # noqa: E402
from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402

from r3env.core import Reason  # noqa: E402
from r3env.envs.function import FunctionEnv  # noqa: E402

ROWS = [{"problem": "1+1?", "answer": "2", "kind": "sum"}, {"problem": "3*4?", "answer": "12", "kind": "product"}]
RESPONSES = ["It is 2.", "<think>\nwell\n</think>\nIt is 12, or \\boxed{12}."]
# Each pays by what it was given, so that other arguments would pay otherwise.
FUNCTIONS = """
from typing import Dict, List

def content(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]

def of_messages(completions: list[list[dict[str, str]]], prompts, answer, kind, **kwargs):
    assert all(message["role"] == "assistant" for completion in completions for message in completion)
    assert all(set(prompt[-1]) == {"role", "content"} and prompt[-1]["role"] == "user" for prompt in prompts)
    return [
        float(gold in content(completion)) + 0.01 * len(content(completion)) + 0.001 * len(prompt[-1]["content"])
        + (0.5 if one == "sum" else 0.0)
        for completion, prompt, gold, one in zip(completions, prompts, answer, kind, strict=True)
    ]

def of_typed_messages(completions: List[List[Dict[str, str]]], prompts, answer, kind, **kwargs):
    return of_messages(completions, prompts, answer, kind)

def of_text(completions: list[str], prompts, answer, kind, **kwargs):
    assert all(isinstance(one, str) for one in (*completions, *prompts))
    return [float(gold in one) + 0.01 * len(one) for one, gold in zip(completions, answer, strict=True)]

def that_logs(completions: list[str], log_metric, log_extra, **kwargs):
    log_metric("one", 1.0)
    log_extra("column", [1] * len(completions))
    return [bool("2" in one) for one in completions]

async def awaited(completions: list[str], **kwargs):
    return [float(len(one)) for one in completions]

def only_of_sums(completions: list[str], kind, **kwargs):
    return [1.0 if one == "sum" else None for one in kind]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trl")
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def rewards_of_trl(function: Any, *, conversational: bool) -> list[float]:
    """What the trainer's own method gets for both responses; of the trainer there is only what that method reads."""
    import asyncio
    import threading
    from collections import defaultdict

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    trainer = types.SimpleNamespace(
        accelerator=types.SimpleNamespace(device="cpu", is_main_process=False),
        args=types.SimpleNamespace(report_to=[]),
        state=types.SimpleNamespace(global_step=1),
        environments=None,
        async_loop=loop,
        reward_funcs=[function],
        reward_processing_classes=[None],
        reward_func_names=[function.__name__],
        _pending_metrics=defaultdict(list),
    )
    trainer._log_completion_extra = lambda column, values: None
    trainer._log_metric = functools.partial(GRPOTrainer._log_metric, trainer)
    prompts: list[Any] = [row["problem"] for row in ROWS]
    completions: list[Any] = list(RESPONSES)
    if conversational:
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
        completions = [[{"role": "assistant", "content": completion}] for completion in completions]
    inputs = [{"prompt": prompt, **row} for prompt, row in zip(prompts, ROWS, strict=True)]
    calculate = GRPOTrainer._calculate_rewards.__wrapped__
    ids = [[1, 2] for _ in completions]
    rewards: torch.Tensor = calculate(trainer, inputs, prompts, completions, ids)
    loop.call_soon_threadsafe(loop.stop)
    return [float(reward) for reward in rewards[:, 0]]


def rewards_of_ours(reward: str, **options: Any) -> list[float | None]:
    env = FunctionEnv(reward=reward, grading_timeout_s=60.0, **options)
    verdicts = [env.verify(env.query(uid), response) for uid, response in zip(env.uids, RESPONSES, strict=True)]
    for verdict in verdicts:
        assert verdict.trusted or "returned None" in verdict.feedback, verdict.feedback
    return [verdict.score for verdict in verdicts]


@pytest.mark.parametrize("name", ["of_messages", "of_typed_messages", "of_text", "that_logs", "awaited"])
def test_the_rewards_are_those_that_trl_calculates(folder: Path, name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(FUNCTIONS, namespace)
    theirs = rewards_of_trl(namespace[name], conversational=name.endswith("messages"))
    ours = rewards_of_ours(f"{folder}/functions.py:{name}", data=str(folder / "rows.jsonl"))
    assert ours == pytest.approx(theirs) and len(set(theirs)) + (name == "that_logs") == 2


def test_where_trl_leaves_a_completion_out_so_does_the_environment(folder: Path) -> None:
    namespace: dict[str, Any] = {}
    exec(FUNCTIONS, namespace)
    theirs = rewards_of_trl(namespace["only_of_sums"], conversational=False)
    env = FunctionEnv(str(folder / "rows.jsonl"), reward=f"{folder}/functions.py:only_of_sums", grading_timeout_s=60.0)
    verdicts = [env.verify(env.query(uid), "") for uid in env.uids]
    assert theirs[0] == verdicts[0].score == 1.0
    assert theirs[1] != theirs[1] and verdicts[1].reason is Reason.UNGRADED


@pytest.mark.parametrize(
    ("name", "columns"), [("think_format_reward", {}), ("accuracy_reward", {"solution": "answer"})]
)
def test_rewards_that_come_with_trl_work_by_their_names(folder: Path, name: str, columns: dict[str, str]) -> None:
    import trl.rewards

    function = getattr(trl.rewards, name)
    if columns:
        function = functools.wraps(function)(
            lambda **given: getattr(trl.rewards, name)(solution=given["answer"], **given)
        )
    theirs = rewards_of_trl(function, conversational=True)
    ours = rewards_of_ours(f"trl.rewards:{name}", data=str(folder / "rows.jsonl"), columns=columns)
    assert ours == theirs and 1.0 in theirs
