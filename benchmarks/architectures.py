"""Every causal architecture of transformers that can be built small: does the learner compute what the model does?

    python -m benchmarks.architectures [NAME …] [--record benchmarks/results/architectures.json]

Each is built with random weights and a few layers, with scales and caps that show. The learner's log-probs and its
gradient, as it computes them, are compared with those of the model's own `forward` in float32. Takes minutes.
"""

import logging
import math
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from algorithms.learner.attention import attention_as_loaded, is_packed, try_packed_attention, try_shared_prompts
from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings
from algorithms.learner.model import disable_dropout
from algorithms.learner.start_check import find_deviation
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from algorithms.models.logits import CAPS, DIVIDES, MULTIPLIES
from algorithms.utils.progress import Counter
from benchmarks.record import benchmark_parser, show

VOCABULARY, CONTEXT = 160, 256
# By the names of a configuration's fields. Layers differ within four of them, and heads are as small as kernels take.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "n_inner": 96,
    "num_hidden_layers": 4,
    "n_layer": 4,
    "n_layers": 4,
    "num_layers": 4,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_key_value_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "n_positions": CONTEXT,
    "initializer_range": 0.12,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_heads": 8,
    "n_groups": 1,
    "chunk_size": 16,
    "state_size": 16,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_ssm": 128,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "rotary_dim": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 16,
    "sliding_window": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Where a family needs others; None: its own default.
OVERRIDES: dict[str, dict[str, Any]] = {
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 16},
    "cohere_compass": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma3n_text": {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0] * 4},
    "gemma4_text": {"head_dim": None},
    "gemma4_unified_text": {"head_dim": None},
    "dots1": {"n_shared_experts": 1, "first_k_dense_replace": 1},
    "minicpm3": {"dim_model_base": 16},
    "electra": {"embedding_size": 64},
}
PROMPT, RESPONSES = 24, (40, 30, 50)
# A gradient is that of the model if its angle and length are.
COSINE, NORM = 0.999, 0.01
MOST_PARAMETERS = 30_000_000
LIMIT_S = 60.0
VERDICTS = ("packed", "padded", "refused", "not built")


@dataclass(frozen=True)
class Finding:
    """What became of one architecture.

    Args:
        name: its class.
        verdict: `packed`, `padded`, `refused` or `not built`.
        reason: of the last two, or why it is padded.
        cosine: of the learner's gradient to that of the model's own forward.
        norm: its length by the length of that.
    """

    name: str
    verdict: str
    reason: str = ""
    cosine: float = float("nan")
    norm: float = float("nan")


def make_small(name: str) -> Any:
    """Return a random model of an architecture, float32.

    Raises:
        Exception: it cannot be built from `SIZES`: whatever its class raises.
    """
    default = CONFIG_MAPPING[name]()
    known = SIZES | OVERRIDES.get(name, {})
    if hasattr(default, "qk_rope_head_dim"):  # latent attention: the rotated part is a head's size, all heads have keys
        known |= {"head_dim": SIZES["qk_rope_head_dim"], "num_key_value_heads": SIZES["num_attention_heads"]}
    fields = {field: value for field, value in known.items() if value is not None and _is_field(default, field)}
    fields |= {field: 0.25 for field in (*MULTIPLIES, *DIVIDES) if _is_field(default, field)}
    fields |= {field: 2.0 for field in CAPS if _is_field(default, field)}
    config = CONFIG_MAPPING[name](**fields)
    with torch.device("meta"):
        size = sum(each.numel() for each in AutoModelForCausalLM.from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"still has {size:,} parameters")
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in lm.parameters():
            if parameter.ndim == 1:  # biases and norms: at 0 and 1 a forgotten one would not show
                parameter.add_(0.1 * torch.randn_like(parameter))
    disable_dropout(lm)
    return lm


def _is_field(config: Any, name: str) -> bool:
    own = getattr(type(config), name, None)
    return hasattr(config, name) and not (isinstance(own, property) and own.fset is None)


def make_rows() -> list[TrainingSample]:
    """Return two prompts with three responses each, and an advantage of 1."""
    rng = np.random.default_rng(0)
    rows = []
    for prompt in (rng.integers(3, VOCABULARY, PROMPT), rng.integers(3, VOCABULARY, PROMPT // 2)):
        for length in RESPONSES:
            tokens = np.concatenate([prompt, rng.integers(3, VOCABULARY, length)]).astype(np.int32)
            mask = np.arange(len(tokens)) >= len(prompt)
            rows.append(TrainingSample(tokens, mask, advantages=1.0, weight=1.0))
    return rows


def examine(name: str, lm: Any) -> Finding:
    """Compare log-probs, then gradients, as a learner computes them with those of the model's own forward.

    A model that does not agree packed is tried again with `learners.packing=false`.
    """
    rows, settings = make_rows(), ForwardSettings(token_budget=200)
    padded_because = try_packed_attention(lm) or try_shared_prompts(lm)
    verdict = "packed" if is_packed(lm) else "padded"
    reason = find_deviation(lm, rows, settings, "float32")
    if reason and is_packed(lm):
        lm.set_attn_implementation(lm.attention_as_loaded)
        if not find_deviation(lm, rows, settings, "float32"):
            verdict, padded_because, reason = "padded", "refused unless `learners.packing=false`", ""
    if reason:
        return Finding(name, "refused", reason.partition("): ")[2].partition("; fix")[0])
    own = _own_gradient(lm, rows)
    lm.zero_grad(set_to_none=True)
    accumulate_gradients(lm, rows, settings, LossSettings())
    found = _gradient(lm)
    cosine, norm = float(torch.nn.functional.cosine_similarity(found, own, dim=0)), float(found.norm() / own.norm())
    if cosine < COSINE or abs(norm - 1) > NORM:
        return Finding(name, "refused", "its gradient is another", cosine, norm)
    return Finding(name, verdict, padded_because, cosine, norm)


def _own_gradient(lm: Any, rows: Sequence[TrainingSample]) -> torch.Tensor:
    """The gradient of the rows' negative log-probs, by autograd through the model's own forward."""
    lm.zero_grad(set_to_none=True)
    with attention_as_loaded(lm):
        for row in rows:
            tokens = torch.from_numpy(row.tokens.astype(np.int64))[None]
            logprobs = lm(input_ids=tokens, use_cache=False).logits[0].float().log_softmax(-1)
            places = torch.from_numpy(np.flatnonzero(row.loss_mask))
            (-logprobs[places - 1, tokens[0, places]].sum()).backward()
    return _gradient(lm)


def _gradient(lm: Any) -> torch.Tensor:
    parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in lm.parameters()]
    return torch.cat([part.flatten() for part in parts]).double()


def sweep(names: Sequence[str]) -> Iterator[Finding]:
    """Examine architectures by the `model_type` of their configuration; an error in one is its finding."""
    for name in names:
        shown = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name]
        try:
            with _limited(LIMIT_S):
                lm = make_small(name)
        except Exception as error:
            yield Finding(shown, "not built", _first_line(error))
            continue
        try:
            with _limited(LIMIT_S):
                yield examine(shown, lm)
        except Exception as error:
            yield Finding(shown, "refused", _first_line(error))


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer: some models compute slowly without kernels of a GPU."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"takes more than {seconds:g} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {line}"[:90].replace("|", "/")


def tables(found: Sequence[Finding]) -> list[Table]:
    """Return a table of the counts, and one of all that was examined."""
    counts = Table("verdict", "architectures", title="Architectures")
    for verdict in VERDICTS:
        counts.add_row(verdict, str(sum(each.verdict == verdict for each in found)))
    every = Table("architecture", "verdict", "reason", "cosine", "norm", title="Each architecture")
    for each in sorted(found, key=lambda one: (VERDICTS.index(one.verdict), one.name.lower())):
        numbers = ("–", "–") if math.isnan(each.cosine) else (f"{each.cosine:.6f}", f"{each.norm:.4f}")
        every.add_row(f"`{each.name}`", each.verdict, each.reason, *numbers)
    return [counts, every]


def main() -> None:
    """Examine the named architectures, or all, and print the tables."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="model types, such as granite; default: all")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        parser.error(f"transformers has no causal model of the type {', '.join(sorted(unknown))}")
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    names = arguments.names or distinct_types()
    found = []
    with Counter("architectures") as counter:
        for number, finding in enumerate(sweep(names), 1):
            found.append(finding)
            counter.update(number, len(names))
    show(tables(found), arguments, [asdict(one) for one in found], width=160)


def distinct_types() -> list[str]:
    """Return one model type for each class of causal model, those that are a model of text alone first."""
    by_class: dict[str, str] = {}
    for name, architecture in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()):
        by_class.setdefault(architecture, name)
    return list(by_class.values())


if __name__ == "__main__":
    main()
