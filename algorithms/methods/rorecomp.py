"""RoRecomp: train on short correct and long incorrect responses first, and on the others later."""

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import (
    Group,
    Mechanism,
    Prompt,
    Sample,
    Services,
    Settings,
    State,
    StepBatch,
    setting,
    term,
)
from algorithms.grpo.types import to_entry, to_sample
from algorithms.history.arrays import joined, pack_entries, split_tokens, unpack_entries
from algorithms.history.entry import ReplayEntry

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

COMPENSATION = "compensation"


class RoRecompSettings(Settings):
    """Train first on short correct and long incorrect responses. The numbers are ours: the paper's were not found."""

    enabled: bool = setting(True, "Whether to recompose steps.")
    share: float = setting(
        0.5,
        "Share of a group's shortest correct responses, and of its longest incorrect ones, to train on first (α).",
        gt=0,
        lt=1,
    )
    buffer: int = setting(128, "Size, in responses, at which the buffer of the remaining ones is trained on.", ge=1)
    dual_clip: float | None = setting(
        3.0,
        "Bound on the ratio of the buffer's tokens whose advantage is negative, as `replay.dual_clip`; null: "
        "`training.dual_clip`.",
        gt=1,
    )


class RoRecomp(Mechanism):
    """Takes advantages over whole groups, and trains on the priority responses of each; the others go to a buffer.

    What waits is in no part of the step's loss, nor of what divides it: it counts when its turn comes.

    When the buffer holds `buffer` responses, the oldest so many join the next step under their stored log-probs and
    advantages, as replayed ones, and leave it; of a buffer that holds several times as many all of these do, so that it
    stays small. Groups without an advantage leave nothing.

    Source: arXiv 2509.25958 (abstract and reviews: the two batches, a first-in-first-out buffer). Ours: the share, and
    that it is taken group by group; the buffer's size; and that its responses join a step's optimizer steps, where the
    paper makes one of their own.
    """

    section = "rorecomp"
    settings_class = RoRecompSettings
    keeps_advantages = True
    conflicts = {"prerl": "its steps train on no group, and the buffer's responses would join them or be lost"}
    tags = {"rorecomp/priority": 0.0, "rorecomp/buffer": 0.0, "rorecomp/compensated": 0.0}
    settings: RoRecompSettings

    def __init__(self, settings: RoRecompSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.buffer: list[tuple[ReplayEntry, np.ndarray]] = []  # with the advantages of their tokens
        self.later: list[tuple[Sample, np.ndarray]] = []  # of the running step

    @classmethod
    def check(cls, settings: RoRecompSettings, config: "BaseConfig") -> None:
        """Raise ConfigError where the longest incorrect responses, which it trains on first, are masked."""
        if settings.enabled and config.training_settings.mask_truncated:
            raise ConfigError(
                "training.mask_truncated: leaves out of the loss the long incorrect responses that rorecomp trains on "
                "first; fix: rorecomp.enabled=false, or training.mask_truncated=false"
            )

    def compose(self, batch: StepBatch) -> None:
        """Start a new step."""
        self.later = []

    def advantages(self, group: Group, advantages: np.ndarray) -> "np.ndarray | list[np.ndarray]":
        """Set the advantages of the other responses to 0, and keep them for later."""
        values = [np.asarray(value, np.float32) for value in advantages]
        if not any(value.any() for value in values):
            return advantages
        first = priority(
            np.array([sample.rollout.response_length for sample in group.samples]),
            np.array([sample.rollout.correct for sample in group.samples]),
            self.settings.share,
        )
        kept = [first[place] or sample.replayed for place, sample in enumerate(group.samples)]
        for sample, value, keep in zip(group.samples, values, kept, strict=True):
            if not keep:
                self.later.append((sample, np.broadcast_to(value, sample.rollout.response_length).copy()))
                sample.optional = True  # it is trained on later, and counts then
        return [value if keep else value * 0 for value, keep in zip(values, kept, strict=True)]

    def before_update(self, batch: StepBatch) -> None:
        """Add the oldest responses of a full buffer to the step."""
        for (uid, _), waiting in itertools.groupby(self.due(), key=lambda one: (one[0].uid, one[0].step)):
            joining = Group(Prompt(uid, COMPENSATION))
            for entry, advantages in waiting:
                joining.samples.append(to_sample(entry, len(batch.groups)))
                joining.samples[-1].advantages = advantages
                if self.settings.dual_clip:
                    joining.samples[-1].terms = {term("policy", dual_clip=self.settings.dual_clip): 1.0}
            batch.groups.append(joining)
        self.metrics["rorecomp/compensated"] = float(len(self.due()))

    def due(self) -> list[tuple[ReplayEntry, np.ndarray]]:
        """Return the responses whose turn it is."""
        return self.buffer[: len(self.buffer) // self.settings.buffer * self.settings.buffer]

    def update_history(self, batch: StepBatch) -> None:
        """Drop responses that were trained on, and keep the others."""
        batch.groups = [group for group in batch.groups if group.prompt.context != COMPENSATION]
        del self.buffer[: len(self.due())]
        self.buffer += [
            (to_entry(sample, batch.step), advantages)
            for sample, advantages in self.later
            if sample.old_logprobs is not None and sample.is_finite
        ]
        fresh = sum(len(group.trained) for group in batch.groups)
        self.metrics["rorecomp/priority"] = 1.0 - len(self.later) / max(1, fresh)
        self.metrics["rorecomp/buffer"] = float(len(self.buffer))
        self.later = []

    def state(self) -> State:
        """Return the buffer, its sequences one after another."""
        arrays, facts = pack_entries([entry for entry, _ in self.buffer])
        arrays["advantages"] = joined([advantages for _, advantages in self.buffer], np.float32)
        return arrays, {"entries": facts}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Put it back."""
        entries = unpack_entries(arrays, state.get("entries", []))
        masks = [entry.loss_mask for entry in entries]
        advantages = split_tokens(arrays["advantages"], masks) if entries else []
        self.buffer = [(entry, np.array(own, np.float32)) for entry, own in zip(entries, advantages, strict=True)]


def priority(lengths: np.ndarray, correct: np.ndarray, share: float) -> np.ndarray:
    """Choose the shortest correct and the longest incorrect responses: bool [G]; at least one of each kind present."""
    chosen = np.zeros(len(lengths), bool)
    for kind, order in ((correct, np.argsort(lengths, kind="stable")), (~correct, np.argsort(-lengths, kind="stable"))):
        places = [place for place in order if kind[place]]
        chosen[places[: int(np.ceil(share * len(places)))]] = True
    return chosen
