"""Generation with vLLM, in the process of its env runner; weights are replaced in place."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from algorithms.rollout.engines.base import Completion, FinishReason, GenerationRequest

# One process: weights reach the engine without a second hop, and a runner that dies takes its engine along.
_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}


class VLLMEngine:
    """vLLM on the CPU or on GPUs.

    Args:
        model: folder or Hub id.
        dtype: of weights and computation.
        max_num_seqs: responses decoded at once.
        eos_token_ids: a response ends after any of these.
        options: further arguments of `vllm.LLM`, such as `tensor_parallel_size` or `gpu_memory_utilization`.

    Raises:
        ValueError: vLLM is not installed.
    """

    def __init__(
        self,
        *,
        model: str,
        dtype: str,
        max_num_seqs: int,
        eos_token_ids: Sequence[int],
        trust_remote_code: bool = False,
        revision: str | None = None,
        options: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            from vllm import LLM
        except ImportError as error:
            raise ValueError(f"env_runners.engine: vllm cannot be imported ({error}); see the README") from error
        arguments: dict[str, Any] = {
            "dtype": dtype,
            "max_num_seqs": max_num_seqs,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "enable_prefix_caching": True,
            # The log-probs of the distribution that is sampled from, temperature included.
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
        }
        self.llm = LLM(model, **(arguments | dict(options or {})))
        self.eos_token_ids = list(eos_token_ids)
        self.weights_version = 0
        self.context_length: int | None = self.llm.model_config.max_model_len
        self._shapes = _shapes_of_state(model, revision, trust_remote_code)

    def load_weights(self, weights: Mapping[str, Any] | Iterable[tuple[str, Any]], version: int) -> None:
        """Reload in place; raises RuntimeError, with nothing changed, when names or shapes differ.

        A tied head must be among the weights, or vLLM keeps its old packed copy.
        """
        state = dict(weights)
        self._check_state(state)
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(state.items())})
        self.llm.reset_prefix_cache()
        self.weights_version = version

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Sample a completion for each request; vLLM batches them as it sees fit."""
        from vllm import SamplingParams, TokensPrompt

        outputs = self.llm.generate(
            [TokensPrompt(prompt_token_ids=request.tokens.tolist()) for request in requests],
            [
                SamplingParams(
                    temperature=request.sampling.temperature,
                    top_p=request.sampling.top_p,
                    max_tokens=request.sampling.max_response_tokens,
                    seed=request.seed % 2**63,
                    stop_token_ids=self.eos_token_ids,
                    logprobs=0,
                    detokenize=False,
                )
                for request in requests
            ],
            use_tqdm=False,
        )
        return [_completion(output.outputs[0]) for output in outputs]

    def close(self) -> None:
        """Free the model."""
        del self.llm

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """VLLM itself skips weights that are missing and is left unusable by one that it does not know."""
        given = {name: tuple(tensor.shape) for name, tensor in state.items()}
        wrong = [name for name in {**self._shapes, **given} if given.get(name) != self._shapes.get(name)]
        if wrong:
            raise RuntimeError(f"these weights are missing, unknown or of another shape: {', '.join(sorted(wrong))}")


def _shapes_of_state(model: str, revision: str | None, trust_remote_code: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model's Hugging Face state dict, without its weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return {name: tuple(tensor.shape) for name, tensor in empty.state_dict().items()}


def _completion(output: Any) -> Completion:
    tokens = np.array(output.token_ids, np.int32)
    pairs = zip(output.token_ids, output.logprobs, strict=True)
    logprobs = np.array([choices[token].logprob for token, choices in pairs], np.float32)
    reason = FinishReason.LENGTH if output.finish_reason == "length" else FinishReason.STOP
    return Completion(tokens, logprobs, reason)
