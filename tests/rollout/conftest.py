"""The embedded model, its tokenizer and some of its problems."""

import functools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer, stop_token_ids
from algorithms.rollout.engines.base import Engine
from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.engines.transformers import TransformersEngine
from algorithms.rollout.episode_runner import EpisodeRunner
from algorithms.rollout.types import Split
from r3env import chat
from r3env.data.loading import load_queries
from tests.own_ray import own_ray


@pytest.fixture(scope="session")
def model_folder() -> str:
    return resolve_model("embedded:tiny")


@pytest.fixture(scope="session")
def tokenizer(model_folder):
    return load_tokenizer(model_folder)


@pytest.fixture(scope="session")
def end_tokens(tokenizer, model_folder) -> tuple[int, ...]:
    return stop_token_ids(tokenizer, model_folder)


@pytest.fixture(scope="session")
def policy(model_folder) -> torch.nn.Module:
    """The model as a plain Hugging Face module, to check against."""
    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def prompts(tokenizer) -> list[np.ndarray]:
    """Prompts of unlike lengths, the shortest problem first."""
    problems = sorted((query.problem for query in load_queries("embedded:train")), key=len)
    chosen = problems[:: len(problems) // 8][:8]
    tokens = [chat.first_turn(tokenizer, [{"role": "user", "content": problem}]) for problem in chosen]
    assert len({len(prompt) for prompt in tokens}) > 3
    return [np.array(prompt, np.int32) for prompt in tokens]


@pytest.fixture(scope="module")
def engine(model_folder, end_tokens) -> Iterator[TransformersEngine]:
    engine = TransformersEngine(model=model_folder, dtype="float32", max_num_seqs=64, eos_token_ids=end_tokens)
    yield engine
    engine.close()


# Few tokens a step, so that prompts have to wait for one another. The share of memory leaves a GPU room for two more.
VLLM_OPTIONS = {
    "max_model_len": 256,
    "enforce_eager": True,
    "max_num_batched_tokens": 512,
    "gpu_memory_utilization": 0.2,
}


@pytest.fixture(scope="session")
def vllm_engine(model_folder, end_tokens) -> Iterator[Engine]:
    """The real one, on the CPU: it takes long to start. Who changes its weights brings the model's back."""
    engine = make_engine(
        "vllm", model=model_folder, dtype="float32", max_num_seqs=16, eos_token_ids=end_tokens, options=VLLM_OPTIONS
    )
    yield engine
    engine.close()


@pytest.fixture
def runner_with(engine, tokenizer):
    """Make an episode runner for an environment class; the engine stays open for the other tests."""

    def make(environment, **arguments):
        return EpisodeRunner(engine, tokenizer, dict.fromkeys(Split, functools.partial(environment, **arguments)))

    return make


@pytest.fixture(scope="package")
def short_run_ray() -> Iterator[None]:
    with own_ray():
        yield
