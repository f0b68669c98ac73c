"""Engines by name."""

from typing import Any

from algorithms.rollout.engines.base import Engine


def make_engine(name: str, **arguments: Any) -> Engine:
    """Start the engine `transformers` or `vllm`.

    Args:
        name: of the engine.
        arguments: model (folder or Hub id), dtype, max_num_seqs, max_response_tokens, eos_token_ids, use_gpu,
            options; adapter (rank, alpha, targets) of a vLLM engine that gets it alone.

    Raises:
        ValueError: unknown engine name, or a vLLM that is not installed.
    """
    if name == "transformers":
        from algorithms.rollout.engines.transformers import TransformersEngine

        return TransformersEngine(**arguments)
    if name == "vllm" and arguments.get("adapter") is not None:
        from algorithms.rollout.engines.vllm_adapter import AdapterVLLMEngine

        return AdapterVLLMEngine(**arguments)
    if name == "vllm":
        from algorithms.rollout.engines.vllm import VLLMEngine

        return VLLMEngine(**arguments)
    raise ValueError(f"env_runners.engine: {name!r} is not an engine; use 'transformers' or 'vllm'")
