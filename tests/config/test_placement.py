"""What shares a GPU with what, which way weights take, and the line of every layout that cannot work."""

import pytest

from algorithms.config.consistency import check_rules
from algorithms.config.placement import Placement, placement, transfer_kind
from algorithms.grpo.config import ConfigError, GRPOConfig


def layout(runners=(0, 0.0), learners=(0, 0.0), engine="vllm", utilization=0.45, **more):
    config = GRPOConfig().learners(num_learners=learners[0], num_gpus_per_learner=learners[1])
    return config.env_runners(
        num_env_runners=runners[0],
        num_gpus_per_env_runner=runners[1],
        engine=engine,
        gpu_memory_utilization=utilization,
        **more,
    )


PAIRS = ((8, 0.51), (8, 0.49))
OWN = ((4, 1.0), (4, 1.0))


@pytest.mark.parametrize(
    ("runners", "learners", "where", "kind"),
    [
        ((0, 0.0), (0, 0.0), Placement.ONE_PROCESS, "in_process"),
        ((0, 0.0), (0, 1.0), Placement.ONE_PROCESS, "in_process"),
        (*PAIRS, Placement.SHARED_GPUS, "ipc"),
        (*OWN, Placement.OWN_GPUS, "nccl"),
        ((4, 2.0), (8, 1.0), Placement.OWN_GPUS, "nccl"),
        ((2, 0.0), (2, 0.0), Placement.OTHER, "object_store"),
        ((2, 1.0), (0, 1.0), Placement.OTHER, "object_store"),
        ((0, 0.0), (2, 1.0), Placement.OTHER, "object_store"),
        ((4, 0.5), (4, 0.5), Placement.OTHER, "object_store"),
        ((4, 0.51), (2, 0.49), Placement.OTHER, "object_store"),
    ],
)
def test_auto_takes_the_best_way_for_the_placement(runners, learners, where, kind):
    config = layout(runners, learners)
    assert placement(config) == where
    assert transfer_kind(config) == kind
    assert transfer_kind(config.env_runners(weight_transfer="object_store")) == "object_store"


@pytest.mark.parametrize("where", [PAIRS, OWN])
def test_the_embedded_engine_takes_weights_from_the_object_store(where):
    assert transfer_kind(layout(*where, engine="transformers")) == "object_store"


@pytest.mark.parametrize("where", [PAIRS, OWN])
def test_an_adapter_alone_travels_through_the_object_store_where_weights_would_go_between_gpus(where):
    config = layout(*where, lora_weights="adapter").rl_module(lora_rank=8)
    assert transfer_kind(config) == "object_store"
    with pytest.raises(ConfigError, match=r"^env_runners\.weight_transfer: .* fix: env_runners\.weight_transfer=auto$"):
        transfer_kind(config.env_runners(weight_transfer="ipc" if where is PAIRS else "nccl"))


@pytest.mark.parametrize(
    ("rank", "engine", "fix"),
    [
        (0, "vllm", "rl_module.lora_rank=16, or env_runners.lora_weights=merged"),
        (8, "transformers", "env_runners.lora_weights=merged"),
        (1024, "vllm", "env_runners.lora_weights=merged"),
    ],
)
def test_an_adapter_alone_needs_an_adapter_and_an_engine_that_takes_one(rank, engine, fix):
    config = layout(engine=engine, lora_weights="adapter").rl_module(lora_rank=rank)
    with pytest.raises(ConfigError, match=f"^env_runners.lora_weights: .*; fix: {fix}$"):
        config.check_settings()


def test_an_adapter_alone_is_computed_in_16_bits_on_a_gpu():
    config = layout(*OWN, lora_weights="adapter", dtype="float32").rl_module(lora_rank=8)
    with pytest.raises(ConfigError, match="^env_runners.dtype: .*=bfloat16, or env_runners.lora_weights=merged$"):
        check_rules(config)


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            layout(*OWN, weight_transfer="ipc"),
            "env_runners.weight_transfer: ipc needs vLLM engines and learners in pairs, each pair on one GPU (shares "
            "such as 0.51 and 0.49, as many env runners as learners); fix: env_runners.weight_transfer=auto",
        ),
        (
            layout(*PAIRS, spares=2),
            "env_runners.spares: 2, and every engine shares its GPU with a learner, which a spare does not have; "
            "fix: env_runners.spares=0",
        ),
        (
            layout(engine="transformers", spares=1),
            "env_runners.spares: 1, and the only engine is in the driver's process, where no spare can replace it; "
            "fix: env_runners.num_env_runners=1, or env_runners.spares=0",
        ),
        (
            layout(*PAIRS, weight_transfer="nccl"),
            "env_runners.weight_transfer: nccl needs vLLM engines and learners in actors, on separate whole GPUs; "
            "fix: env_runners.weight_transfer=auto",
        ),
        (
            layout(*OWN, engine="transformers", weight_transfer="nccl"),
            "env_runners.weight_transfer: nccl needs vLLM engines and learners in actors, on separate whole GPUs; "
            "fix: env_runners.weight_transfer=auto",
        ),
        (
            layout((2, 1.5), (2, 1.0)),
            "env_runners.num_gpus_per_env_runner: 1.5: Ray gives whole GPUs, or a part of one; "
            "fix: env_runners.num_gpus_per_env_runner=2",
        ),
        (
            layout((2, 1.0), (2, 2.5)),
            "learners.num_gpus_per_learner: 2.5: Ray gives whole GPUs, or a part of one; "
            "fix: learners.num_gpus_per_learner=3",
        ),
        (
            layout(engine="transformers", sleep_while_training=True),
            "env_runners.sleep_while_training: the engine transformers cannot sleep; fix: env_runners.engine=vllm",
        ),
        (
            layout((4, 0.5), (4, 0.5), sleep_while_training=True),
            "env_runners.sleep_while_training: 4 env runners of 0.5 and 4 learners of 0.5 GPUs do not pair up, one of "
            "each on a GPU; fix: as many env runners as learners, num_gpus_per_env_runner=0.51 and "
            "num_gpus_per_learner=0.49",
        ),
        (
            layout((1, 1.0), (0, 1.0)),
            "learners.num_learners: is 0, so the learner computes in the driver, on GPU 0, which Ray gives to an "
            "engine as well; fix: learners.num_learners=1, and for both on one GPU "
            "env_runners.num_gpus_per_env_runner=0.51 learners.num_gpus_per_learner=0.49",
        ),
        (
            layout((0, 0.0), (1, 1.0)),
            "env_runners.num_env_runners: is 0, so the engine computes in the driver, on GPU 0, which Ray gives to a "
            "learner as well; fix: env_runners.num_env_runners=1, and for both on one GPU "
            "env_runners.num_gpus_per_env_runner=0.51 learners.num_gpus_per_learner=0.49",
        ),
        (
            layout((1, 0.0), (2, 0.5), engine="transformers"),
            "learners.num_gpus_per_learner: 0.5: Ray puts two learners on one GPU, where NCCL does not join them; fix: "
            "learners.num_gpus_per_learner=1, or an engine beside each, as in configs/deepscaler_r1_1p5b_shared.yaml",
        ),
        (
            layout((2, 0.3), (1, 0.4), utilization=None),
            "env_runners.gpu_memory_utilization: is not set, and vLLM would take nearly all of a GPU that a "
            "learner needs too; fix: env_runners.gpu_memory_utilization=0.45",
        ),
    ],
)
def test_a_layout_that_cannot_work_is_one_line(config, line):
    with pytest.raises(ConfigError) as caught:
        config.check_settings()
    assert str(caught.value) == line


@pytest.mark.parametrize("where", [PAIRS, OWN, ((0, 0.0), (0, 1.0)), ((2, 0.0), (2, 0.0)), ((3, 0.3), (1, 1.0))])
def test_layouts_that_work_are_accepted(where):
    config = layout(*where)
    config.check_settings()
    config.get_evaluation_config_object().check_settings()  # RLlib's own, of runners that are never made
