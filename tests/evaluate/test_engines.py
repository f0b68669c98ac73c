"""Evaluations by engines other than the one in this process."""

import pytest
import ray

from algorithms.evaluate import main
from algorithms.evaluation.responses import ResponseFolder

pytestmark = pytest.mark.slow

PROBLEMS, SAMPLES, LONGEST = 4, 2, 32
ASKED = [
    *("--model", "embedded:tiny", "--config", "configs/quickstart.yaml", "--data", "math=embedded:heldout"),
    *("--samples", str(SAMPLES), f"evaluation.limit={PROBLEMS}", f"env_runners.max_response_tokens={LONGEST}"),
]


def responses(out, *settings):
    assert main([*ASKED, "--out", str(out), *settings]) == 0
    assert (out / "scores.json").is_file()
    return {(one.uid, one.sample): one for one in ResponseFolder(out / "responses").read()}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return responses(tmp_path_factory.mktemp("evaluation") / "here")


@pytest.fixture
def ray_ends():
    """Ends what the evaluation started."""
    yield
    ray.shutdown()


def test_an_env_runner_of_its_own_answers_what_this_process_answers(here, tmp_path, ray_ends):
    there = responses(tmp_path / "out", "env_runners.num_env_runners=1")
    assert there.keys() == here.keys() and len(here) == PROBLEMS * SAMPLES
    same = sum(there[key].response == here[key].response for key in here)
    assert same >= len(here) - 1, "the same seeds; batches of other sizes differ by float noise"


VLLM = ["--engine", "vllm", "env_runners.vllm={max_model_len: 256, enforce_eager: true, gpu_memory_utilization: 0.2}"]


@pytest.mark.vllm
def test_vllms_greedy_answers_are_those_of_this_process_with_another_seed(tmp_path):
    greedy = ["--greedy", "--samples", "1", "evaluation.limit=8"]
    here = responses(tmp_path / "here", *greedy)
    there = responses(tmp_path / "there", *greedy, *VLLM, "run.seed=7")
    assert {key: one.response for key, one in there.items()} == {key: one.response for key, one in here.items()}
    assert len(here) == 8 and len({one.response for one in here.values()}) > 1


@pytest.mark.vllm
def test_vllm_answers_the_same_problems(here, tmp_path):
    there = responses(tmp_path / "out", *VLLM)
    assert there.keys() == here.keys()
    for key, one in there.items():
        assert one.prompt == here[key].prompt and 0 < one.tokens <= LONGEST
        assert one.response and one.verdict
