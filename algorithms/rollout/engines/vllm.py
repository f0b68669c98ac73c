"""Generation with vLLM, in the process of its env runner; weights are replaced in place."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from algorithms.rollout.engines.base import Completion, Engine, FinishReason, GenerationRequest

# One process: weights reach the engine without a second hop, and a runner that dies takes its engine along.
_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}


class VLLMEngine(Engine):
    """vLLM on the CPU or on GPUs: a submitted request joins the batch that is decoding.

    Args:
        model: folder or Hub id.
        dtype: of weights and computation.
        max_num_seqs: responses decoded at once.
        eos_token_ids: a response ends after any of these.
        options: further arguments of `vllm.LLM`, such as `tensor_parallel_size` or `gpu_memory_utilization`.

    Raises:
        ValueError: vLLM is not installed.
    """

    streams = True

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
            from vllm import LLM, SamplingParams, TokensPrompt
            from vllm.sampling_params import RequestOutputKind
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
        self._running: set[int] = set()
        self._prompt, self._parameters = TokensPrompt, SamplingParams
        # Else a Python object is made for each response in each step.
        self._output_kind = RequestOutputKind.FINAL_ONLY
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

    @property
    def unfinished(self) -> int:
        """Requests that wait or decode."""
        return len(self._running)

    def submit(self, key: int, request: GenerationRequest) -> None:
        """Hand a request to vLLM's scheduler; raises ValueError when it has no room in the context."""
        if key in self._running:
            raise ValueError(f"request {key} is unfinished")
        sampling = request.sampling
        parameters = self._parameters(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_response_tokens,
            seed=request.seed % 2**63,
            stop_token_ids=self.eos_token_ids,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=self._output_kind,
        )
        prompt = self._prompt(prompt_token_ids=request.tokens.tolist())
        self.llm.llm_engine.add_request(str(key), prompt, parameters)
        self._running.add(key)

    def step(self) -> list[tuple[int, Completion]]:
        """Decode a token of every running response, after the prefill of as many new ones as fit."""
        if not self._running:
            return []
        finished = [output for output in self.llm.llm_engine.step() if output.finished]
        completions = [(int(output.request_id), _completion(output.outputs[0])) for output in finished]
        self._running.difference_update(key for key, _ in completions)
        return completions

    def abort(self, keys: Collection[int]) -> None:
        """Take requests out of the running batch, and free their cache."""
        known = [key for key in keys if key in self._running]
        self.llm.llm_engine.abort_request([str(key) for key in known])
        self._running.difference_update(known)

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
    """The sampled tokens' log-probs are the only ones: with `logprobs=0` vLLM keeps no others."""
    reason = FinishReason.LENGTH if output.finish_reason == "length" else FinishReason.STOP
    return Completion(
        np.array(output.token_ids, np.int32), np.array(output.logprobs.logprobs, np.float32), finish_reason=reason
    )
