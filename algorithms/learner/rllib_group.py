"""RLlib's LearnerGroup, bound to the Ray that it was made in."""

from typing import Any

import ray
from ray.rllib.core.learner.learner_group import LearnerGroup


class BoundLearnerGroup(LearnerGroup):
    """Ends its learners, where nobody has, when Python collects it, unless their Ray is gone.

    RLlib's calls Ray then in any case. Without a Ray that call starts one, at the exit of Python or within the
    `ray.init` of the next algorithm, and both hang; in another Ray it waits for learners that are not there.
    """

    def __init__(self, **arguments: Any) -> None:
        self._ray = _this_ray()
        super().__init__(**arguments)

    def __del__(self) -> None:
        if self.is_local or self._ray == _this_ray():
            super().__del__()


def _this_ray() -> tuple[str, str] | None:
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()
