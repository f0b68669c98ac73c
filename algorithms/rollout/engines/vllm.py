"""Generation with vLLM, in the process of its env runner; weights are replaced in place.

vLLM 0.32 is supported: its weight updates have another life cycle before, and what is used of it beside `LLM` (its
`llm_engine`'s requests and steps, its weight-transfer engines) may change in any version.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from transformers import AutoConfig

from algorithms.models.causal_lm import empty_causal_lm, read_config
from algorithms.models.composite import is_composite
from algorithms.rollout.engines.base import Completion, Engine, FinishReason, GenerationRequest
from algorithms.rollout.engines.vllm_start import (
    OnStage,
    cpu_arguments,
    import_vllm,
    parallel_arguments,
    start_vllm,
)
from algorithms.rollout.types import Sampling
from algorithms.rollout.weight_sync.serialization import NO_VERSION, TENSORS, require_complete, require_same_shapes

# All episodes of a step mostly have the same; a limit of its own has each that runs out of context.
REMEMBERED_SAMPLINGS = 256


class VLLMEngine(Engine):
    """vLLM on the CPU or on GPUs: a submitted request joins the batch that is decoding.

    Log-probs are those of the distribution that is sampled from: at the sampling temperature the whole one, as the
    learner computes it, or what an evaluation's `top_p`, `top_k` and `min_p` keep of it.

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
        max_model_len: tokens that the longest sequence may have; None: the model's context.
        cache_bytes: of the cache on a CPU; None: a GiB.
        keeps_cache: whether responses that run while weights change keep what the old ones have computed of them.
        on_stage: called with what the start is doing, whenever that changes.

    Attributes:
        cached_prompt_tokens: of all requests that have finished so far, those that the prefix cache held already, from
            other samples of the prompt or from earlier turns.
        lora: the adapter that requests are sampled with, as vLLM names it.

    Raises:
        ValueError: vLLM is not installed.
        EngineDidNotStart: vLLM does not start; one line with the reason and the fix.
    """

    continuous_batching = True
    lora: Any = None

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
        max_model_len: int | None = None,
        cache_bytes: int | None = None,
        keeps_cache: bool = False,
        on_stage: OnStage = lambda stage: None,
        **_: Any,
    ) -> None:
        on_stage("importing vLLM")
        import_vllm()
        from algorithms.rollout.weight_sync.vllm_backends import update_arguments

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
            "max_model_len": max_model_len,
            **parallel_arguments(tensor_parallel_size),
            **cpu_arguments(cache_bytes),
            **_model_arguments(model, revision, trust_remote_code),
            **update_arguments(weight_transfer, sleeps=sleeps),
        }
        if gpu_memory_utilization is not None:
            arguments["gpu_memory_utilization"] = gpu_memory_utilization
        self.llm = start_vllm(model, arguments | dict(options or {}), on_stage)
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        self._running: set[int] = set()
        self._early: list[Any] = []
        self._paused = False
        self.keeps_cache = keeps_cache
        self._updates = 0  # versions may come again, in a process that takes up an older step
        self.llm.llm_engine.set_weight_version("0")
        self.cached_prompt_tokens = 0
        self._prompt, self._parameters = tokens_input, SamplingParams
        self._parameters_of = functools.lru_cache(REMEMBERED_SAMPLINGS)(self._make_parameters)
        # Else a Python object is made for each response in each step.
        self._output_kind = RequestOutputKind.FINAL_ONLY
        self.eos_token_ids = list(eos_token_ids)
        self.weights_version = 0
        self.context_length: int | None = self.llm.model_config.max_model_len
        self._shapes = self.shapes_of_weights(model, revision, trust_remote_code)
        self._asleep = False
        self._awaited: set[str] | None = None

    def start_weights(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Begin an update of vLLM's weight-transfer API; a tied head must come too, or vLLM keeps its old copy.

        Responses that are running stop where they are, and go on with the new weights.
        """
        # vLLM itself skips weights that are missing and is left unusable by one that it does not know.
        require_same_shapes(self._shapes, shapes)
        if self._awaited is not None:
            raise RuntimeError("the last update of vLLM's weights was interrupted and left its layers incomplete")
        if self._asleep:
            self.llm.wake_up(tags=["weights"])
        elif self._running:
            self._pause()
        self.weights_version = NO_VERSION
        self.start_update()
        self._awaited = set(shapes)

    def add_weights(self, update: Mapping[str, Any]) -> None:
        """Load a bucket: tensors of this process, or one that vLLM receives by CUDA IPC or NCCL."""
        if self._awaited is None:
            raise RuntimeError("start_weights comes before add_weights")
        self.take(update)
        names = [name for name, _ in update[TENSORS]] if TENSORS in update else update["names"]
        self._awaited.difference_update(names)

    def end_transfer(self, version: int) -> None:
        """End vLLM's update, which closes its mapping of a learner's memory."""
        require_complete(self._awaited or ())
        self.finish_update(version)
        self._awaited = None

    def shapes_of_weights(self, model: str, revision: str | None, trust_remote_code: bool) -> dict[str, Any]:
        """Names and shapes of the weights that will come: the model's Hugging Face state dict."""
        empty = empty_causal_lm(read_config(model, revision, trust_remote_code), trust_remote_code)
        return {name: tuple(tensor.shape) for name, tensor in empty.state_dict().items()}

    def start_update(self) -> None:
        """Have vLLM prepare its layers."""
        self.llm.start_weight_update()

    def take(self, update: Mapping[str, Any]) -> None:
        """Give vLLM a bucket."""
        self.llm.update_weights({"update_info": dict(update)})

    def finish_update(self, version: int) -> None:
        """Have vLLM convert what has come."""
        self.llm.finish_weight_update(str(version))

    def finish_weights(self, version: int) -> None:
        """End the update, wake the cache, and clear it, or keep it for the responses that are running."""
        if self._awaited is not None:
            self.end_transfer(version)
        if self._asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        if not (self._paused and self.keeps_cache) and not self.llm.reset_prefix_cache(self._paused):
            raise RuntimeError("vLLM kept prefixes of the old weights in its cache")
        if self._paused:
            self.llm.wake_up(tags=["scheduling"])
            self._paused = False
        self.weights_version = version
        self._updates += 1

    def _pause(self) -> None:
        """Stop all responses, after the steps that are under way: their tokens are the old weights'."""
        self.llm.sleep(level=0, mode="keep")
        self._paused = True
        core: Any = self.llm.llm_engine.engine_core
        while core.engine_core.batch_queue:  # None without asynchronous scheduling
            self._early += self.llm.llm_engine.step()

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
        self.llm.llm_engine.add_request(str(key), prompt, parameters, lora_request=self.lora)
        self._running.add(key)

    def arguments(self, request: GenerationRequest) -> tuple[Any, Any]:
        """Return a prompt and sampling parameters as vLLM takes them."""
        # Prefixes that older weights have left in the cache are not for this request.
        salt = str(self._updates) if self.keeps_cache else None
        parameters = copy(self._parameters_of(request.sampling))  # to check and complete them anew takes longer
        parameters.seed = request.seed % 2**63
        if request.asked is None:
            return self._prompt(request.tokens.tolist(), cache_salt=salt), parameters
        # Log-probs of a prompt are those at temperature 1, whatever is sampled behind it; the cache keeps none of them.
        parameters.max_tokens, parameters.prompt_logprobs, parameters.skip_reading_prefix_cache = 1, 0, True
        return self._prompt([*request.tokens.tolist(), request.asked], cache_salt=salt), parameters

    def _make_parameters(self, sampling: Sampling) -> Any:
        """Sampling parameters with a seed, which vLLM takes as a sign that each request has its own."""
        return self._parameters(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            max_tokens=sampling.max_response_tokens,
            seed=0,
            stop=list(sampling.stop),
            stop_token_ids=[*self.eos_token_ids, *sampling.stop_token_ids],
            logprobs=0,
            flat_logprobs=True,
            detokenize=bool(sampling.stop),  # to find those texts; it takes time
            skip_special_tokens=False,
            output_kind=self._output_kind,
            skip_clone=True,
        )

    def step(self) -> list[tuple[int, Completion]]:
        """Decode one token of every running response, after the prefill of as many new ones as fit."""
        if not self._running:
            return []
        if self._awaited is not None:
            raise RuntimeError("the engine cannot continue: its weights are being replaced")
        if self._asleep:  # vLLM's step would return nothing, for ever
            raise RuntimeError("the engine cannot continue: it sleeps until it is given weights")
        outputs: list[Any] = self._early or self.llm.llm_engine.step()  # all of them are final
        self._early = []
        for output in outputs:
            self.cached_prompt_tokens += output.num_cached_tokens or 0
        completions = [(int(output.request_id), _completion(output)) for output in outputs]
        self._running.difference_update(key for key, _ in completions)
        return completions

    def abort(self, keys: Collection[int]) -> None:
        """Take requests out of the running batch, and free their cache."""
        known = [key for key in keys if key in self._running]
        self.llm.llm_engine.abort_request([str(key) for key in known])
        self._running.difference_update(known)
        self._early = [output for output in self._early if int(output.request_id) in self._running]

    def close(self) -> None:
        """Free the model."""
        del self.llm

    def _require_idle(self, action: str) -> None:
        """Refuse while responses run: they would continue with the old cache."""
        if self._running:
            raise RuntimeError(f"the engine cannot {action}: {len(self._running)} requests are unfinished")


def _model_arguments(model: str, revision: str | None, trust_remote_code: bool) -> dict[str, Any]:
    """What depends on the model: of a composite one the text alone, so that weights have the learners' names."""
    from vllm.platforms import current_platform

    config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
    arguments: dict[str, Any] = {}
    if is_composite(config):
        from algorithms.rollout.weight_sync.vllm_backends import TEXT_FORMAT, only_text

        arguments |= {"hf_overrides": only_text, "load_format": TEXT_FORMAT}
    if current_platform.is_cpu() and "linear_attention" in (
        getattr(config.get_text_config(), "layer_types", None) or ()
    ):
        arguments["enable_prefix_caching"] = False  # of recurrent states, which vLLM has only with chunked prefill
    return arguments


def _completion(output: Any) -> Completion:
    """The sampled tokens' log-probs are the only ones: with `logprobs=0` vLLM keeps no others. Or what was asked."""
    if output.prompt_logprobs:
        token = output.prompt_token_ids[-1]
        logprob = np.array([output.prompt_logprobs[-1][token].logprob], np.float32)
        return Completion(np.array([token], np.int32), logprob, FinishReason.LENGTH)
    output = output.outputs[0]
    reason = FinishReason.LENGTH if output.finish_reason == "length" else FinishReason.STOP
    return Completion(
        np.array(output.token_ids, np.int32),
        np.array(output.logprobs.logprobs, np.float32),
        finish_reason=reason,
        versions=tuple((int(span.version), span.end - span.start) for span in output.weight_versions or ()),
    )
