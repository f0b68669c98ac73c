"""The interface of a method that adds to GRPO: its settings, hooks, state and metrics. Imports neither Ray nor torch.

    from algorithms.grpo.mechanism import Mechanism, Settings, setting

is all that a mechanism of one's own needs; docs/method/extend.md shows one.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from algorithms.config.plugins import Plugin
from algorithms.config.schema import Settings, setting
from algorithms.grpo.types import Group, Sample, StepBatch
from algorithms.history.store import ReplayHistory
from algorithms.losses.term import term
from algorithms.rollout.types import Prompt
from algorithms.utils.rng import RngStream, rng_for
from r3env.core import Query
from r3env.queries import variants_of

if TYPE_CHECKING:  # loads Ray
    from transformers import PreTrainedTokenizerBase

    from algorithms.config.base import BaseConfig
    from algorithms.rollout.attempts import AttemptTruncator

__all__ = ["Group", "Mechanism", "Prompt", "Sample", "Services", "Settings", "State", "StepBatch", "setting", "term"]

State = tuple[dict[str, np.ndarray], dict[str, Any]]  # arrays, and what fits JSON
_STREAMS = {"reflection": RngStream.REFLECTION, "replay": RngStream.REPLAY}


class Scorer(Protocol):
    """Fills in samples' log-probs (and entropies) under the current policy."""

    def __call__(self, samples: Sequence[Sample], *, entropy: bool = False) -> None: ...


class OtherScorer(Protocol):
    """Returns samples' log-probs under a model, float32 [L] each; does not change the samples.

    Other statistics: `vocabulary_logprobs`, the mean over the vocabulary of the log-probs at each token, float32 [L];
    `mean_states`, the mean of the last hidden states that predict the tokens, float32 [D].
    """

    def __call__(
        self,
        samples: Sequence[Sample],
        under: Literal["policy", "reference", "teacher"],
        statistic: Literal["logprobs", "vocabulary_logprobs", "mean_states"] = "logprobs",
    ) -> list[np.ndarray]: ...


def _not_there(*_: Any, **__: Any) -> Any:
    raise RuntimeError("these services belong to no algorithm: they can neither score nor render")


@dataclass
class Services:
    """The services that mechanisms may use; they never see the algorithm.

    Args:
        config: of the run.
        seed: of the run.
        uids: the training queries, in the data's order.
        query: gives a training query by its uid.
        score: see `Scorer`.
        truncator: makes what shortens quoted attempts to so many tokens; None: to what the context has room for.
        opened_history: responses to each query; there if an enabled mechanism says `uses_history`.
        step: the one that is running.
        measure: fills in the log-probs of samples that have none yet, and the sum of their entropies.
        score_under: see `OtherScorer`. For `reference` the class says `uses_reference`, for `teacher` `uses_teacher`.
        render: gives the tokens of a first prompt, int32 [P], as an env runner would write them; None: its environment
            fails, or it leaves less room in the model's context than so many tokens.
        opened_tokenizer: of the policy.
        vocabulary: rows of the policy's output head.
        context: tokens that the policy's context has; None: no bound.
    """

    config: "BaseConfig"
    seed: int
    uids: Sequence[str]
    query: Callable[[str], Query]
    score: Scorer
    truncator: "Callable[[int | None], AttemptTruncator]"
    opened_history: ReplayHistory | None = field(default=None)
    step: int = 0
    measure: Callable[[Sequence[Sample]], None] = _not_there
    score_under: OtherScorer = _not_there
    render: Callable[[Prompt, int], np.ndarray | None] = _not_there
    opened_tokenizer: "PreTrainedTokenizerBase | None" = None
    vocabulary: int = 0
    context: int | None = None

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The policy's tokenizer."""
        if self.opened_tokenizer is None:
            raise RuntimeError("these services have no tokenizer; fix: Services(opened_tokenizer=…)")
        return self.opened_tokenizer

    @property
    def history(self) -> ReplayHistory:
        """The responses to each query, as stored before this step."""
        if self.opened_history is None:
            raise RuntimeError("no history is open; fix: uses_history = True in the mechanism's class")
        return self.opened_history

    def posed(self, prompt: Prompt) -> Query:
        """Return a prompt's query in the form that it is posed in, which may have another answer."""
        query = self.query(prompt.uid)
        return variants_of(query)[prompt.variant] if prompt.variant else query

    def rng(self, name: str, step: int, occasion: int = 0) -> np.random.Generator:
        """Return the mechanism's own random stream: no other mechanism's switch changes its draws."""
        return rng_for(self.seed, step, _STREAMS.get(name) or zlib.crc32(name.encode()), occasion)


class Mechanism(Plugin):
    """One method. All hooks are optional; the stages of GRPO call those of the enabled mechanisms, in order.

    State changes in `update_history` alone: a step that fails before it can be saved and made again.

    Attributes:
        section: its section of the configuration; also the name of its random stream and of its state.
        settings_class: the section's settings, with a switch `enabled`.
        tags: its metrics, with their values in a step in which it did nothing or is off.
        uses_history: whether `services.history` has to be open.
        uses_reference: whether it reads log-probs under the model that the run began with.
        uses_teacher: whether it reads those under another model: setting `teacher` of its section, a folder, Hub id or
            embedded model, at `teacher_revision`.
        keeps_advantages: whether it keeps advantages for later steps: none that changes them may be behind it.
        by_query: names of arrays of its state that are in the order of the data's queries; with those of other data, or
            in another order, it starts anew.
        conflicts: sections of mechanisms that it does not go together with, and why, as half a sentence.
        metrics: what it reports of the running step, by tag; begins as a copy of `tags`.
    """

    named_in = "training.mechanisms=[{}]"
    tags: ClassVar[Mapping[str, float]] = {}
    uses_history: ClassVar[bool] = False
    uses_reference: ClassVar[bool] = False
    uses_teacher: ClassVar[bool] = False
    keeps_advantages: ClassVar[bool] = False
    by_query: ClassVar[tuple[str, ...]] = ()
    conflicts: ClassVar[Mapping[str, str]] = {}

    def __init__(self, settings: Any, services: Services) -> None:
        self.settings, self.services = settings, services
        self.metrics: dict[str, float] = dict(self.tags)

    @classmethod
    def is_enabled(cls, settings: Any, config: "BaseConfig") -> bool:
        """Return whether its switch is on."""
        return bool(getattr(settings, "enabled", True))

    @classmethod
    def extra_prompts(cls, settings: Any, queries: int) -> int:
        """Count the prompts that it adds to a step of this many queries at most."""
        return 0

    @classmethod
    def quoted_tokens(cls, settings: Any, response_limit: int) -> int:
        """Count the tokens by which its prompts may exceed plain ones, such as those of a quoted attempt."""
        has_prompts = cls.prompts is not Mechanism.prompts or cls.follow_up is not Mechanism.follow_up
        return response_limit if has_prompts else 0

    # -- Rollouts. `step` is the one that trains on them: with a policy lag not the one that is running.
    def shape_prompts(self, prompts: list[Prompt], step: int) -> list[Prompt]:
        """Return the plain prompts of the step's queries, one a query, changed: other sizes, or probes."""
        return prompts

    def prompts(self, queries: Sequence[str], step: int) -> list[Prompt]:
        """Return further prompts in addition to the plain ones of these queries."""
        return []

    def follow_up(self, groups: Sequence[Group], round: int) -> list[Prompt]:
        """Return prompts to roll out after these groups came in; `round` counts from 1 in each step.

        `groups` is the list of the step so far, and grows with it; a group keeps the `Prompt` object that it is of.
        """
        return []

    def is_informative(self, group: Group) -> bool:
        """Return whether a group that teaches GRPO nothing has something to teach. Pure."""
        return False

    # -- The step, hook by hook in the order of the stages.
    def needs(self, group: Group) -> Sequence[Sample]:
        """Return the samples whose log-probs and entropies have to be there when rewards are shaped."""
        return []

    def before_rewards(self, batch: StepBatch) -> None:
        """Measure, for all groups at once, what `rewards` reads; the environment's rewards are there."""

    def rewards(self, group: Group) -> None:
        """Set `shaped_reward` of the group's samples."""

    def compose(self, batch: StepBatch) -> None:
        """Change which samples the groups hold."""

    def normalize(self, group: Group) -> None:
        """Set the group's `std_scale` and `std_floor`; its members are final."""

    def before_advantages(self, batch: StepBatch) -> None:
        """Score, for all groups at once, what `advantages` reads; members and rewards are final, but for `kl_cost`."""

    def advantages(self, group: Group, advantages: np.ndarray) -> "np.ndarray | list[np.ndarray]":
        """Change the estimator's advantages: float [G], or for each member float [L], one value per token."""
        return advantages

    def auxiliary(self, batch: StepBatch) -> list[Sample]:
        """Return samples with their own objective: `advantages` weigh the log-probs of their tokens."""
        return []

    def before_update(self, batch: StepBatch) -> None:
        """Read the policy that sampled, for the last time; what it adds to `batch.for_history` is scored and stored."""

    def update_history(self, batch: StepBatch) -> None:
        """Learn from the step. The only hook that may change state."""

    # -- Checkpoints.
    def state(self) -> State:
        """Return the state for a checkpoint."""
        return {}, {}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Restore the result of `state`; both are empty where the checkpoint has none of it."""
