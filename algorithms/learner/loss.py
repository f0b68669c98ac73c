"""The policy losses of the GRPO family on flat tensors of response tokens. Sums only, so any split of rows adds up."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch

from algorithms.config.errors import ConfigError
from algorithms.config.plugins import Plugin, load_plugin
from algorithms.config.sections import TrainingSettings

Level = Literal["token", "sequence"]
CorrectionLevel = Literal["token", "sequence", "geometric"]
CorrectionMode = Literal["truncate", "mask"]

# exp(20) is outside any clip range; without a bound float32 overflows and a zero gradient becomes 0 · inf.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class LossSettings:
    """The loss of an optimizer step; the fields are those of section `training`, but for `objective_options`.

    Args:
        clip_low: how far below 1 a ratio may fall before it is clipped.
        clip_high: how far above 1 a ratio may rise before it is clipped.
        importance_cap: cap of the importance weights of on-policy tokens; 0: no correction.
        beta: coefficient of the KL penalty; 0: none, or it is in the reward.
        objective: a name in `OBJECTIVES`, or the "module:Class" of an `Objective`.
        ratio_level: `token`, or `sequence`: all tokens of a response share its length-normalized ratio (GSPO).
        dual_clip: bound on the ratio where the advantage is negative; None: none.
        importance_level: whether importance weights are a token's own, or of its response their product or its
            geometric mean.
        importance_mode: whether weights above the cap are set to the cap, or to 0.
        importance_floor: with `mask`, weights below this are set to 0 too.
        kl_estimator: of the KL penalty, see `algorithms.learner.kl`.
        objective_options: plain settings of the objective's own section.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    importance_cap: float = 2.0
    beta: float = 0.0
    objective: str = "clip"
    ratio_level: Level = "token"
    dual_clip: float | None = None
    importance_level: CorrectionLevel = "token"
    importance_mode: CorrectionMode = "truncate"
    importance_floor: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    objective_options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, training: TrainingSettings, objective_options: Mapping[str, Any] | None = None) -> "LossSettings":
        """Take the loss's settings from section `training`, and the objective's own from its section."""
        names = {each.name for each in fields(cls)} - {"objective_options"}
        values = {name: getattr(training, name) for name in names} | {"beta": training.loss_beta}
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


class Objective(Plugin):
    """The quantity that the loss maximizes for each token, from its ratio, log-prob and advantage.

    Derive from it for an objective of your own: `training.objective` takes its "module:Class". With `section` and
    `settings_class` it has settings of its own, in `self.settings`.

    Args:
        options: values for `settings_class`, as plain data.

    Attributes:
        takes_dual_clip: whether `training.dual_clip` is for it.
        takes_sequence_ratio: whether `training.ratio_level: sequence` is.
        shares_ratio: whether all tokens of a response share one ratio.

    Raises:
        ConfigError: an option that `settings_class` does not have, or a value that it does not take.
    """

    takes_dual_clip: ClassVar[bool] = True
    takes_sequence_ratio: ClassVar[bool] = True
    shares_ratio: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.settings: Any = self.settings_class().changed(self.section, options or {})

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


class Clip(Objective):
    """PPO's pessimistic objective `min(r·A, clip(r)·A)`, at least `dual_clip·A` where the advantage is negative.

    Source: PPO, arXiv 1707.06347; dual clip, arXiv 1912.09729.
    """

    def token_objective(
        self, ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the objective, and the tokens whose gradient the clip takes away."""
        unclipped = ratio * advantages
        clipped = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high) * advantages
        objective, silenced = torch.minimum(unclipped, clipped), clipped < unclipped
        if settings.dual_clip is not None:
            floor = settings.dual_clip * advantages
            beyond = (advantages < 0) & (objective < floor)
            objective, silenced = torch.where(beyond, floor, objective), silenced | beyond
        return objective, silenced


class Cispo(Objective):
    """The clipped ratio as a constant weight on log-probs, `sg(clip(r))·A·logprob`.

    Source: CISPO, arXiv 2506.13585.
    """

    takes_dual_clip = False

    def token_objective(
        self, ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the objective, and the tokens whose weight the clip bounds."""
        ratio = ratio.detach()
        bounded = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
        return bounded * advantages * logprobs, bounded != ratio


# By the setting `training.objective`; those of layers above as "module:Class".
OBJECTIVES: Mapping[str, type[Objective] | str] = {
    "clip": Clip,
    "cispo": Cispo,
    "sapo": "algorithms.methods.sapo:Sapo",
    "dppo": "algorithms.methods.dppo:Dppo",
    "gmpo": "algorithms.methods.gmpo:Gmpo",
}


def load_objective(name: str) -> type[Objective]:
    """Return the class of a registered objective, or of a user's "module:Class".

    Raises:
        ConfigError: one line that names `training.objective`.
    """
    return load_plugin("training.objective", name, Objective, OBJECTIVES)


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    *,
    settings: LossSettings,
    lengths: Sequence[int],
    importance: torch.Tensor | None = None,
    copies: torch.Tensor | None = None,
    shaping: torch.Tensor | None = None,
    dual_clip: torch.Tensor | None = None,
    direct: torch.Tensor | None = None,
    replayed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Sum the loss of weighted tokens: minus the objective `settings.objective`, by default `-min(r·A, clip(r)·A)`.

    `r` is the token's ratio `exp(logprobs - old_logprobs)`, or with `ratio_level="sequence"` the exponential of its
    mean over the response. Gradients flow through `logprobs` alone; a ratio above exp(20) has none.

    Args:
        logprobs: float [N], log-probs under the policy being trained, response after response.
        old_logprobs: float [N], under the policy at the step's start, or as stored with a replayed response.
        advantages: float [N], of each token.
        weights: float [N], of each token in the loss (`loss_aggregation.loss_weights`).
        settings: which loss.
        lengths: tokens of each response, in order; they add up to N.
        importance: float [N], of `importance_weights`; 1 for replayed rows. None: all 1.
        copies: float [N], how many tokens each stands for in `clipped`. None: 1.
        shaping: float [N], γ of the tokens whose objective is `r / (r + γ) · A`, without a clip; 0 of all others.
        dual_clip: float [N], bound on the ratio of tokens whose advantage is negative, for objectives that take
            `training.dual_clip`; 0: none but that one.
        direct: float [N], 1 of the tokens whose objective is their own `r · A`, whatever `settings` say; 0 of others.
        replayed: bool [N], which tokens `replayed_clipped` counts. None: none.

    Returns:
        The loss, a scalar to minimize, and detached unweighted sums over the N tokens: `tokens`, `clipped` (tokens
        that the objective clipped), `ratio`, `ratio_deviation` (|r - 1|) and `kl` (k3 of the token's own ratio: the
        distance from the old policy).

    Raises:
        ValueError: the tensors, or what the objective returns, do not share one 1-D shape, or `lengths` do not add up
            to it.

    Source: Eq. 2, arXiv 2601.19620; PPO, arXiv 1707.06347; GSPO, arXiv 2507.18071; shaping: LUFFY, arXiv 2504.14945.
    """
    check_flat(logprobs, old_logprobs, advantages, weights, *([] if importance is None else [importance]))
    if sum(lengths) != len(logprobs):
        raise ValueError(f"lengths add up to {sum(lengths)}, there are {len(logprobs)} tokens")
    advantages = advantages.detach()
    token_log_ratio = logprobs - old_logprobs.detach()
    log_ratio = token_log_ratio if settings.ratio_level == "token" else over_rows(torch.mean, token_log_ratio, lengths)
    ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
    objective, clipped = settings.objective_instance.response_objective(ratio, logprobs, advantages, settings, lengths)
    if dual_clip is not None and settings.objective_instance.takes_dual_clip:
        floor = dual_clip * advantages
        beyond = (dual_clip > 0) & (advantages < 0) & (objective < floor)
        objective, clipped = torch.where(beyond, floor, objective), clipped | beyond
    if shaping is not None:
        shaped = ratio / (ratio + torch.where(shaping > 0, shaping, 1.0)) * advantages
        objective, clipped = torch.where(shaping > 0, shaped, objective), clipped & (shaping == 0)
    if direct is not None:
        own = token_log_ratio.clamp(max=MAX_LOG_RATIO).exp() * advantages
        objective, clipped = torch.where(direct > 0, own, objective), clipped & (direct == 0)
    check_flat(logprobs, objective, clipped)
    scale = weights.detach() if importance is None else weights.detach() * importance.detach()
    loss = -(scale * objective).sum()
    with torch.no_grad():
        bounded = token_log_ratio.clamp(max=MAX_LOG_RATIO)
        counted = clipped.float() if copies is None else clipped * copies
        sums = {
            "tokens": torch.tensor(float(logprobs.numel()), device=logprobs.device),
            "clipped": counted.sum(),
            "replayed_clipped": torch.zeros_like(loss) if replayed is None else (counted * replayed).sum(),
            "ratio": ratio.sum(),
            "ratio_deviation": (ratio - 1.0).abs().sum(),
            "kl": (bounded.exp() - 1.0 - bounded).sum(),
        }
    return loss, {name: value.detach() for name, value in sums.items()}


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
