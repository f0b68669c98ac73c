"""The three mechanisms of R³-GRPO (arXiv 2601.19620), each with its own section. Imports no Ray."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from algorithms.config.schema import Settings, setting
from algorithms.config.sections import SECTIONS as GRPO_SECTIONS


class ReplaySettings(Settings):
    """Cross-context replay (CCR): a group all right or all wrong gets the opposite outcome from history."""

    enabled: bool = setting(True, "Whether to replay.")
    k: int = setting(1, "Samples that are added to a homogeneous group at most.", ge=0)
    capacity: int | None = setting(
        8, "Correct responses, and as many wrong ones, that are kept per query, the newest; null: all.", ge=1
    )
    contexts: Literal["same", "any"] = setting(
        "same",
        "Whether a group draws on entries of its own context only (plain or reflection) or on any of the "
        "query, each under its own prompt (the paper).",
    )
    dedupe: bool = setting(True, "Whether a response that is stored already is stored again (false) or not (true).")
    ratio: Literal["stored", "recomputed"] = setting(
        "stored",
        "Behavior log-probs of replayed tokens: those of when they were sampled, or of this step's policy.",
    )
    std_scale: float = setting(1.0, "Factor on the standard deviation of a mixed group (α of Eq. 3).", gt=0)
    scale_rows: Literal["all", "replayed"] = setting(
        "all", "Which rows of a mixed group `std_scale` applies to: all (Eq. 3) or the replayed ones."
    )


class ReflectionSettings(Settings):
    """In-context self-reflection (ISR): a hard query is also asked after one of its failed attempts."""

    enabled: bool = setting(True, "Whether to add reflection prompts.")
    threshold: float = setting(0.25, "A query is hard when the mean of its history is below this (τ).", ge=0)
    statistic: Literal["correct", "reward"] = setting(
        "correct",
        "What the history's mean is taken of: correctness, or the reward with its length bonus (the paper).",
    )
    min_attempts: int | None = setting(
        None,
        "Past attempts that a query needs before it can count as hard; null: `training.group_size`.",
        ge=1,
    )
    max_share: float = setting(
        0.25, "Share of a step's prompts that may be reflection prompts; 1: no limit.", ge=0, le=1
    )
    max_attempt_tokens: int | None = setting(
        2048,
        "Length that a quoted attempt is cut to, head and tail kept; null: cut only at the context limit.",
        ge=2,
    )
    history_window: int | None = setting(
        None,
        "Newest plain attempts that the mean is taken over; null: 4 × `training.group_size`; 0: all.",
        ge=0,
    )
    adaptive: bool = setting(
        True,
        "Whether reflection prompts are cut down to one a step while reflected answers are right no more often than "
        "plain ones to the same queries, over the newest 32 reflection groups.",
    )
    distill: bool = setting(
        True, "Whether a correct reflected answer also enters the history as an answer to the bare query."
    )


class RankingSettings(Settings):
    """Structural entropy ranking reward (SERR): an order among responses of a group without a correct one."""

    enabled: bool = setting(True, "Whether to rank.")
    top_fraction: float = setting(0.2, "Share of a response's tokens that its entropy peak is the mean of.", gt=0, le=1)
    max_reward: float = setting(
        0.1, "Reward of the best rank; below 1, the smallest reward of a correct response.", ge=0, lt=1
    )
    scope: Literal["truncated", "all"] = setting("truncated", "Which responses of an all-wrong group are ranked.")
    baseline: Literal["finished_wrong", "centered", "paper"] = setting(
        "finished_wrong",
        "Whether the ranked rewards are shifted so that no truncated response is worth more than a finished "
        "wrong one, shifted to a mean of 0, or as in the paper.",
    )
    std_floor: float = setting(
        0.5,
        "Least standard deviation that advantages of a group without a correct response are divided by.",
        ge=0,
    )


SECTIONS: Mapping[str, type[Settings]] = MappingProxyType(
    {**GRPO_SECTIONS, "replay": ReplaySettings, "reflection": ReflectionSettings, "ranking": RankingSettings}
)
