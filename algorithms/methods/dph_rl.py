"""DPH-RL: rehearse what the policy could do at first, by a mass-covering divergence."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from algorithms.grpo.mechanism import Group, Mechanism, Sample, Services, Settings, State, StepBatch, setting
from algorithms.grpo.types import to_entry, to_sample
from algorithms.history.arrays import pack_entries, unpack_entries
from algorithms.history.entry import ReplayEntry
from algorithms.rollout.types import Context

Divergence = Literal["forward_kl", "js", "alpha"]
ALPHA = 0.2  # the order of `alpha`
KEEP = 8  # responses per solved query
CAPACITY = 4096  # responses in total; queries that are solved after that are trained on
MAX_RATIO = 10.0  # of a token, in the gradient of the divergence


class DphRlSettings(Settings):
    """Rehearse responses to queries that were solved when they were first sampled."""

    enabled: bool = setting(True, "Whether to rehearse.")
    divergence: Divergence = setting(
        "forward_kl",
        "Divergence from the policy that wrote a response to the one in training: forward KL, Jensen-Shannon, or "
        "`alpha`.",
    )
    coefficient: float = setting(0.01, "Weight of the divergence in the loss; the authors try up to 0.05.", ge=0)
    solved: float = setting(
        1.0, "Share of correct responses in its first group from which a query counts as solved.", gt=0, le=1
    )
    share: float = setting(0.25, "Responses to rehearse per step, as a share of those that the step samples.", gt=0)
    leave_out: bool = setting(True, "Whether solved queries get no policy loss.")


class DphRl(Mechanism):
    """Adds `coefficient ×` the mean over tokens of f(u), u = π/π_0, on responses of π_0 to queries that it solved.

    Forward KL: `u - 1 - log u`, k3 with the roles swapped. `js`: KL(π_0 ‖ M), M the mean of both policies, by the same
    estimate: `m - 1 - log m`, m = (1 + u) / 2. `alpha`: `(u^(1-α) - (1-α)u - α) / (α(α-1))`. Of π_0 it needs the stored
    log-probs alone. Solved queries have no policy loss (`leave_out`): their groups count as dropped.

    The gradient is that of rows weighed by the slope of f at the step's start: exact with one optimizer step a training
    step, of first order with more. A step costs one forward pass to know u, and one forward and backward, over the
    rehearsed responses. A solved query's first responses are kept here, apart from the history, whose capacity would
    evict them; a checkpoint holds them.

    Source: arXiv 2509.07430; the authors' code, which samples all data before training, rehearses a quarter as many
    responses as it trains on, and does not sample solved queries. Ours: π_0 is the policy that a query was first
    sampled by, so that the first epoch is the sampling; solved queries are sampled as before; and the bound on u.
    """

    section = "dph_rl"
    settings_class = DphRlSettings
    by_query = ("seen",)
    tags = {"dph_rl/kept": 0.0, "dph_rl/rehearsed": 0.0, "dph_rl/divergence": 0.0, "dph_rl/left_out": 0.0}
    settings: DphRlSettings

    def __init__(self, settings: DphRlSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.places = {uid: number for number, uid in enumerate(services.uids)}
        self.seen = np.zeros(len(self.places), bool)
        self.kept: dict[str, list[ReplayEntry]] = {}
        self.found: dict[str, list[Sample]] = {}  # what the running step adds

    def compose(self, batch: StepBatch) -> None:
        """Find queries that are solved at first sight, and leave the groups of solved ones out."""
        self.found = self._solved_at_first(batch.rolled_out)
        if not self.settings.leave_out:
            return
        solved = {*self.kept, *self.found}
        out = [g for g in batch.groups if g.prompt.context == Context.PLAIN and g.prompt.uid in solved]
        batch.groups = [group for group in batch.groups if not any(group is each for each in out)]
        batch.dropped += out
        self.metrics["dph_rl/left_out"] = float(len(out))

    def before_update(self, batch: StepBatch) -> None:
        """Score kept responses without log-probs: the update measures trained samples only."""
        trained = {id(sample) for group in batch.groups for sample in group.samples}
        found = [sample for samples in self.found.values() for sample in samples]
        self.services.score([s for s in found if s.old_logprobs is None and id(s) not in trained])

    def auxiliary(self, batch: StepBatch) -> list[Sample]:
        """Return kept responses, weighed by the slope of their divergence."""
        pool = [entry for entries in self.kept.values() for entry in entries]
        count = min(len(pool), int(np.ceil(self.settings.share * sum(1 for _ in batch.fresh))))
        if not count:
            return []
        chosen = self.services.rng(self.section, batch.step).choice(len(pool), count, replace=False)
        entries = [pool[place] for place in sorted(chosen)]
        samples = [to_sample(entry, 0) for entry in entries]
        self.services.score(samples)
        rows, values = [], []
        for entry, sample in zip(entries, samples, strict=True):
            if sample.old_logprobs is not None and sample.is_finite:
                value, slope = self.divergence(sample.old_logprobs - entry.old_logprobs)
                rows.append(replace(sample, advantages=(-self.settings.coefficient * slope).astype(np.float32)))
                values.append(value)
        self.metrics["dph_rl/rehearsed"] = float(len(rows))
        self.metrics["dph_rl/divergence"] = float(np.concatenate([*values, np.zeros(0)]).mean()) if rows else 0.0
        return rows if self.settings.coefficient else []

    def divergence(self, log_ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return f(u) and its slope by log π, float [L] each, from log u; beyond the bound both stay constant."""
        u = np.exp(np.minimum(log_ratio.astype(np.float64), np.log(MAX_RATIO)))
        u = np.maximum(u, np.finfo(np.float64).tiny)
        if self.settings.divergence == "forward_kl":
            return u - 1 - np.log(u), u - 1
        if self.settings.divergence == "js":
            return (u - 1) / 2 - np.log((1 + u) / 2), u * (u - 1) / (2 * (1 + u))
        value = (u ** (1 - ALPHA) - (1 - ALPHA) * u - ALPHA) / (ALPHA * (ALPHA - 1))
        return value, (u - u ** (1 - ALPHA)) / ALPHA

    def update_history(self, batch: StepBatch) -> None:
        """Keep the first responses of solved queries, with their log-probs."""
        for group in batch.rolled_out:
            if group.prompt.context == Context.PLAIN and group.fresh and group.prompt.uid in self.places:
                self.seen[self.places[group.prompt.uid]] = True
        for uid, samples in self.found.items():
            entries = [to_entry(s, batch.step) for s in samples if s.old_logprobs is not None and s.is_finite]
            if entries:
                self.kept[uid] = entries
        self.found = {}
        self.metrics["dph_rl/kept"] = float(sum(map(len, self.kept.values())))

    def _solved_at_first(self, groups: Sequence[Group]) -> dict[str, list[Sample]]:
        """Return the samples to keep of each query that is new and solved, as far as there is room."""
        fresh: dict[str, list[Sample]] = {}
        for group in groups:
            uid = group.prompt.uid
            if group.prompt.context == Context.PLAIN and uid in self.places and not self.seen[self.places[uid]]:
                fresh.setdefault(uid, []).extend(s for s in group.fresh if s.rollout.response_length)
        room, found = CAPACITY - sum(map(len, self.kept.values())), {}
        for uid, samples in fresh.items():
            own = samples[:KEEP]
            correct = [sample.rollout.correct for sample in samples]
            if own and np.mean(correct) >= self.settings.solved and len(own) <= room:
                found[uid], room = own, room - len(own)
        return found

    def state(self) -> State:
        """Return the kept responses, and which queries were sampled."""
        arrays, facts = pack_entries([entry for entries in self.kept.values() for entry in entries])
        return arrays | {"seen": self.seen}, {"entries": facts}

    def restore(self, arrays: dict[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Restore them; without queries that were sampled from other data."""
        self.kept, self.found = {}, {}
        for entry in unpack_entries(arrays, state.get("entries", [])):
            self.kept.setdefault(entry.uid, []).append(entry)
        if len(arrays.get("seen", ())) == len(self.seen):
            self.seen = np.array(arrays["seen"], bool)
