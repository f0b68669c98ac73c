"""`ray job submit`, on one node and on two, as a user types it."""

import json
from pathlib import Path

import pytest

from .ray_nodes import actor_nodes, alive_nodes

pytestmark = pytest.mark.slow

LEARNER = "_WrappedExecutable"  # what RLlib calls the actors that its learners live in


def steps(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_job_whose_driver_is_killed_starts_it_again(submit, head, tmp_path):
    deadly = ["environment.id=doubling:Deadly-v0", f"environment.options.run={tmp_path / 'job'}"]
    job = submit(*deadly, f"run.dir={tmp_path}", "run.restarts=1", "run.checkpoint_every=1")
    assert job.returncode == 0, job.stdout + job.stderr
    assert "restart 1: killed by SIGKILL" in job.stdout and "after step 1 in" in job.stdout
    assert (tmp_path / "job" / "killed").exists()
    assert [row["step"] for row in steps(tmp_path / "job")] == [1, 2]


def test_a_submitted_job_trains_on_two_nodes_and_leaves_its_run_where_it_was_told_to(
    submit, head, second_node, checkout, tmp_path
):
    (here,) = (node["node_id"] for node in alive_nodes(head) if node["is_head_node"])
    (there,) = (node["node_id"] for node in alive_nodes(head) if not node["is_head_node"])
    # Two runners of two CPUs fit only the second node, and fill it: the learner is left with the head's.
    job = submit(
        f"run.dir={tmp_path}",
        "env_runners.num_env_runners=2",
        "env_runners.num_cpus_per_env_runner=2",
        "learners.num_learners=1",
        "learners.num_cpus_per_learner=1",
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "succeeded" in job.stdout
    assert json.loads((tmp_path / "job" / "summary.json").read_text())["steps"] == 2
    assert actor_nodes(head, "EnvRunner") == [there, there]
    assert actor_nodes(head, LEARNER) == [here]
    rows = steps(tmp_path / "job")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["rollout/prompts_completed"] == row["rollout/prompts_expected"] == 3 for row in rows)
    assert all(row["policy/logp_mismatch_max"] < 1e-3 for row in rows)
    # What reached the nodes: the code and the user's own task, neither runs nor environments nor caches.
    uploaded = files(head.unpacked())
    unwanted = ("runs/", ".venv/", ".mypy_cache/")
    assert {name for name in uploaded if name.startswith(unwanted)} == set()
    assert files(checkout / "algorithms") - {"__pycache__/a.pyc"} <= {
        name.removeprefix("algorithms/") for name in uploaded
    }
    assert "doubling.py" in uploaded & files(second_node.unpacked())
