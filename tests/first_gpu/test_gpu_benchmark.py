"""`benchmarks.gpu` measures training: its rewards give gradients, and it says so when they do not."""

import json
import math

import pytest

from benchmarks import gpu
from benchmarks.random_rewards import RandomRewards


def scores(seed, responses):
    environment = RandomRewards(reward_seed=seed, data="embedded:train")
    query = next(iter(environment.queries.values()))
    return [environment.reward(query, environment.verify(query, response)) for response in responses]


def test_random_rewards_are_a_function_of_seed_and_response():
    responses = [f"nonsense {index}" for index in range(200)]
    assert scores(0, responses) == scores(0, responses) != scores(1, responses)
    assert len(set(scores(0, responses))) == 200
    assert 0.4 < sum(scores(0, responses)) / 200 < 0.6


@pytest.mark.parametrize("norm", [0.0, math.nan, math.inf])
def test_a_step_without_a_gradient_makes_the_measurement_void(norm):
    assert gpu.why_void([{"grad_norm": 0.3}]) == ""
    assert "void: gradient norm" in gpu.why_void([{"grad_norm": 0.3}, {"grad_norm": norm}])


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert gpu.main([]) == 2
    assert "needs a GPU" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_runs_on_a_cpu(tmp_path):
    path = tmp_path / "out.json"
    sizes = ["--steps", "1", "--sequences", "8", "--queries", "2", "--response-tokens", "16"]
    assert gpu.main(["--cpu", "--layouts", "one process", "ipc", *sizes, "--json", str(path)]) == 0
    (result,) = json.loads(path.read_text())["results"]
    assert result["layout"] == "one process" and result["void"] == ""
    assert all(step["grad_norm"] > 0 and step["generated_tokens_per_s"] > 0 for step in result["steps"])
