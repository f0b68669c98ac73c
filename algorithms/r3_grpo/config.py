"""R3GRPOConfig: GRPO's sections and the three mechanisms of R³."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from algorithms.config.schema import Settings
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.r3_grpo.settings import SECTIONS, RankingSettings, ReflectionSettings, ReplaySettings

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm

__all__ = ["ConfigError", "R3GRPOConfig"]


class R3GRPOConfig(GRPOConfig):
    """Configuration of R³-GRPO; `docs/config.md` lists every setting.

    Example:
        `R3GRPOConfig().replay(k=1).reflection(threshold=0.25).ranking(max_reward=0.1).build_algo()`
    """

    SECTIONS: ClassVar[Mapping[str, type[Settings]]] = SECTIONS

    replay_settings: ReplaySettings
    reflection_settings: ReflectionSettings
    ranking_settings: RankingSettings

    def replay(self, **settings: Any) -> Self:
        """Set cross-context replay: section `replay`."""
        return self._set("replay", settings)

    def reflection(self, **settings: Any) -> Self:
        """Set in-context self-reflection: section `reflection`."""
        return self._set("reflection", settings)

    def ranking(self, **settings: Any) -> Self:
        """Set the structural entropy ranking reward: section `ranking`."""
        return self._set("ranking", settings)

    def check_settings(self) -> None:
        """Check what involves more than one setting, without starting or importing anything.

        Raises:
            ConfigError: settings that contradict each other.
        """
        super().check_settings()
        ranking, replay, training = self.ranking_settings, self.replay_settings, self.training_settings
        if replay.enabled and replay.std_scale != 1.0 and training.advantage != "std":
            raise ConfigError(
                f"replay.std_scale: {replay.std_scale:g} scales a standard deviation that training.advantage="
                f"{training.advantage} does not divide by; fix: replay.std_scale=1"
            )
        least = 1.0 - self.reward_settings.overlong_penalty
        if ranking.enabled and ranking.scope == "all" and ranking.max_reward >= least:
            raise ConfigError(
                f"ranking.max_reward: {ranking.max_reward:g} is not below {least:g}, the least that a correct response "
                "gets with reward.overlong_penalty; fix: lower one of them"
            )
        if ranking.baseline == "finished_wrong" and ranking.scope != "truncated":
            raise ConfigError(
                f"ranking.baseline: 'finished_wrong' compares with unranked responses, and ranking.scope="
                f"{ranking.scope} ranks them all; fix: ranking.scope=truncated or ranking.baseline=centered"
            )

    @classmethod
    def default_algo_class(cls) -> "type[Algorithm]":
        """The algorithm that is built when none was given."""
        from algorithms.r3_grpo.algorithm import R3GRPO

        return R3GRPO
