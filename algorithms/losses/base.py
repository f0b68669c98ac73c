"""The base classes of loss terms and objectives. Their losses are sums over flat tensors: any split of rows adds up."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch

from algorithms.config.errors import ConfigError
from algorithms.config.plugins import Plugin, find_plugins, load_plugin
from algorithms.config.sections import TrainingSettings
from algorithms.losses.term import POLICY, Term
from algorithms.utils.errors import RunError

Level = Literal["token", "sequence"]
CorrectionLevel = Literal["token", "sequence", "geometric"]
CorrectionMode = Literal["truncate", "mask"]

# exp(20) is outside any clip range; without a bound float32 overflows and a zero gradient becomes 0 · inf.
MAX_LOG_RATIO = 20.0

PACKAGE = "algorithms.losses"

# What a term may read of the policy that is trained, and of every row; anything else is in rows' `inputs`.
POLICY_COLUMNS = frozenset({"logprobs", "entropies", "next_vocabulary_logprobs"})
ROW_COLUMNS = frozenset({"old_logprobs", "sampling_logprobs", "reference_logprobs", "advantages", "multiplicity"})

# Fields of `LossSettings` that a row may have of its own.
ROW_SETTINGS = frozenset({"clip_low", "clip_high", "ratio_level", "dual_clip"})


@dataclass(frozen=True)
class LossSettings:
    """The loss of an optimizer step; the fields are those of section `training`, but for `objective_options`.

    Args:
        clip_low: how far below 1 a ratio may fall before it is clipped.
        clip_high: how far above 1 a ratio may rise before it is clipped.
        importance_cap: cap of the importance weights of on-policy tokens; 0: no correction.
        objective: a file's name in `algorithms.losses`, or the "module:Class" of an `Objective`.
        ratio_level: `token`, or `sequence`: all tokens of a response share its length-normalized ratio (GSPO).
        dual_clip: bound on the ratio where the advantage is negative; None: none.
        importance_level: whether importance weights are a token's own, or of its response their product or its
            geometric mean.
        importance_mode: whether weights above the cap are set to the cap, or to 0.
        importance_floor: with `mask`, weights below this are set to 0 too.
        objective_options: plain settings of the objective's own section.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    importance_cap: float = 2.0
    objective: str = "clip"
    ratio_level: Level = "token"
    dual_clip: float | None = None
    importance_level: CorrectionLevel = "token"
    importance_mode: CorrectionMode = "truncate"
    importance_floor: float = 0.0
    objective_options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, training: TrainingSettings, objective_options: Mapping[str, Any] | None = None) -> "LossSettings":
        """Take the loss's settings from section `training`, and the objective's own from its section."""
        names = {each.name for each in fields(cls)} - {"objective_options"}
        values = {name: getattr(training, name) for name in names}
        return cls(**values, objective_options=objective_options or {})

    @cached_property
    def objective_instance(self) -> "Objective":
        """The objective, with its own settings.

        Raises:
            ConfigError: there is no such objective, or it does not take these options.
        """
        return load_objective(self.objective)(self.objective_options)

    @property
    def token_local(self) -> bool:
        """Whether a token's loss depends on that token's log-prob alone, and never on its neighbors'."""
        by_token = self.importance_cap == 0 or self.importance_level == "token"
        return self.ratio_level == "token" and by_token and self.objective_instance.token_local


class LossTerm(Plugin):
    """A loss per token, for rows that name the term.

    It is multiplied by the row's weight in the term, and by the row's weight in the loss. Derive from this class for a
    term of your own: a row names it by its "module:Class". `settings_class` declares its settings.

    Args:
        options: values for `settings_class`, as plain data.

    Raises:
        ConfigError: an option that `settings_class` does not have, or a value that it does not take.
    """

    named_in = "term({!r}) in `sample.terms`, set by a mechanism or an advantage estimator"
    needed = ("token_loss",)

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.settings: Any = self.settings_class().changed(self.section or self.name, options or {})

    def token_loss(self, *arguments: Any) -> torch.Tensor:
        """Return the loss of each token, before weights: float [N], differentiable in `logprobs` and `entropies`.

        The names of the arguments say what it reads. Each is a float tensor [N] over response tokens; all but the first
        two are constants:

        - `logprobs` and `entropies` are those of the policy that is trained.
        - `old_logprobs` are the policy's at the step's start, or on a replayed row those that it was stored with. On a
          row that nothing has scored yet they equal `logprobs`.
        - `sampling_logprobs` are the engine's. On a replayed row they equal `old_logprobs`; its rollout holds zeros.
        - `reference_logprobs` are the frozen policy's; only with `training.beta` above 0.
        - `advantages` are the row's, `multiplicity` the number of equal responses that it stands for.
        - `next_vocabulary_logprobs` are the means over the vocabulary of the policy's log-probs at the response's next
          token, and 0 behind its last.
        - Any other name is a row's in `inputs`, 0 for rows without it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define token_loss")

    @property
    def coefficient(self) -> float:
        """What the sum over tokens is multiplied by in the loss."""
        return 1.0

    @property
    def token_local(self) -> bool:
        """Whether a token's loss depends on that token alone."""
        return True

    @classmethod
    @functools.cache
    def reads(cls) -> tuple[str, ...]:
        """Return the names of the arguments of `token_loss`; an objective has none."""
        parameters = inspect.signature(cls.token_loss).parameters.values()
        return tuple(each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))[1:]


class Objective(LossTerm):
    """The quantity that the loss maximizes for each token, from its ratio, log-prob and advantage.

    Derive from it for an objective of your own: `training.objective` takes its "module:Class". With `section` and
    `settings_class` it has settings of its own, in `self.settings`.

    Attributes:
        takes_dual_clip: whether `training.dual_clip` is for it.
        takes_sequence_ratio: whether `training.ratio_level: sequence` is.
        not_for_setting: whether only rows may name it, and `training.objective` may not.
        shares_ratio: whether all tokens of a response share one ratio.
    """

    named_in = "training.objective={}"
    needed = ("token_objective or response_objective or token_losses",)
    takes_dual_clip: ClassVar[bool] = True
    takes_sequence_ratio: ClassVar[bool] = True
    not_for_setting: ClassVar[bool] = False
    shares_ratio: ClassVar[bool] = False

    @classmethod
    def check(cls, settings: Any, config: Any) -> None:
        """Raise ConfigError for a setting of section `training` that it does not take."""
        training = config.training_settings
        line = f"has no effect with training.objective={training.objective}"
        if training.dual_clip is not None and not cls.takes_dual_clip:
            raise ConfigError(f"training.dual_clip: {line}, which bounds ratios itself; fix: training.dual_clip=null")
        if training.ratio_level == "sequence" and not cls.takes_sequence_ratio:
            raise ConfigError(f"training.ratio_level: sequence {line}; fix: training.ratio_level=token")

    def token_objective(
        self, ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what to maximize for each token, before weights, and which tokens were clipped.

        Args:
            ratio: float [N], of policy to old policy (`LossSettings.ratio_level`), at most exp(20); differentiable.
            logprobs: float [N], the policy's; differentiable.
            advantages: float [N], detached.
            settings: of the loss.

        Returns:
            float [N], differentiable in `logprobs`, and bool [N].
        """
        raise NotImplementedError(f"{type(self).__name__} must define token_objective")

    def response_objective(
        self,
        ratio: torch.Tensor,
        logprobs: torch.Tensor,
        advantages: torch.Tensor,
        settings: LossSettings,
        lengths: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same for objectives that need the whole response: by default `token_objective`.

        Args:
            ratio: as there, response after response, like all that is not named here.
            logprobs: as there.
            advantages: as there.
            settings: as there.
            lengths: tokens of each response; they add up to N.
        """
        return self.token_objective(ratio, logprobs, advantages, settings)

    @property
    def token_local(self) -> bool:
        """Whether a token's objective depends on that token alone; true unless `response_objective` is defined."""
        return type(self).response_objective is Objective.response_objective

    def token_losses(
        self,
        logprobs: torch.Tensor,
        old_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        settings: LossSettings,
        lengths: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each token's loss before weights, minus the objective, and which tokens it clipped.

        The ratio is `exp(logprobs - old_logprobs)`, or with `ratio_level="sequence"` the exponential of its mean over
        the response. Gradients flow through `logprobs` alone; a ratio above exp(20) has none. With
        `settings.dual_clip` the objective is at least `dual_clip · A` where the advantage is negative.

        Args:
            logprobs: float [N], log-probs under the policy being trained, response after response.
            old_logprobs: float [N], under the policy at the step's start, or as stored with a replayed response.
            advantages: float [N], of each token.
            settings: of the loss.
            lengths: tokens of each response, in order; they add up to N.

        Raises:
            ValueError: the tensors do not share one 1-D shape, or `lengths` do not add up to it.
            RunError: the objective returns something else than values of each token; one line that names its class.

        Source: Eq. 2, arXiv 2601.19620; PPO, arXiv 1707.06347; GSPO, arXiv 2507.18071; dual clip, arXiv 1912.09729.
        """
        check_flat(logprobs, old_logprobs, advantages)
        if sum(lengths) != len(logprobs):
            raise ValueError(f"lengths add up to {sum(lengths)}, there are {len(logprobs)} tokens")
        advantages, log_ratio = advantages.detach(), logprobs - old_logprobs.detach()
        if settings.ratio_level == "sequence":
            log_ratio = over_rows(torch.mean, log_ratio, lengths)
        ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
        found = self.response_objective(ratio, logprobs, advantages, settings, lengths)
        objective, clipped = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        by_token = type(self).response_objective is Objective.response_objective
        hook = "token_objective" if by_token else "response_objective"
        for value, kind in ((objective, logprobs.dtype), (clipped, torch.bool)):
            expected = "float [N] and bool [N], what to maximize and which tokens are clipped"
            check_returned(self, hook, value, logprobs, expected, kind)
        if settings.dual_clip is not None and self.takes_dual_clip:
            floor = settings.dual_clip * advantages
            beyond = (advantages < 0) & (objective < floor)
            objective, clipped = torch.where(beyond, floor, objective), clipped | beyond
        return -objective, clipped


def check_returned(
    term: LossTerm, hook: str, value: object, tokens: torch.Tensor, expected: str, dtype: torch.dtype | None = None
) -> None:
    """Raise RunError, in one line that names the class, unless a hook has returned a value of each token."""
    came = f"a {type(value).__name__}"
    if isinstance(value, torch.Tensor):
        if value.shape == tokens.shape and (value.dtype == torch.bool) == (dtype == torch.bool):
            return
        came += f" of {value.dtype} and shape {tuple(value.shape)}"
    kind = type(term)
    raise RunError(
        f"{kind.__module__}:{kind.__qualname__}.{hook} returned {came} for {len(tokens)} tokens; fix: return {expected}"
    )


def load_objective(name: str) -> type[Objective]:
    """Return the class of a registered objective, or of a user's "module:Class".

    Raises:
        ConfigError: one line that names `training.objective`.
    """
    known = {key: kind for key, kind in find_plugins(PACKAGE, Objective).items() if not kind.not_for_setting}
    return load_plugin("training.objective", name, Objective, known)


def load_term(name: str) -> type[LossTerm]:
    """Return the class that a term's name stands for: `policy`, a file of the library, or a "module:Class".

    `policy` gives `Objective`, the base of all objectives.

    Raises:
        ConfigError: there is none.
    """
    if name == POLICY.name:
        return Objective
    return load_plugin("loss term", name, LossTerm, find_plugins(PACKAGE, LossTerm))


def build_term(term: Term, settings: LossSettings) -> tuple[LossTerm, LossSettings]:
    """Build what a row names, and return it with the settings of the loss that are for it.

    Of two bounds on the ratio, a row's own and the loss's, the tighter one holds.

    Raises:
        ConfigError: there is no such term, or it does not take these options.
    """
    options = dict(term.options)
    if term.name != POLICY.name:
        return load_term(term.name)(options), settings
    if unknown := sorted(options.keys() - ROW_SETTINGS):
        raise ConfigError(
            f"loss term policy: a row has no {unknown[0]} of its own; known: {', '.join(sorted(ROW_SETTINGS))}"
        )
    if settings.dual_clip is not None and "dual_clip" in options:
        options["dual_clip"] = min(settings.dual_clip, options["dual_clip"])
    return settings.objective_instance, replace(settings, **options) if options else settings


def token_log_ratio(ratio: torch.Tensor, logprobs: torch.Tensor) -> torch.Tensor:
    """Return the log of tokens' own ratios, float [N], with gradient 1 by each token's log-prob, however far it is."""
    tiny = torch.finfo(ratio.dtype).tiny
    return logprobs - logprobs.detach() + ratio.detach().clamp(min=tiny).log()


def over_rows(
    reduce: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor, lengths: Sequence[int]
) -> torch.Tensor:
    """Reduce each row, repeated over its tokens: float [N] to float [N]. Deterministic, gradients included."""
    parts = values.split(list(lengths))
    return torch.cat([reduce(part).expand(len(part)) for part in parts if len(part)] or [values])


def check_flat(*tensors: torch.Tensor) -> None:
    """Check that shapes agree, which broadcasting would otherwise turn into [N, N].

    Raises:
        ValueError: the tensors do not share one 1-D shape.
    """
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"expected flat tensors of one length, got shapes {shapes}")
