"""One Ray for the folder, and models that say exactly what a test wants."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.r3_grpo.config import R3GRPOConfig
from tests.faults.unsynced import compile_recorder
from tests.own_ray import own_ray


@pytest.fixture(scope="package")
def ray_session() -> Iterator[None]:
    with own_ray():
        yield


@pytest.fixture(scope="package")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What logs the syncs of a process that it is preloaded into."""
    found = compile_recorder(tmp_path_factory.mktemp("library"))
    if found is None:
        pytest.skip("needs Linux and a C compiler: cc or gcc")
    return found


@pytest.fixture(scope="package")
def tokenizer() -> Any:
    from benchmarks.embedded_model.build import build_tokenizer

    return build_tokenizer()


@pytest.fixture
def parrot(tokenizer: Any, tmp_path: Path) -> Callable[[Mapping[int, int]], Path]:
    """Writes a model folder: a real Qwen2 whose next token is a table of its last one, at nearly every draw.

    Its layers add nothing, so that the head sees the last token's one-hot embedding.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    def make(following: Mapping[int, int]) -> Path:
        size = len(tokenizer)
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=size,
                hidden_size=size + size % 2,
                intermediate_size=4,
                num_hidden_layers=1,
                num_attention_heads=1,
                num_key_value_heads=1,
                max_position_embeddings=256,
                tie_word_embeddings=False,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
        with torch.no_grad():
            for name, weights in model.named_parameters():
                weights.copy_(torch.ones_like(weights) if "norm" in name else torch.zeros_like(weights))
            model.get_input_embeddings().weight.copy_(torch.eye(size, size + size % 2))
            for token, successor in following.items():
                model.lm_head.weight[successor, token] = 4.0
        folder = tmp_path / "parrot"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Three problems in a file."""
    file = tmp_path / "problems.jsonl"
    rows = [{"problem": f"{n}+{n}", "answer": str(2 * n)} for n in (1, 2, 3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def train(ray_session: None, build: Callable[[Any], Any], problems: Path) -> Callable[..., Any]:
    """Trains R³ for two steps on a model; reflection asks again after every failure."""

    def run(model: Path | str, *, steps: int = 2, response: int = 12, guidance: str = "Try again.") -> Any:
        config = (
            R3GRPOConfig()
            .environment(data=str(problems), instruction="", reflection_guidance=guidance)
            .rl_module(model=str(model))
            .env_runners(max_response_tokens=response)
            .training(lr=1e-3, warmup_steps=4, group_size=3, queries_per_step=3)
            .reflection(min_attempts=1, threshold=1.0, max_share=0.5)
            .evaluation(samples=1, k=[1])
            .debugging(seed=1)
        )
        algorithm = build(config)
        for _ in range(steps):
            algorithm.train()
        return algorithm

    return run
