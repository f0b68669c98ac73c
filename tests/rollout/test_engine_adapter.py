"""A vLLM engine that gets the adapter alone: the learner's distribution, for a twentieth of the bytes."""

import copy

import pytest
import torch

from algorithms.learner.model import add_adapter
from algorithms.learner.weights import adapter_shapes, adapter_weights, full_weights
from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.engines.vllm_start import EngineDidNotStart
from algorithms.rollout.weight_sync.serialization import NO_VERSION, TensorsAtHand

from .conftest import VLLM_OPTIONS
from .test_vllm_engine import largest_gap, requests_of

pytestmark = pytest.mark.vllm
ADAPTER = {"rank": 4, "alpha": 8.0, "targets": []}


@pytest.fixture
def adapted(policy):
    lm = copy.deepcopy(policy)
    add_adapter(lm, **ADAPTER)
    return lm


def disturb(lm):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if ".lora_" in name:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def test_new_adapters_are_in_force_at_once_and_the_model_stays(model_folder, end_tokens, policy, adapted, prompts):
    engine = make_engine(
        "vllm",
        model=model_folder,
        dtype="float32",
        max_num_seqs=16,
        eos_token_ids=end_tokens,
        options=VLLM_OPTIONS,
        adapter=ADAPTER,
    )
    try:
        check_updates(engine, policy, adapted, requests_of(prompts))
        check_that_no_layer_is_left_out(engine, adapted)
    finally:
        engine.close()


def check_updates(engine, policy, adapted, requests):
    assert largest_gap(policy, requests, engine.generate(requests)) < 1e-3
    for version in (3, 4):
        disturb(adapted)
        assert largest_gap(adapted, requests, engine.generate(requests)) > 0.1
        engine.load_weights(TensorsAtHand(adapter_shapes(adapted), adapter_weights(adapted)), version)
        completions = engine.generate(requests)
        assert largest_gap(adapted, requests, completions) < 1e-3
        assert engine.weights_version == version
        assert {span[0] for completion in completions for span in completion.versions} == {version}
    with pytest.raises(RuntimeError, match="missing, unknown"):
        engine.load_weights(policy.state_dict(), 5)
    assert engine.weights_version == 4

    # An update while responses are running: those continue, with the new adapter.
    for key, request in enumerate(requests):
        engine.submit(key, request)
    engine.step()
    disturb(adapted)
    engine.start_weights(adapter_shapes(adapted))
    assert engine.weights_version == NO_VERSION
    engine.add_weights({"tensors": list(adapter_weights(adapted))})
    engine.finish_weights(6)
    completions = {}
    while engine.unfinished:
        completions.update(engine.step())
    assert {span[0] for completion in completions.values() for span in completion.versions} == {4, 6}
    assert largest_gap(adapted, requests, engine.generate(requests)) < 1e-3

    sent, whole = (sum(tensor.nbytes for _, tensor in send(adapted)) for send in (adapter_weights, full_weights))
    assert (sent, whole) == (155_648, 3_455_488)


def check_that_no_layer_is_left_out(engine, adapted):
    # vLLM fuses q, k and v; without a place for them it ignores their adapters, and says nothing.
    manager = engine.llm.llm_engine.model_executor.driver_worker.model_runner.lora_manager._adapter_manager
    del manager.modules["model.layers.0.self_attn.qkv_proj"]
    line = (
        r"^env_runners.lora_weights: vLLM leaves 3 layers .*, such as model.layers.0.self_attn.k_proj; fix: "
        r"env_runners.lora_weights=merged, or rl_module.lora_targets without them$"
    )
    with pytest.raises(EngineDidNotStart, match=line):
        engine.load_weights(TensorsAtHand(adapter_shapes(adapted), adapter_weights(adapted)), 7)
