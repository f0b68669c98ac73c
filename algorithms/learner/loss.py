"""The loss of a micro-batch: what its rows carry, token by token, and the sum of the terms that they name."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from algorithms.learner.batch import TrainingSample
from algorithms.losses.base import (
    MAX_LOG_RATIO,
    POLICY_COLUMNS,
    LossSettings,
    LossTerm,
    Objective,
    build_term,
    check_returned,
)
from algorithms.losses.term import Term
from algorithms.losses.token_weights import importance_weights


@dataclass(frozen=True)
class LossInputs:
    """Constants of the loss over the response tokens of all rows, in order.

    Args:
        columns: float32 [N] by name: `advantages`; `old_logprobs`, NaN for the policy's own; `sampling_logprobs`, NaN
            for replayed rows; `multiplicity`, how many tokens of the step each stands for; and what terms read beside
            them.
        weights: float32 [N] of each term: what a token weighs in it.
        terms: the tensor code of each term, and the settings of the loss that are for it.
        lengths: response tokens of each row.
    """

    columns: Mapping[str, torch.Tensor]
    weights: Mapping[Term, torch.Tensor]
    terms: Mapping[Term, tuple[LossTerm, LossSettings]]
    lengths: tuple[int, ...]

    @classmethod
    def of(
        cls,
        rows: Sequence[TrainingSample],
        device: torch.device,
        settings: LossSettings,
        reference_logprobs: torch.Tensor | None = None,
    ) -> "LossInputs":
        """Concatenate the rows' values, and with `reference_logprobs`, [N], those of the frozen policy.

        Raises:
            ValueError: a row's values are neither [L] nor one number.
        """
        columns = {
            "old_logprobs": flat([row.old_logprobs for row in rows], rows, device),
            "sampling_logprobs": flat([row.sampling_logprobs for row in rows], rows, device),
            "advantages": flat([row.advantages for row in rows], rows, device),
            "multiplicity": flat([float(row.multiplicity) for row in rows], rows, device),
        }
        for name in sorted({name for row in rows for name in row.inputs}):
            columns[name] = flat([row.inputs.get(name, 0.0) for row in rows], rows, device)
        if reference_logprobs is not None:
            columns["reference_logprobs"] = reference_logprobs
        weights = {
            each: flat([row.weight * row.terms.get(each, 0.0) for row in rows], rows, device)
            for each in sorted({each for row in rows for each in row.terms}, key=repr)
        }
        terms = {each: build_term(each, settings) for each in weights}
        for name in {name for kind, _ in terms.values() for name in kind.reads()} - columns.keys() - POLICY_COLUMNS:
            columns[name] = torch.zeros_like(columns["multiplicity"])  # no row of this micro-batch carries it
        return cls(columns, weights, terms, tuple(row.response_length for row in rows))

    @property
    def reads_entropies(self) -> bool:
        """Whether a term has a gradient by entropies."""
        return self._reads("entropies")

    @property
    def reads_vocabulary(self) -> bool:
        """Whether a term reads the vocabulary's mean log-probs, see `with_vocabulary`."""
        return self._reads("next_vocabulary_logprobs")

    def _reads(self, name: str) -> bool:
        return any(name in kind.reads() for kind, _ in self.terms.values())

    def with_vocabulary(self, values: torch.Tensor) -> "LossInputs":
        """Add the means over the vocabulary of the policy's log-probs, float32 [N], each at the token before it."""
        following = torch.cat([functional.pad(part[1:], (0, 1)) for part in values.split(self.lengths) if len(part)])
        return replace(self, columns={**self.columns, "next_vocabulary_logprobs": following})

    @property
    def token_local(self) -> bool:
        """Whether each token's loss depends on that token alone, and never on its neighbors."""
        return all(kind.token_local and settings.token_local for kind, settings in self.terms.values())

    def part(self, tokens: slice) -> "LossInputs":
        """Select tokens, for losses that treat each token by itself: row boundaries are lost."""
        columns = {name: values[tokens] for name, values in self.columns.items()}
        weights = {name: values[tokens] for name, values in self.weights.items()}
        return LossInputs(columns, weights, self.terms, (len(columns["multiplicity"]),))


def flat(
    values: Sequence[np.ndarray | float | None], rows: Sequence[TrainingSample], device: torch.device
) -> torch.Tensor:
    """Concatenate the rows' values into float32 [N]: [L] of a row, or one number for all its tokens; None gives NaN.

    Raises:
        ValueError: the values of a row have another shape.
    """
    parts = []
    for value, row in zip(values, rows, strict=True):
        part = np.asarray(np.nan if value is None else value, np.float32)
        if part.ndim and part.shape != (row.response_length,):
            raise ValueError(f"expected {row.response_length} values, one per policy token, got shape {part.shape}")
        parts.append(np.broadcast_to(part, row.response_length))
    return torch.from_numpy(np.concatenate(parts)).to(device)


def token_loss(
    logprobs: torch.Tensor, entropies: torch.Tensor | None, inputs: LossInputs, settings: LossSettings
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of tokens, and detached sums over them for the metrics.

    Objectives are multiplied by importance weights, and summed together; each other term has a sum of its own.

    Args:
        logprobs: float32 [N], the policy's; the loss is differentiable in them.
        entropies: float32 [N], of its next-token distributions; read, and differentiated in, by terms that ask for it.
        inputs: of the same tokens.
        settings: of the loss.

    Returns:
        A scalar to minimize; and `loss`, `loss/NAME` (what the terms of a name add to it), `value/NAME` and
        `tokens/NAME` (of those that are no objectives the unweighted sum, and over how many tokens), `clipped`
        (tokens), `replayed_tokens`, `replayed_clipped`, `max_replayed_ratio` (of rows of other steps, with log-probs of
        their own), `max_logp_mismatch` (of the log-probs of policy and engine, over rows that no scoring pass has seen)
        and `max_ratio_deviation` (of the ratio from 1).

    Raises:
        RunError: a term does not return a loss for each token; one line that names its class.
    """
    own, columns = logprobs.detach(), dict(inputs.columns)
    multiplicity, advantages = columns["multiplicity"], columns["advantages"]
    unscored, on_policy = columns["old_logprobs"].isnan(), ~columns["sampling_logprobs"].isnan()
    replayed = ~unscored & ~on_policy
    old_logprobs = torch.where(unscored, own, columns["old_logprobs"])
    sampling_logprobs = torch.where(on_policy, columns["sampling_logprobs"], old_logprobs)
    importance = None
    if settings.importance_cap > 0:
        importance = importance_weights(old_logprobs, sampling_logprobs, settings=settings, lengths=inputs.lengths)
        importance = torch.where(on_policy, importance, torch.ones_like(importance))
    columns |= {"logprobs": logprobs, "old_logprobs": old_logprobs, "sampling_logprobs": sampling_logprobs}
    if entropies is not None:
        columns["entropies"] = entropies
    losses, clipped, others = torch.zeros_like(logprobs), torch.zeros_like(unscored), []
    sums: dict[str, torch.Tensor] = defaultdict(lambda: own.new_zeros(()))
    objectives_first = sorted(inputs.weights, key=lambda each: not isinstance(inputs.terms[each][0], Objective))
    for name in objectives_first:
        weights, (kind, of_term) = inputs.weights[name], inputs.terms[name]
        label = name.name.rpartition(":")[2]  # of a class its name alone
        if isinstance(kind, Objective):
            values, beyond = kind.token_losses(logprobs, old_logprobs, advantages, of_term, inputs.lengths)
            weighted = (weights if importance is None else weights * importance) * values
            losses, clipped = losses + weighted, clipped | (beyond & (weights != 0))
            sums[f"loss/{label}"] += weighted.detach().sum()
            continue
        values = kind.token_loss(**{argument: columns[argument] for argument in kind.reads()})
        check_returned(kind, "token_loss", values, logprobs, "float [N], the loss of each token")
        others.append(kind.coefficient * (weights * values).sum())
        takes_part = (weights != 0) * multiplicity
        sums[f"loss/{label}"] += others[-1].detach()
        sums[f"value/{label}"] += (takes_part * values.detach()).sum()
        sums[f"tokens/{label}"] += takes_part.sum()
    value = sum(others, losses.sum())
    mismatch = (own - sampling_logprobs).abs() * (unscored & on_policy & (multiplicity > 0))
    return value, {
        **sums,
        "loss": value.detach(),
        "clipped": (clipped * multiplicity).sum(),
        "replayed_tokens": (replayed * multiplicity).sum(),
        "replayed_clipped": (clipped * multiplicity * replayed).sum(),
        "max_replayed_ratio": ((own - old_logprobs).clamp(max=MAX_LOG_RATIO).exp() * replayed).max(),
        "max_logp_mismatch": mismatch.max(),
        "max_ratio_deviation": (own - old_logprobs).exp().sub(1).abs().max(),
    }
