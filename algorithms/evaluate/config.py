"""The configuration of `python -m algorithms.evaluate`: a training configuration's sections and one more."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from algorithms.configuration.schema import Settings, setting
from algorithms.configuration.settings import SECTIONS, Count
from algorithms.grpo.config import GRPOConfig


class BenchmarksSettings(Settings):
    """What is asked, and what is told of the answers."""

    data: dict[str, str] = setting(
        {}, "Problems by a name of yours, each named like `environment.data`: `{aime24: preset:aime24}`."
    )
    columns: dict[str, str] = setting({}, "Columns of the problems where no preset knows them; the same for all data.")
    limits: list[Count] = setting(
        [], "Response limits in tokens to tell pass@k for as well: answers that are longer count as cut off there."
    )
    hard_for: str | None = setting(
        None, "Folder of an earlier evaluation: only problems that were (nearly) never solved in it are asked."
    )
    solved_at_most: int = setting(1, "How many right answers a problem of `hard_for` may have had.", ge=0)


class EvaluateConfig(GRPOConfig):
    """What `python -m algorithms.evaluate` reads: its own section, and those of a run that say how to answer."""

    SECTIONS: ClassVar[Mapping[str, type[Settings]]] = MappingProxyType({**SECTIONS, "benchmarks": BenchmarksSettings})

    benchmarks_settings: BenchmarksSettings
