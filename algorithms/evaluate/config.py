"""The configuration of `python -m algorithms.evaluate`: a training configuration's sections and one more."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from algorithms.config.schema import Settings
from algorithms.config.sections import SECTIONS, BenchmarksSettings
from algorithms.grpo.config import GRPOConfig


class EvaluateConfig(GRPOConfig):
    """What `python -m algorithms.evaluate` reads: its own section, and those of a run that say how to answer."""

    SECTIONS: ClassVar[Mapping[str, type[Settings]]] = MappingProxyType({**SECTIONS, "benchmarks": BenchmarksSettings})

    TRAINS: ClassVar[bool] = False

    benchmarks_settings: BenchmarksSettings
