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


TALKATIVE = """
import gymnasium

from r3env.adapters.foreign import ForeignEnv, Reply
from r3env.core import Query


class Talkative(ForeignEnv):
    def load_queries(self):
        return [Query(str(number), f"{number}+2", "") for number in range(1, 9)]

    def begin(self, query):
        self.turns = 0

    def reply(self, response):
        self.turns += 1
        return Reply("x" * 700, 1.0, self.turns == 2)


gymnasium.register("Talkative-v0", Talkative)
"""


@pytest.mark.vllm
def test_vllm_has_room_for_what_an_environment_writes_between_two_turns(tmp_path, monkeypatch):
    (tmp_path / "talkative.py").write_text(TALKATIVE)
    monkeypatch.syspath_prepend(str(tmp_path))
    row = one_step(
        ["environment.id=talkative:Talkative-v0", "env_runners.engine=vllm"],
        tmp_path,
        "env_runners.max_response_tokens=48",
    )
    assert row["rollout/environment_errors"] == 0 and row["response/mean_tokens"] > 48


def test_one_step_on_a_server_of_openenv_with_fewer_sessions_than_episodes(openenv_server, tmp_path, request):
    pytest.importorskip("openenv", reason="openenv-core is not installed")
    request.getfixturevalue("ray_session")
    with openenv_server(2) as url:
        one_step([*OPENENV, f"environment.options={{url: '{url}', size: 4, sessions: 2}}"], tmp_path)


def one_step(environment, tmp_path, *more):
    assert main("r3_grpo", [*environment, *SMALL, *more, f"run.dir={tmp_path}"]) == 0
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert row["rollout/prompts_completed"] == row["rollout/prompts_expected"] == 2
    assert row["groups/count"] == 2
    return row
