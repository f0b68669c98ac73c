"""Generation with vLLM, in the process of its env runner; weights are replaced in place.

vLLM 0.32 is supported: its weight updates have another life cycle before, and what is used of it beside `LLM` (its
`llm_engine`'s requests and steps, its weight-transfer engines) may change in any version.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from algorithms.rollout.engines.base import Completion, Engine, FinishReason, GenerationRequest
from algorithms.rollout.weight_sync.wire import NO_VERSION, TENSORS, require_complete, require_same_shapes

# One process: weights reach the engine without a second hop, and a runner that dies takes its engine along.
_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}


class VLLMEngine(Engine):
    """vLLM on the CPU or on GPUs: a submitted request joins the batch that is decoding.

    Log-probs are those of the distribution that is sampled from: the whole one at the sampling temperature, as the
    learner computes it, or with `top_p` below 1 that of the nucleus alone, which the learner does not.

    Args:
        model: folder or Hub id.
        dtype: of weights and computation.
        max_num_seqs: responses decoded at once.
        eos_token_ids: a response ends after any of these.
        tensor_parallel_size: GPUs that the model is split over; beyond one, each has a worker process of vLLM's.
        gpu_memory_utilization: part of a GPU's memory for weights and cache; None: vLLM's own choice.
        options: further arguments of `vllm.LLM`, which go before all others.
        weight_transfer: how weights come, see `algorithms.rollout.weight_sync.choice`.
        sleeps: whether the engine is to give the GPU's memory back between rollouts.

    Attributes:
        prompt_tokens: of all requests that have finished so far.
        cached_prompt_tokens: those of them that the prefix cache held already, from other samples of the prompt or
            from earlier turns.

    Raises:
        ValueError: vLLM is not installed.
    """

    continuous_batching = True

    def __init__(
        self,
        *,
        model: str,
        dtype: str,
        max_num_seqs: int,
        eos_token_ids: Sequence[int],
        trust_remote_code: bool = False,
        revision: str | None = None,
        tensor_parallel_size: int = 1,
        gpu_memory_utilization: float | None = None,
        options: Mapping[str, Any] | None = None,
        weight_transfer: str = "object_store",
        sleeps: bool = False,
        **_: Any,
    ) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            from vllm import LLM, SamplingParams
            from vllm.inputs.engine import tokens_input
            from vllm.sampling_params import RequestOutputKind

            from algorithms.rollout.weight_sync.vllm_backends import update_arguments
        except ImportError as error:
            raise ValueError(
                f"env_runners.engine: vllm cannot be imported ({error}); "
                "fix: make install, or for CUDA pip install -e '.[vllm]'; or env_runners.engine=transformers"
            ) from error
        arguments: dict[str, Any] = {
            "dtype": dtype,
            "max_num_seqs": max_num_seqs,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "enable_prefix_caching": True,
            # The log-probs of the distribution that is sampled from, temperature included.
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
            "load_format": "safetensors",  # else it falls back to pickle
            **_parallel_arguments(tensor_parallel_size),
            **_cpu_arguments(),
            **update_arguments(weight_transfer, sleeps=sleeps),
        }
        if gpu_memory_utilization is not None:
            arguments["gpu_memory_utilization"] = gpu_memory_utilization
        self.llm = LLM(model, **(arguments | dict(options or {})))
        self._running: set[int] = set()
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self._prompt, self._parameters = tokens_input, SamplingParams
        # Else a Python object is made for each response in each step.
        self._output_kind = RequestOutputKind.FINAL_ONLY
        self.eos_token_ids = list(eos_token_ids)
        self.weights_version = 0
        self.context_length: int | None = self.llm.model_config.max_model_len
        self._shapes = _shapes_of_state(model, revision, trust_remote_code)
        self._asleep = False
        self._awaited: set[str] | None = None

    def start_weights(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Begin an update of vLLM's weight-transfer API; a tied head must come too, or vLLM keeps its old copy."""
        # vLLM itself skips weights that are missing and is left unusable by one that it does not know.
        require_same_shapes(self._shapes, shapes)
        self._require_idle("take weights")
        if self._awaited is not None:
            raise RuntimeError("the last update of vLLM's weights broke off and left its layers in pieces")
        if self._asleep:
            self.llm.wake_up(tags=["weights"])
        self.weights_version = NO_VERSION
        self.llm.start_weight_update()
        self._awaited = set(shapes)

    def add_weights(self, update: Mapping[str, Any]) -> None:
        """Load a bucket: tensors at hand, or one that vLLM receives by CUDA IPC or NCCL."""
        if self._awaited is None:
            raise RuntimeError("start_weights comes before add_weights")
        self.llm.update_weights({"update_info": dict(update)})
        names = [name for name, _ in update[TENSORS]] if TENSORS in update else update["names"]
        self._awaited.difference_update(names)

    def finish_weights(self, version: int) -> None:
        """End the update, wake the cache, and forget the prefixes that it held."""
        require_complete(self._awaited or ())
        self.llm.finish_weight_update()
        self._awaited = None
        if self._asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept prefixes of the old weights in its cache")
        self.weights_version = version

    def sleep(self, level: int = 2) -> None:
        """Free the cache and, at level 2, the weights, which the next `load_weights` brings back."""
        self._require_idle("sleep")
        self.llm.sleep(level=level)
        self._asleep = True
        if level > 1:
            self.weights_version = NO_VERSION

    @property
    def unfinished(self) -> int:
        """Requests that wait or decode."""
        return len(self._running)

    def submit(self, key: int, request: GenerationRequest) -> None:
        """Give a request to vLLM's scheduler; raises ValueError when it has no room in the context."""
        if key in self._running:
            raise ValueError(f"request {key} is unfinished")
        prompt, parameters = self.arguments(request)
        self.llm.llm_engine.add_request(str(key), prompt, parameters)
        self._running.add(key)

    def arguments(self, request: GenerationRequest) -> tuple[Any, Any]:
        """A prompt and sampling parameters as vLLM takes them."""
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
            skip_clone=True,
        )
        return self._prompt(request.tokens.tolist()), parameters

    def step(self) -> list[tuple[int, Completion]]:
        """Decode a token of every running response, after the prefill of as many new ones as fit."""
        if not self._running:
            return []
        outputs: list[Any] = self.llm.llm_engine.step()  # all of them are final
        for output in outputs:
            self.prompt_tokens += len(output.prompt_token_ids)
            self.cached_prompt_tokens += output.num_cached_tokens or 0
        completions = [(int(output.request_id), _completion(output.outputs[0])) for output in outputs]
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

    def _require_idle(self, action: str) -> None:
        """Refuse while responses run: they would continue with the old cache."""
        if self._running:
            raise RuntimeError(f"the engine cannot {action}: {len(self._running)} requests are unfinished")


def _parallel_arguments(size: int) -> dict[str, Any]:
    """Worker processes of this machine: in a placement group vLLM would start Ray actors, for which nothing is left."""
    return {"tensor_parallel_size": size, "distributed_executor_backend": "mp"} if size > 1 else {}


def _cpu_arguments() -> dict[str, Any]:
    """On a CPU vLLM fails when it reads a seeded request's prompt in pieces: its generators cannot be rewound there."""
    from vllm.platforms import current_platform

    return {"enable_chunked_prefill": False} if current_platform.is_cpu() else {}


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
