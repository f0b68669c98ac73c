"""How many responses an engine's cache has room for, where the GPU is known, beside how many it generates at a time."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from algorithms.config.placement import engine_share
from algorithms.models.names import ModelFacts
from algorithms.preflight.installation import found_gpus
from algorithms.preflight.memory import VLLM_SHARE

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig


def room_lines(config: "BaseConfig", model: ModelFacts, tokens: int) -> Iterator[tuple[str, str]]:
    """The line of `--check` for a vLLM engine that could generate more of a step's responses at a time.

    Computed from this machine's smallest GPU, without what vLLM needs beside weights and cache.

    Args:
        config: of the run.
        model: that is served.
        tokens: of a response and its prompt at full length.
    """
    runners, training, gpus = config.env_runners_settings, config.training_settings, found_gpus()
    local = not runners.num_env_runners and config.learners_settings.num_gpus_per_learner > 0
    if gpus is None or runners.engine != "vllm" or not (runners.num_gpus_per_env_runner or local):
        return
    parallel = runners.tensor_parallel_size
    share = engine_share(config) or VLLM_SHARE
    cache = gpus.least_bytes * share * parallel - model.weight_bytes(runners.dtype)
    room = int(cache // model.cache_bytes(tokens, runners.dtype))
    to_generate = -(-training.queries_per_step * training.group_size // max(1, runners.num_env_runners))
    useful = min(room, to_generate)
    if useful > runners.max_num_seqs:
        yield "", f"the cache of a GPU here has room for {room} of them; faster: env_runners.max_num_seqs={useful}"
