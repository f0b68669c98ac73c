"""Wrong settings of learners are one line that names the key and the fix."""

import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo.config import GRPOConfig


@pytest.mark.parametrize(
    ("section", "values", "line"),
    [
        (
            "learners",
            {"sharding": "fsdp"},
            "learners.sharding: 'fsdp' shards over learner actors, and learners.num_learners is 0; "
            "fix: learners.num_learners=1, or more",
        ),
        (
            "learners",
            {"offload": True, "num_learners": 2},
            "learners.offload: needs shards to offload, and learners.sharding is 'none'; fix: learners.sharding=fsdp",
        ),
        (
            "learners",
            {"sharding": "fsdp2"},
            "learners.sharding: 'fsdp2' is not one of none, fsdp; did you mean fsdp?",
        ),
        (
            "rl_module",
            {"lora_targets": ["q_proj"]},
            "rl_module.lora_targets: has no effect without an adapter; fix: rl_module.lora_rank=16, or no targets",
        ),
    ],
)
def test_a_contradiction_is_one_line(section, values, line):
    with pytest.raises(ConfigError) as error:
        getattr(GRPOConfig(), section)(**values).check_settings()
    assert str(error.value) == line
