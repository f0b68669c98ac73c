"""Run directories with everything that a page shows, written by the library's own writers."""

import numpy as np
import yaml

from algorithms.train.rollout_files import RolloutRow, TokenData, write_rollouts
from algorithms.train.run_directory import RunDirectory

# What a policy may write to break out of a page; each would set the window's title, or a flag.
HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!--<script>",
    "{{DATA}} ${data} `</style>`",
    "\u2028\ud800 &lt;b&gt; &#60;",
)
PIECES = ("1", "+", "1", "=", "2", "\n", "\\boxed", "{", "2", "}", "<|end|>")


def config(**changed):
    """A resolved configuration; `section__key` replaces one setting."""
    sections = {
        "algorithm": "r3_grpo",
        "run": {"name": "a", "steps": 4, "seed": 0},
        "environment": {"id": "r3env/Math-v0", "data": "problems.jsonl"},
        "rl_module": {"model": "embedded:tiny"},
        "training": {"lr": 1e-4, "group_size": 3},
        "evaluation": {"data": "heldout.jsonl"},
    }
    for name, value in changed.items():
        section, key = name.split("__")
        sections[section][key] = value
    return sections


def row(step=1, group=0, uid="q-0", **changed):
    """A plain, correct sample whose tokens are all known."""
    length = len(PIECES)
    values = {
        "context": "plain",
        "prompt": "1+1?",
        "response": "".join(PIECES[:-1]),
        "reward": 1.0,
        "advantage": 0.7,
        "correct": True,
        "truncated": False,
        "verdict": "equal",
        "tokens": length,
        "replayed": False,
        "outcome_reward": 1.0,
        "answer": "2",
        "turns": ({"role": "user", "content": "1+1?"},),
        "turn_lengths": (length,),
        "token_data": TokenData(PIECES, -np.linspace(0, 2, length), np.linspace(0, 1.5, length)),
    }
    return RolloutRow(step=step, group=group, uid=uid, **(values | changed))


def wrong(**changed):
    values = {"correct": False, "verdict": "different", "reward": 0.0, "outcome_reward": 0.0, "advantage": -0.7}
    return row(**(values | changed))


def step_rows(step):
    """Three groups: correct, incorrect and truncated answers; a reflection; and two live turns with feedback."""
    quoted = (
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "It is 3."},
        {"role": "user", "content": "Wrong. Try again."},
    )
    live = (
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "No."},
    )
    ends = ("5", "<|end|>", "4", "<|end|>")
    two_turns = TokenData(ends, -np.ones(4), np.ones(4), -np.ones(4), np.array([-0.5, -0.5, 1, 1]))
    return [
        row(step=step),
        wrong(step=step),
        wrong(step=step, truncated=True, ranking_reward=-0.05, reward=-0.05, verdict="no_answer"),
        row(step=step, replayed=True, verdict="replayed", turns=(), token_data=TokenData(PIECES, -np.ones(11), None)),
        *(wrong(step=step, group=1, uid="q-1", context="reflection", turns=quoted) for _ in range(2)),
        row(
            step=step,
            group=2,
            uid="q-2",
            turns=live,
            turn_lengths=(2, 2),
            tokens=4,
            response="4",
            turn_starts=(4, 9),
            turn_rewards=(0.0, 1.0),
            turn_feedback=("No.", ""),
            baseline="pair",
            token_data=two_turns,
        ),  # fmt: skip
        wrong(
            step=step,
            group=2,
            uid="q-2",
            turns=live[:1],
            response=HOSTILE[0],
            turn_starts=(4,),
            turn_rewards=(-0.25,),
            turn_feedback=(HOSTILE[1],),
            baseline="pair",
            token_data=TokenData(HOSTILE, -np.ones(5), np.ones(5)),
        ),
    ]


def metrics(step):
    return {
        "step": step,
        "reward/mean": 0.1 * step,
        "groups/solve_all": 0.0,
        "groups/solve_none": 0.5,
        "policy/entropy": 0.5 / step,
        "response/truncated": 0.2,
        "response/no_answer": 0.1,
        "response/mean_tokens": 11.0,
        "throughput/generated_tokens": 88.0 * step,
        "run/wall_s": 2.0 * step,
    }


def evaluation(step, share):
    uids = [f"h-{number}" for number in range(12)]
    correct = {uid: share if number % 2 else 1.0 for number, uid in enumerate(uids)}
    mean = sum(correct.values()) / 12
    return {
        "step": step,
        "metrics": {
            "pass@1": mean,
            "pass@4": mean,
            "mean_tokens": 11.0,
            "truncated": 0.0,
            "no_answer": 0.25,
            "problems": 12,
            "samples": 4,
        },
        "correct": correct,
        "levels": {uid: str(2 + number % 2 * 8) for number, uid in enumerate(uids)},
    }


def make_run(parent, name="a", *, steps=4, rollouts=step_rows, finished=True, **changed):
    """A run of some steps; `changed` as in `config`."""
    run = RunDirectory.create(parent, name, yaml.safe_dump(config(**changed)))
    for step in range(1, steps + 1):
        run.append_metrics(metrics(step))
        if rollouts:
            write_rollouts(run.rollout_file(step), rollouts(step))
    run.write_evaluation({"before": evaluation(0, 0.25)} | ({"after": evaluation(steps, 0.75)} if finished else {}))
    if finished:
        run.write_summary(
            {"algorithm": "R3GRPO", "steps": steps, "generated_tokens": 88 * steps, "wall_s": 2.0 * steps}
        )
    return run.path
