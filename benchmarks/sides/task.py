"""The two tasks on which trainers are compared, and the environments that both sides take their rewards from."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from algorithms.models.names import resolve_model
from r3env.core import Queries, Query, Reason, Verdict, VerifiableEnv
from r3env.data.loading import load_queries

FIXED_ID = "benchmarks.sides.task:FixedLength-v0"


@dataclass(frozen=True)
class Task:
    """The task and settings of both sides.

    Args:
        environment: Gymnasium id.
        model: folder; its tokenizer's end-of-turn token is never sampled when lengths are fixed.
        max_response_tokens: at which a response is truncated; all responses have this length when lengths are fixed.
        queries: prompts a step.
        group_size: responses a prompt.
        lr: learning rate after the warm-up.
        warmup_steps: steps of a linearly rising learning rate.
        threads: of torch, in either process.
        micro_batch: responses in a micro-batch of TRL.
        token_budget: tokens in a micro-batch of this project.
        seed: of each side's sampling and shuffling.
        engine: of this project.
        options: of the environment, as its constructor takes them.
        lengths: tokens of a step's responses, whose arithmetic alone is timed.
        prompt_tokens: of a step's prompts, each counted once.
    """

    environment: str
    model: str
    max_response_tokens: int
    queries: int = 32
    group_size: int = 8
    lr: float = 1.2e-4
    warmup_steps: int = 10
    threads: int = 1
    micro_batch: int = 32
    token_budget: int = 2048
    seed: int = 0
    engine: str = "transformers"
    options: Mapping[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    prompt_tokens: int = 0

    @property
    def samples(self) -> int:
        """Responses per step."""
        return self.queries * self.group_size

    @property
    def environment_options(self) -> dict[str, Any]:
        """All options of the environment; the models of ours know no instruction."""
        return {**({"instruction": ""} if self.environment.startswith("r3env/") else {}), **self.options}

    def make_environment(self) -> VerifiableEnv:
        """Return the environment, without Gymnasium's wrappers."""
        environment = gymnasium.make(self.environment, disable_env_checker=True, **self.environment_options).unwrapped
        if not isinstance(environment, VerifiableEnv):
            raise TypeError(f"{self.environment} is not a VerifiableEnv")
        return environment


class FixedLength(VerifiableEnv):
    """The embedded problems; the reward is the share of digits in a response, so that groups are never homogeneous."""

    def load_queries(self) -> Sequence[Query] | Queries:
        """Return the embedded training problems."""
        return load_queries("embedded:train")

    def verify(self, query: Query, response: str) -> Verdict:
        """Return an incorrect verdict, since responses are truncated, with the share of digits as its score."""
        return Verdict(False, Reason.DIFFERENT, score=sum(map(str.isdigit, response)) / max(1, len(response)))


gymnasium.register("FixedLength-v0", entry_point="benchmarks.sides.task:FixedLength")


def endless_model(folder: Path) -> str:
    """Write the embedded model with an end-of-turn token that it has no logit for; return its folder."""
    source = resolve_model("embedded:tiny")
    shutil.copytree(source, folder)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    config = AutoConfig.from_pretrained(source)
    if tokenizer.eos_token_id < config.vocab_size:
        raise RuntimeError(f"token {tokenizer.eos_token_id} is one of the model's {config.vocab_size}")
    # Nor does its template close the policy's turns with a token that would end them.
    closing = "message['content'] + '<|end|>'"
    if closing not in tokenizer.chat_template:
        raise RuntimeError(f"the embedded model's chat template has no {closing}")
    open_ended = "message['content'] + ('' if message['role'] == 'assistant' else '<|end|>')"
    tokenizer.chat_template = tokenizer.chat_template.replace(closing, open_ended)
    tokenizer.save_pretrained(folder)
    config.eos_token_id = tokenizer.eos_token_id
    config.save_pretrained(folder)
    generation = GenerationConfig.from_pretrained(source)
    generation.eos_token_id = tokenizer.eos_token_id
    generation.save_pretrained(folder)
    return str(folder)


# The vocabulary of Qwen3, and a shape of 0.14 billion parameters in its family.
VOCABULARY = 151_936
QWEN3_140M = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 20,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


def wide_model(folder: Path, shape: Mapping[str, Any] = QWEN3_140M) -> str:
    """Write a random Qwen3 that never ends, with a token of the tokenizer for each of its logits; return its folder.

    The tokens that the embedded tokenizer lacks are numbers, so that responses differ in their share of digits.
    """
    endless_model(folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary, added = content["model"]["vocab"], content["added_tokens"]
    never = next(token for token in added if token["content"] == "<|never|>")
    never["id"] = shape["vocab_size"]
    # An added token keeps its id only where the vocabulary has it: others follow behind it.
    vocabulary |= {token["content"]: token["id"] for token in added if token is not never}
    known = set(vocabulary.values())
    vocabulary |= {f"{'x' * (i % 7)}{i}": i for i in range(never["id"]) if i not in known}
    file.write_text(json.dumps(content), encoding="utf-8")
    (folder / "model.safetensors").unlink()
    torch.manual_seed(0)
    ends = {"eos_token_id": never["id"], "pad_token_id": 0}
    Qwen3ForCausalLM(Qwen3Config(**shape, **ends)).save_pretrained(folder)
    GenerationConfig(**ends).save_pretrained(folder)
    return str(folder)
