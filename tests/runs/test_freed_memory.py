"""Freed memory goes back to the system: of what each of hundreds of threads frees the C library would keep a part."""

import subprocess
import sys

import pytest

from algorithms.grpo.config import GRPOConfig
from algorithms.rollout import env_runner
from algorithms.rollout.types import Prompt, Request, Sampling, Split
from algorithms.rollout.workers import inference_workers
from algorithms.utils import process
from r3env.envs.math import MathEnv

# Of what each thread takes it leaves a fiftieth, so that no arena is empty.
THREADS = """
import threading
import psutil
from algorithms.utils.process import return_free_memory

def mib():
    return psutil.Process().memory_info().rss / 2**20

left, together = [], threading.Barrier(100)

def episode():
    texts = [bytearray(2000) for _ in range(500)]
    together.wait(60)
    left.extend(texts[::50])

before = mib()
threads = [threading.Thread(target=episode) for _ in range(100)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
left.clear()
threads.clear()
grown = mib() - before
return_free_memory()
print(grown, mib() - before)
"""


@pytest.mark.skipif(not hasattr(process._C_LIBRARY, "malloc_trim"), reason="the C library is not glibc")
def test_what_threads_have_freed_goes_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, timeout=120)
    grown, kept = map(float, done.stdout.split())
    assert kept < grown / 2


def test_a_c_library_without_the_call_is_no_error(monkeypatch):
    monkeypatch.setattr(process, "_C_LIBRARY", object())
    process.return_free_memory()


@pytest.mark.parametrize("agents", [True, False])
def test_a_runner_of_agents_gives_memory_back_once_its_episodes_have_ended(monkeypatch, agents):
    config = GRPOConfig().environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
    config = config.rl_module(model="embedded:tiny").env_runners(max_num_seqs=2, num_threads=1)
    prompt, sampling = Prompt(MathEnv("embedded:train").uids[0]), Sampling(1.0, 1.0, 4)
    with inference_workers(config, start_ray=None) as workers:
        runner, unfinished = workers.group.local_env_runner, []
        runner._runs_agents = agents
        monkeypatch.setattr(
            env_runner, "return_free_memory", lambda: unfinished.append(runner.episode_runner.unfinished)
        )
        workers.rollout([Request(i, prompt, i, 100 + i, sampling, Split.EVALUATION) for i in range(6)])
    assert bool(unfinished) == agents and not any(unfinished)
