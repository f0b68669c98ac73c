"""Training on episodes of an agent that asks the policy over its endpoint."""

import resource
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from algorithms.rollout.types import NEW_CONTEXT
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint
from r3env.agents import server
from r3env.agents.session import Session
from r3env.agents.types import Policy

from .runs_of import largest_difference, train, weights

pytest.importorskip("openai")


@pytest.fixture
def agents(r3_config, small_pool):
    """Two opinions of each problem, with replay and reflection beside them."""
    options = {"agent": "examples.two_opinions:solve", "data": small_pool, "instruction": ""}
    return (
        r3_config.environment("r3env/Agent-v0", env_config=options)
        .reflection(min_attempts=1, threshold=0.9)
        .training(queries_per_step=4)
        .evaluation(data=None)
    )


@pytest.mark.slow
def test_agents_are_trained_and_a_resumed_run_is_the_uninterrupted_one(agents, build, tmp_path):
    whole = build(agents.copy())
    before = weights(whole)
    train(whole, 1)
    path = save_checkpoint(whole, tmp_path)
    expected = train(whole, 2)
    resumed = build(agents.copy())
    load_checkpoint(resumed, path)
    assert train(resumed, 2) == expected
    assert largest_difference(weights(whole), weights(resumed)) == 0.0
    assert largest_difference(before, weights(whole)) > 0
    for record in expected:
        assert record["rollout/environment_errors"] == 0 and record["policy/logp_mismatch_max"] < 1e-3
    samples = [sample for group in whole.batch.rolled_out for sample in group.fresh]
    # Each episode has its second opinion in a context of its own, and is one member of its group.
    assert all(np.count_nonzero(sample.rollout.tokens == NEW_CONTEXT) >= 1 for sample in samples)
    assert expected[-1]["rollout/changed_prefixes"] == len(samples)
    assert {sample.rollout.context for sample in samples} == {"plain", "reflection"}
    (size,) = {len(group.fresh) for group in whole.batch.rolled_out}
    assert size == whole.config.training_settings.group_size


@pytest.mark.slow
def test_500_hostile_connections_cost_a_run_nothing(agents, build):
    undisturbed = train(build(agents.copy()), 3)
    threads, memory = _threads(), _memory()
    port = urlsplit(server.endpoint().open(Session(Policy()))).port
    command = [sys.executable, "-m", "tests.hostile_clients", str(port), "500"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as attackers:
        attacked = train(build(agents.copy()), 3)
        assert attackers.poll() is None
        more_threads, more_memory = _threads() - threads, _memory() - memory
        attackers.kill()
    assert attacked == undisturbed and attacked[-1]["rollout/environment_errors"] == 0
    assert more_threads < 10 and more_memory < 256 << 20


def _threads():
    """Count the threads that are not an episode's."""
    return sum(not thread.name.startswith("environment-") for thread in threading.enumerate())


def _memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
