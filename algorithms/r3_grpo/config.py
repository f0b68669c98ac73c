"""R3GRPOConfig: GRPO's sections and those of the three mechanisms of R³."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from algorithms.config.errors import ConfigError
from algorithms.config.schema import Settings, setting
from algorithms.config.sections import RewardSettings
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.mechanism import Mechanism
from algorithms.r3_grpo.ranking import Ranking, RankingSettings
from algorithms.r3_grpo.reflection import Reflection, ReflectionSettings
from algorithms.r3_grpo.replay import Replay, ReplaySettings

if TYPE_CHECKING:
    from algorithms.r3_grpo.algorithm import R3GRPO

__all__ = ["ConfigError", "R3GRPOConfig"]


class R3RewardSettings(RewardSettings):
    """GRPO's section, with the paper's length bonus (arXiv 2601.19620) as the default."""

    length_bonus: float = setting(1.0, "Weight of the bonus for short correct responses.", hparam=True, ge=0)


class R3GRPOConfig(GRPOConfig):
    """Configuration of R³-GRPO; `docs/reference/settings.md` lists every setting.

    Example:
        `R3GRPOConfig().env_runners(max_response_tokens=48).replay(k=1).reflection(threshold=0.25).build_algo()`
    """

    SECTIONS: ClassVar[Mapping[str, type[Settings]]] = MappingProxyType(
        {**GRPOConfig.SECTIONS, "reward": R3RewardSettings}
    )
    MECHANISMS: ClassVar[tuple[type[Mechanism], ...]] = (Replay, Reflection, Ranking)  # in the order of the sections

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

    @classmethod
    def default_algo_class(cls) -> "type[R3GRPO]":
        """Return the algorithm that is built when none was given."""
        from algorithms.r3_grpo.algorithm import R3GRPO

        return R3GRPO
