"""AdamW's kernel, its threads, and a restored step count follow from where the parameters lie."""

import copy
import os

import pytest
import torch

from algorithms.config.errors import ConfigError
from algorithms.grpo.config import GRPOConfig
from algorithms.learner.chunked_logprobs import CHUNK, default_chunk
from algorithms.learner.optimizer import LOWER_HALF, join, make_adamw, place_step_count, split, step_threads, threads
from algorithms.learner.weights import optimizer_tensors, put_optimizer_tensors
from algorithms.models.names import ModelFacts
from algorithms.preflight.memory import learner_bytes
from algorithms.train.tensor_files import read_tensors, write_tensors
from tests.own_learners import pack_optimizer

SETTINGS = {"lr": 1e-2, "weight_decay": 0.1}


def stepped(*, offload, count=3):
    """A layer after a few steps of AdamW, and the optimizer."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 32)
    optimizer = make_adamw(list(layer.parameters()), **SETTINGS, offload=offload)
    step(layer, optimizer, count)
    return layer, optimizer


def step(layer, optimizer, count):
    generator = torch.Generator().manual_seed(int(count))
    for _ in range(count):
        for parameter in layer.parameters():
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = gradient.bfloat16().to(parameter.dtype)  # the same for weights of either kind
        optimizer.step()


def test_the_fused_kernel_steps_as_the_default_one_to_rounding():
    fused, default = (stepped(offload=offload)[0] for offload in (True, False))
    for one, two in zip(fused.parameters(), default.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_on_the_cpu_only_offloaded_shards_are_stepped_by_the_fused_kernel():
    assert stepped(offload=True)[1].defaults["fused"]
    assert not stepped(offload=False)[1].defaults["fused"]


@pytest.mark.parametrize("written_by", [True, False])
@pytest.mark.parametrize("read_by", [True, False])
def test_a_restored_optimizer_steps_on_whichever_kernel_wrote_it(written_by, read_by):
    layer, optimizer = stepped(offload=written_by)
    other, restored = stepped(offload=read_by, count=0)
    other.load_state_dict(layer.state_dict())
    put_optimizer_tensors(other, restored, dict(optimizer_tensors(layer, optimizer)))
    step(layer, optimizer, 2)
    step(other, restored, 2)
    for one, two in zip(layer.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_a_step_count_lies_beside_the_parameters_of_a_fused_optimizer_and_on_the_cpu_of_others():
    _, optimizer = stepped(offload=False, count=0)
    elsewhere = torch.nn.Parameter(torch.empty(4, device="meta"))  # stands in for a GPU's
    assert place_step_count(optimizer, elsewhere, torch.tensor(3.0)).device.type == "cpu"
    optimizer.defaults["fused"] = True
    assert place_step_count(optimizer, elsewhere, torch.tensor(3.0)).device.type == "meta"


def small_layers(count=0, *, half=False, **kinds):
    """Layers of several sizes, after a few steps of AdamW, and the optimizer; weights begin as bfloat16 has them."""
    if kinds.get("eight_bit"):
        pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(100, 333), torch.nn.Linear(64, 32)).bfloat16()
    optimizer = make_adamw(list((layers if half else layers.float()).parameters()), **(SETTINGS | kinds), offload=False)
    step(layers, optimizer, count)
    return layers, optimizer


def eight_bit_layers(count=0):
    return small_layers(count, eight_bit=True)


def test_ten_steps_with_8_bit_moments_go_where_float32_ones_go():
    before, _ = eight_bit_layers()
    after, optimizer = eight_bit_layers(count=10)
    exact, _ = eight_bit_layers()
    step(exact, make_adamw(list(exact.parameters()), **SETTINGS, offload=False), 10)
    for start, one, two in zip(before.parameters(), after.parameters(), exact.parameters(), strict=True):
        away = (one - two).norm() / (two - start).norm()
        assert away < (0.02 if one.numel() >= 4096 else 1e-4)
    held = {key: value.nbytes for key, value in optimizer.state[after[0].weight].items() if torch.is_tensor(value)}
    moments = sum(held[key] for key in ("state1", "state2", "absmax1", "absmax2"))
    config = GRPOConfig().learners(moments="8bit")
    model = ModelFacts("one", "layer", after[0].weight.numel(), 1, 1, 1, None)
    assert learner_bytes(config, model)["8-bit Adam moments"] == pytest.approx(moments, abs=8)


SPLIT = {"half": True, "split_weights": True}


@pytest.mark.parametrize("eight_bit", [False, True])
def test_halves_of_weights_step_as_float32_weights_do(eight_bit):
    (layers, optimizer), (exact, _) = (small_layers(10, eight_bit=eight_bit, **kind) for kind in (SPLIT, {}))
    for half, whole in zip(layers.parameters(), exact.parameters(), strict=True):
        state = optimizer.state[half]
        assert torch.equal(join(half.detach(), state[LOWER_HALF]), whole)
        torch.testing.assert_close(half.float(), whole, rtol=2**-8, atol=0)  # the nearest, or one of the two
    config = GRPOConfig().rl_module(dtype="bfloat16").learners(weights="bfloat16")
    held = sum(p.nbytes + optimizer.state[p][LOWER_HALF].nbytes for p in layers.parameters())
    model = ModelFacts("one", "layers", sum(p.numel() for p in layers.parameters()), 1, 1, 1, None)
    parts = learner_bytes(config, model)
    assert parts["bfloat16 halves of weights"] == held and "bfloat16 copies" not in parts
    assert parts["gradients"] == held // 2


def test_a_float32_value_is_its_two_halves():
    values = torch.tensor([0.0, -0.0, 1.0, -1.00390625, 3e-42, -3.4028235e38, 0.1, torch.inf])
    upper, lower = split(values)
    assert torch.equal(join(upper, lower).view(torch.int32), values.view(torch.int32))
    assert (upper[[0, 2, 6, 7]] == values[[0, 2, 6, 7]].bfloat16()).all()


def test_steps_that_bfloat16_alone_would_lose_are_kept():
    small = {"lr": 1e-6, "weight_decay": 0.0}
    (layers, optimizer), (lost, _), (start, _) = (
        small_layers(count, **kind, **small) for count, kind in ((10, SPLIT), (10, {"half": True}), (0, {}))
    )
    half, before, same = (each[0].weight for each in (layers, start, lost))
    far = before.abs() > 0.01
    assert torch.equal(same[far], before[far].bfloat16())
    moved = (join(half.detach(), optimizer.state[half][LOWER_HALF]) - before)[far].abs()
    assert 1e-6 < moved.mean() < 1e-5 and (moved > 0).float().mean() > 0.99


@pytest.mark.parametrize("kinds", [{"eight_bit": True}, SPLIT, {**SPLIT, "eight_bit": True}])
def test_halves_and_8_bit_moments_resume_bit_for_bit_from_their_files(kinds, tmp_path):
    layers, optimizer = small_layers(3, **kinds)
    write_tensors(tmp_path, "optimizer", [pack_optimizer(layers, optimizer)])
    other, restored = small_layers(**kinds)
    other.load_state_dict(layers.state_dict())
    for tensors in read_tensors(tmp_path, "optimizer"):
        put_optimizer_tensors(other, restored, tensors)
    step(layers, optimizer, 2)
    step(other, restored, 2)
    for one, two in zip(layers.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    assert optimizer.state[layers[0].weight]["step"] == restored.state[other[0].weight]["step"] == 5
    for key in optimizer.state[layers[0].weight].keys() - {"step"}:
        assert torch.equal(optimizer.state[layers[0].weight][key], restored.state[other[0].weight][key])


@pytest.mark.parametrize("kinds", [SPLIT, {**SPLIT, "eight_bit": True}])
def test_halves_resume_bit_for_bit_from_the_state_that_rllib_keeps(kinds):
    layers, optimizer = small_layers(3, **kinds)
    other, restored = small_layers(**kinds)
    other.load_state_dict(layers.state_dict())
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(layers, optimizer, 2)
    step(other, restored, 2)
    for one, two in zip(layers.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(optimizer.state[one][LOWER_HALF], restored.state[two][LOWER_HALF])


def test_the_state_of_the_other_optimizer_is_refused():
    layers, eight_bit = eight_bit_layers(count=1)
    default = make_adamw(list(layers.parameters()), **SETTINGS, offload=False)
    step(layers, default, 1)
    for writes, reads, fix in ((eight_bit, default, "8bit"), (default, eight_bit, "float32")):
        with pytest.raises(ValueError, match=f"of another kind of moments; fix: learners.moments={fix}$"):
            put_optimizer_tensors(layers, reads, dict(optimizer_tensors(layers, writes)))
    halves = dict(optimizer_tensors(*small_layers(1, **SPLIT)))
    with pytest.raises(ValueError, match=r"half of a weight; fix: learners\.weights=bfloat16$"):
        put_optimizer_tensors(layers, default, halves)


@pytest.mark.parametrize(("name", "value"), [("moments", "8bit"), ("weights", "bfloat16")])
def test_8_bit_moments_and_halves_need_whole_weights(name, value):
    config = GRPOConfig().learners(num_learners=1, sharding="fsdp", **{name: value})
    with pytest.raises(ConfigError, match=rf"^learners\.{name}: .*; fix: learners\.{name}=float32$"):
        config.check_settings()


@pytest.mark.parametrize(("module", "fix"), [({"dtype": "float32"}, "rl_module.dtype=b.* or "), ({"lora_rank": 4}, "")])
def test_halves_are_for_a_model_that_is_trained_whole_in_bfloat16(module, fix):
    config = GRPOConfig().rl_module(**({"dtype": "bfloat16"} | module)).learners(weights="bfloat16")
    with pytest.raises(ConfigError, match=rf"^learners\.weights: .*; fix: {fix}learners\.weights=float32$"):
        config.check_settings()


@pytest.mark.gpu
def test_on_a_gpu_it_is_fused_and_reads_what_the_cpu_wrote():
    layer, optimizer = stepped(offload=False)
    other = torch.nn.Linear(64, 32).cuda()
    other.load_state_dict(layer.state_dict())
    restored = make_adamw(list(other.parameters()), **SETTINGS, offload=False)
    assert restored.defaults["fused"]
    put_optimizer_tensors(other, restored, dict(optimizer_tensors(layer, optimizer)))
    for one, two in zip(layer.parameters(), other.parameters(), strict=True):
        one.grad = torch.ones_like(one)
        two.grad = torch.ones_like(two)
    optimizer.step()
    restored.step()
    for one, two in zip(layer.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two.cpu(), rtol=1e-5, atol=1e-6)


def test_threads_of_an_offloaded_step_are_the_learners_share_of_the_machine(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    assert step_threads(None, 0) == 16
    assert step_threads(None, 4) == 4
    assert step_threads(None, 32) == 1
    assert step_threads(6, 4) == 6
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert step_threads(None, 4) == 2


def test_other_threads_count_only_for_the_step(monkeypatch):
    counts = [3]
    monkeypatch.setattr(torch, "get_num_threads", lambda: counts[-1])
    # Not torch's own: an engine of vLLM's on the CPU, once started in this process, has replaced it by nothing.
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    with pytest.raises(KeyboardInterrupt), threads(16):
        raise KeyboardInterrupt
    assert counts == [3, 16, 3]


def test_a_chunk_of_the_head_is_larger_where_its_gradient_is_read_from_a_gpus_memory():
    assert default_chunk(torch.device("cpu")) == CHUNK == 384
    assert default_chunk(torch.device("cuda")) >= 2048
