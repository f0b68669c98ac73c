"""The adapters' environments are trained by their names, as any other's."""

import importlib.util
import json

import pytest

from algorithms.train.main import main
from tests.own_ray import own_ray

pytestmark = pytest.mark.slow

SMALL = (
    "run.steps=1",
    "run.name=run",
    "env_runners.max_response_tokens=12",
    "training.group_size=2",
    "training.queries_per_step=2",
    "evaluation.samples=1",
    "evaluation.k=[1]",
    "evaluation.limit=2",
)
GEM = (
    "environment.id=r3env.adapters.gem:Gem-v0",
    "environment.data=train",
    "evaluation.data=heldout",
    "environment.options.name=game:GuessTheNumber-v0-easy",
)
SKYRL = (
    "environment.id=r3env.adapters.skyrl_gym:SkyRLGym-v0",
    "environment.options={name: gsm8k_multi_turn, extras: {max_turns: 2}}",
)
OPENENV = (
    "environment.id=r3env.adapters.openenv:OpenEnv-v0",
    "environment.data=train",
    "evaluation.data=heldout",
)


@pytest.fixture(scope="module")
def ray_session():
    with own_ray(4):
        yield


@pytest.mark.parametrize(("package", "environment"), [("gem", GEM), ("skyrl_gym", SKYRL)])
def test_one_step(package, environment, tmp_path, request):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    request.getfixturevalue("ray_session")
    one_step(environment, tmp_path)


@pytest.mark.vllm
def test_one_step_of_several_turns_with_vllm(tmp_path, request):
    """What such an environment writes between two answers is not known: the engine's context has room for it."""
    if importlib.util.find_spec("gem") is None:
        pytest.skip("gem is not installed")
    request.getfixturevalue("ray_session")
    row = one_step([*GEM, "env_runners.engine=vllm"], tmp_path)
    assert row["rollout/turns"] > 1.0


def test_one_step_on_a_server_of_openenv_with_fewer_sessions_than_episodes(openenv_server, tmp_path, request):
    pytest.importorskip("openenv", reason="openenv-core is not installed")
    request.getfixturevalue("ray_session")
    with openenv_server(2) as url:
        one_step([*OPENENV, f"environment.options={{url: '{url}', size: 4, sessions: 2}}"], tmp_path)


def one_step(environment, tmp_path):
    assert main("r3_grpo", [*environment, *SMALL, f"run.dir={tmp_path}"]) == 0
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert row["rollout/prompts_completed"] == row["rollout/prompts_expected"] == 2
    assert row["groups/count"] == 2
    return row
