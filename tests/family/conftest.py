"""The presets on the embedded model: hand-made groups for the formulas, and a Ray for whole steps."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.grpo.algorithm import GRPO
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.rollout import episode_runner
from algorithms.rollout.types import Context, Rollout
from tests.own_ray import own_ray

MEMBERS = ("grpo", "dapo", "dr_grpo", "gspo", "cispo", "rloo", "ngrpo", "w_reinforce", "rl_zvp", "sapo", "dppo", "gmpo")
MEMBERS += ("clip_cov", "kl_cov", "entropy_bonus", "hgpo", "gigpo")
MEMBERS += ("sdpo", "opd", "ace", "rover", "bcpg_nsa", "ma_rlhf", "mdpo")
RESPONSE_LIMIT = 20
PROMPT_TOKENS = 5


def preset(member: str, *overrides: str, config_class: type[Any] = GRPOConfig) -> Any:
    """A preset on top of the quickstart, small."""
    files = [configs_folder() / "quickstart.yaml", configs_folder() / f"{member}.yaml"]
    return load(files, [f"env_runners.max_response_tokens={RESPONSE_LIMIT}", *overrides], config_class)[0]


class Stages(GRPO):
    """The algorithm's stages without what RLlib builds."""

    def __init__(self, config: GRPOConfig) -> None:
        self.config, self.seed, self.steps_done, self.active = config, 0, 0, []


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is: which turns share a batch in this process must not depend on it."""
    monkeypatch.setattr(episode_runner, "PATIENCE_S", math.inf)


@pytest.fixture(scope="package")
def lm() -> Any:
    """The embedded model."""
    from transformers import AutoModelForCausalLM

    from algorithms.models.names import resolve_model

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(resolve_model("embedded:tiny"), dtype=torch.float32)
    torch.set_num_threads(threads)


@pytest.fixture(scope="package")
def reference(lm: Any) -> Any:
    """Another policy, for the KL term."""
    from transformers import AutoModelForCausalLM

    from algorithms.models.names import resolve_model

    other = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:tiny"), dtype=torch.float32)
    with torch.no_grad():
        other.get_input_embeddings().weight.mul_(1.05)
    return other.eval().requires_grad_(False)


@dataclass(frozen=True)
class Response:
    """What a formula knows of a response: its tokens, whether it is right, and the log-probs it was sampled with."""

    tokens: np.ndarray
    correct: bool
    behavior: np.ndarray | None
    engine: np.ndarray
    replayed: bool = False


def token_logprobs(lm: Any, response: Response) -> torch.Tensor:
    """log π of each response token, from whole logits."""
    tokens = torch.tensor(response.tokens.tolist())
    table = torch.log_softmax(lm(input_ids=tokens[None]).logits[0], -1)
    places = torch.arange(PROMPT_TOKENS, len(tokens))
    return table[places - 1, tokens[places]]


def hand_made(
    lm: Any, *, own: float, shared: float, engine: float = 0.0, fresh: bool = False, replayed: Sequence[int] = ()
) -> list[list[Response]]:
    """Two groups of four responses, one of them at the length limit, right and wrong ones in both.

    Args:
        lm: the policy.
        own: spread of each token's log-ratio to the behavior policy.
        shared: spread of what all tokens of a response add to it.
        engine: spread of the engine's log-probs about the behavior policy's.
        fresh: leave the behavior log-probs out: the policy's own stand in.
        replayed: places in each group of responses that come from history.
    """
    rng = np.random.default_rng(1)
    groups = []
    for lengths in ([RESPONSE_LIMIT, 3, 18, 7], [17, 5, 2, 9]):
        group = []
        for place, length in enumerate(lengths):
            tokens = rng.integers(5, 40, PROMPT_TOKENS + length).astype(np.int32)
            with torch.no_grad():
                logprobs = token_logprobs(lm, Response(tokens, False, None, np.zeros(0))).numpy()
            behavior = logprobs + rng.normal(0, own, length) + rng.normal(0, shared)
            behavior = behavior.astype(np.float32)
            sampled = (behavior + rng.normal(0, engine, length)).astype(np.float32) if engine else behavior
            correct = place in (1, 2)
            group.append(Response(tokens, correct, None if fresh else behavior, sampled, place in replayed))
        groups.append(group)
    return groups


def as_groups(groups: list[list[Response]]) -> list[Group]:
    """The same responses as the stages take them."""
    return [Group(Prompt(str(index)), [_sample(one, index) for one in group]) for index, group in enumerate(groups)]


def _sample(response: Response, group: int) -> Sample:
    mask = np.arange(len(response.tokens)) >= PROMPT_TOKENS
    rollout = Rollout(
        request_id=0,
        uid=str(group),
        group=group,
        context=Context.PLAIN,
        tokens=response.tokens,
        loss_mask=mask,
        sampling_logprobs=response.engine,
        reward=float(response.correct),
        correct=response.correct,
        truncated=mask.sum() == RESPONSE_LIMIT,
        verdict="equal" if response.correct else "different",
        weights_version=0,
    )
    return Sample(rollout, reward=rollout.reward, old_logprobs=response.behavior, replayed=response.replayed)


@pytest.fixture(scope="package")
def ray_session() -> Iterator[None]:
    with own_ray(4):
        yield


@pytest.fixture
def build(ray_session: None, build: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Builds algorithms in the folder's Ray and stops them at the end of the test."""
    return build
