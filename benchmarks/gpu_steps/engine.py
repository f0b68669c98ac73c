"""vLLM alone in its process, with a random model: start, log-probs against the learner's model, and seeds."""

import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_steps.agreement import compare, requests, rows_of
from benchmarks.gpu_steps.step import Job, Outcome
from benchmarks.random_models import save_random_model


def start_and_compare(job: Job) -> Outcome:
    """Start the engine, sample twice, and score the responses with the learner's model beside it."""
    from algorithms.learner.forward import score

    folder = model_folder(job)
    started = time.perf_counter()
    engine = make(job, folder)
    start_s = time.perf_counter() - started
    print(f"started in {start_s:.1f} s")
    asked = requests(16, 24) if job.small else requests(128, 512)
    started = time.perf_counter()
    completions = engine.generate(asked)
    generate_s = time.perf_counter() - started
    tokens = sum(len(completion.tokens) for completion in completions)
    same = _same_share(completions, engine.generate(asked))
    alone = _same_share(completions[:5], [engine.generate([request])[0] for request in asked[:5]])
    rows = rows_of(asked, completions)
    lm, forward = learner_model(job, folder)
    agreement = compare(rows, [logprobs for logprobs, _ in score(lm, rows, forward, entropy=False)])
    kind = runner_of(engine)
    summary = (
        f"started in {start_s:.0f} s, {tokens / generate_s:,.0f} tokens/s, {agreement}, again the same "
        f"{same:.0%}, alone {alone:.0%}; {kind}"
    )
    figures = {
        "start_s": start_s,
        "tokens_per_s": tokens / generate_s,
        "agreement": agreement.figures,
        "same_again": same,
        "same_alone": alone,
        "model_runner": kind,
    }
    return Outcome(summary, figures, agreement.wrong)


def with_adapter(job: Job) -> Outcome:
    """Give an engine an adapter alone, or merged with a base in 4 bits, and score what it samples with the learner's.

    Alone, the engine is in float16 and the learner's model in float32.
    """
    import torch

    from algorithms.learner.forward import ForwardSettings, score
    from algorithms.learner.model import adapted_layers, add_adapter
    from algorithms.learner.nf4 import quantize_base
    from algorithms.learner.weights import adapter_shapes, adapter_weights, full_shapes, full_weights
    from algorithms.rollout.weight_sync.serialization import TensorsAtHand

    folder = model_folder(job)
    adapter: dict[str, Any] = {"rank": 16, "alpha": 32.0, "targets": []}
    quantized = job.options.get("base") == "nf4"
    half = {} if quantized else {"adapter": adapter, "dtype": "float16" if job.on_gpu else "float32"}
    engine = make(job, folder, **half)
    lm, forward = learner_model(job, folder)
    add_adapter(lm, **adapter)
    if quantized:
        quantize_base(adapted_layers(lm), torch.device(job.device))
    lm.to(job.device)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if ".lora_B." in name:
                parameter.fill_(0.01)
    started = time.perf_counter()
    shapes, weights = (full_shapes, full_weights) if quantized else (adapter_shapes, adapter_weights)
    engine.load_weights(TensorsAtHand(shapes(lm), weights(lm)), 1)
    transfer_s = time.perf_counter() - started
    asked = requests(16, 24) if job.small else requests(64, 256)
    started = time.perf_counter()
    completions = engine.generate(asked)
    rate = sum(len(completion.tokens) for completion in completions) / (time.perf_counter() - started)
    scored = score(lm, rows_of(asked, completions), forward if quantized else ForwardSettings(), entropy=False)
    agreement = compare(rows_of(asked, completions), [logprobs for logprobs, _ in scored])
    sent = sum(tensor.nbytes for _, tensor in weights(lm))
    figures = {"sent_bytes": sent, "transfer_s": transfer_s, "tokens_per_s": rate, "agreement": agreement.figures}
    summary = f"{sent / 2**20:.1f} MiB in {transfer_s:.1f} s, {rate:,.0f} tokens/s, {agreement}"
    return Outcome(summary, figures, agreement.wrong)


def model_folder(job: Job) -> str:
    """Return the random model's folder; the first step that needs it makes it."""
    return save_random_model(str(Path(job.folder) / f"model-{job.size}"), job.size, job.device)


def make(job: Job, folder: str, **arguments: Any) -> Any:
    """Start vLLM as the library does; it gets a share of the GPU that leaves room for a learner's model."""
    from algorithms.rollout.engines.factory import make_engine

    return make_engine(
        "vllm",
        model=folder,
        dtype=arguments.pop("dtype", job.dtype),
        max_num_seqs=16 if job.small else 256,
        max_response_tokens=512,
        eos_token_ids=[0],
        use_gpu=job.on_gpu,
        gpu_memory_utilization=0.3 if job.small else 0.4,
        **arguments,
        options={
            "max_model_len": 128 if job.small else 2048,
            "enforce_eager": not job.on_gpu,
            **job.options.get("vllm", {}),
        },
    )


def learner_model(job: Job, folder: str) -> tuple[Any, Any]:
    """Return the model as a learner holds it, and how the learner evaluates it."""
    import torch
    from transformers import AutoModelForCausalLM

    from algorithms.learner.attention import use_packed_attention
    from algorithms.learner.forward import ForwardSettings

    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    lm = loaded.to(job.device).eval()
    use_packed_attention(lm)
    return lm, ForwardSettings(dtype=job.dtype)


def runner_of(engine: Any) -> str:
    """Return which of vLLM's model runners runs, and whether scheduling is asynchronous, as far as it reports them."""
    try:
        (runner,) = engine.llm.collective_rpc(_module_of_runner)
    except Exception as error:  # another version of vLLM: no reason to lose the figures
        runner = f"model runner unknown ({type(error).__name__})"
    scheduler = getattr(engine.llm.llm_engine.vllm_config, "scheduler_config", None)
    return f"{runner}, async_scheduling={getattr(scheduler, 'async_scheduling', 'unknown')}"


def _module_of_runner(worker: Any) -> str:
    kind = type(worker.model_runner)
    return f"{kind.__module__}.{kind.__qualname__}"


def _same_share(first: Any, second: Any) -> float:
    """Return the share of responses with the same tokens."""
    same = [a.tokens.tolist() == b.tokens.tolist() for a, b in zip(first, second, strict=True)]
    return sum(same) / len(same)
