"""Adapters: what is trained, what engines and files get, and the reference of a KL term."""

import copy
from dataclasses import replace

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from algorithms.config.errors import ConfigError
from algorithms.config.machine import WITHOUT_ADAPTER
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.model import WithoutAdapter, adapted_layers, add_adapter, save_adapter_config
from algorithms.learner.weights import LearnerTensors, adapter_weights, full_weights, weights_of_files
from algorithms.models.names import resolve_model
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint
from algorithms.train.tensor_files import write_tensors
from algorithms.utils.errors import CheckpointError
from tests.own_learners import policy_state

from .jobs import Setting, model, rows

ADAPTED = Setting(lora_rank=4)
SHORT = ForwardSettings()


def logprobs(lm):
    return torch.cat([torch.from_numpy(own) for own, _ in score(lm, rows(), SHORT, entropy=False)])


def test_an_adapter_changes_nothing_until_it_is_trained_and_is_the_same_in_every_process():
    bare, first, second = model(Setting()), model(Setting()), model(Setting())
    for seed, lm in enumerate((first, second)):
        torch.manual_seed(seed)
        add_adapter(lm, rank=4, alpha=8.0)
    assert torch.equal(logprobs(first), logprobs(bare))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_only_adapters_of_the_targets_are_trained():
    lm = model(Setting())
    add_adapter(lm, rank=2, alpha=4.0, targets=["q_proj", "v_proj"])
    trained = {name for name, parameter in lm.named_parameters() if parameter.requires_grad}
    assert trained == {
        f"model.layers.{layer}.self_attn.{target}.lora_{factor}.default.weight"
        for layer in range(3)
        for target in ("q_proj", "v_proj")
        for factor in "AB"
    }


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_merged_weights_are_a_plain_model_that_computes_the_same(tied):
    lm, plain = model(replace(ADAPTED, tied=tied)), model(Setting(tied=tied))
    before = logprobs(lm)
    assert (logprobs(plain) - before).abs().max() > 0.1
    merged = dict(full_weights(lm))
    assert list(merged) == list(plain.state_dict())
    plain.load_state_dict(merged, strict=True)
    assert (logprobs(plain) - before).abs().max() < 1e-4
    assert torch.equal(logprobs(lm), before)


class Sender(LearnerTensors):
    _learner_index, sends_adapter = 0, True
    lm = property(lambda self: self.own)

    def __init__(self, lm):
        self.own = lm


def test_engines_may_get_the_adapter_alone_and_checkpoints_still_get_merged_weights():
    lm = model(ADAPTED)
    sender = Sender(lm)
    shapes = {name: tuple(tensor.shape) for name, tensor in sender.policy_tensors()}
    assert list(shapes.items()) == list(sender.policy_shapes().items())
    assert set(shapes) == {name for name, _ in adapter_weights(lm)}
    sender.open_buckets("weights", 2**40)
    saved = sender.next_bucket()
    assert all(torch.equal(saved[name], tensor) for name, tensor in full_weights(lm)) and not set(saved) & set(shapes)


def test_layers_that_keep_their_matrix_transposed_are_merged_too():
    torch.manual_seed(0)
    lm = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=16, n_layer=2, n_head=2, n_positions=32)).eval()
    plain = copy.deepcopy(lm)
    add_adapter(lm, rank=2, alpha=4.0)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
        tokens = torch.arange(9)[None]
        expected = lm(input_ids=tokens).logits
        assert not torch.allclose(plain(input_ids=tokens).logits, expected, atol=1e-2)
        plain.load_state_dict(dict(full_weights(lm)), strict=True)
        assert torch.allclose(plain(input_ids=tokens).logits, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "norm", "q"])
def test_a_target_that_cannot_be_merged_is_one_line(config, target):
    with pytest.raises(ConfigError) as error:
        config.rl_module(lora_rank=4, lora_targets=["v_proj", target]).build_algo()
    assert str(error.value) == (
        f"rl_module.lora_targets: {target!r} is not a linear layer of the model, the head left out; "
        "there are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
    )


def test_without_its_adapter_a_model_is_its_base_and_with_it_what_it_was():
    lm = model(ADAPTED)
    before = logprobs(lm)
    bare = WithoutAdapter(lm)
    tokens = torch.arange(7)[None]
    with torch.no_grad():
        hidden = bare.get_decoder()(input_ids=tokens).last_hidden_state
        expected = model(Setting()).get_decoder()(input_ids=tokens).last_hidden_state
    assert torch.equal(hidden, expected)
    assert torch.equal(logprobs(lm), before)
    assert all(parameter.requires_grad == ("lora_" in name) for name, parameter in lm.named_parameters())


def test_peft_loads_the_adapters_files(tmp_path):
    lm = model(ADAPTED)
    write_tensors(tmp_path, "adapter_model", [dict(adapter_weights(lm))])
    save_adapter_config(tmp_path, model="somewhere", revision=None, rank=4, alpha=8.0, targets=[])
    loaded = peft.PeftModel.from_pretrained(model(Setting()), tmp_path)
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        assert torch.allclose(loaded(input_ids=tokens).logits, lm(input_ids=tokens).logits, atol=1e-6)


@pytest.mark.parametrize("base", ["dtype", "nf4"])
def test_a_run_with_an_adapter_is_sampled_from_saved_and_resumed(config, build, tmp_path, base):
    config = config.rl_module(lora_rank=4, lora_alpha=8, lora_base=base).training(beta=0.05, lr=1e-2)
    whole = build(config.copy())
    for _ in range(2):
        whole.train()
    assert whole.batch.record["policy/logp_mismatch_max"] < 1e-3
    assert whole.batch.record["policy/kl"] > 0
    saved = save_checkpoint(whole, tmp_path)
    weights = policy_state(whole.learner_group)[1]["default_policy"]
    base = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:tiny"), dtype=torch.float32).state_dict()
    assert any(not torch.equal(weights[name], base[name]) for name in base)

    plain = AutoModelForCausalLM.from_pretrained(saved / "model", dtype=torch.float32)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in plain.state_dict().items())
    assert all("lora_" in name for name in load_file(saved / "optimizer.safetensors"))

    whole.train()
    resumed = build(config.copy())
    load_checkpoint(resumed, saved)
    resumed.train()
    after = policy_state(resumed.learner_group)[1]["default_policy"]
    expected = policy_state(whole.learner_group)[1]["default_policy"]
    assert all(torch.equal(after[name], expected[name]) for name in expected)

    without = build(config.copy().rl_module(**WITHOUT_ADAPTER))
    with pytest.raises(CheckpointError, match="holds an adapter"):
        load_checkpoint(without, saved)


def test_a_frozen_base_is_held_in_the_compute_dtype_and_its_adapter_in_float32(config, build):
    algorithm = build(config.rl_module(lora_rank=4, dtype="bfloat16"))
    types = {
        ("adapter" if "lora_" in name else "base", str(parameter.dtype))
        for name, parameter in algorithm.learner_group._learner.lm.named_parameters()
    }
    assert types == {("base", "torch.bfloat16"), ("adapter", "torch.float32")}
    lm = algorithm.learner_group._learner.lm
    merged = {f"{name}.weight" for name in adapted_layers(lm)}
    # On the way to engines only what is merged takes more memory than the model itself.
    assert {name for name, tensor in full_weights(lm) if tensor.dtype == torch.float32} == merged
    assert {tensor.dtype for _, tensor in weights_of_files(lm)} == {torch.float32}
    algorithm.train()
    assert algorithm.batch.record["policy/grad_norm"] > 0
