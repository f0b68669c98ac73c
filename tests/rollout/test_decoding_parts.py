"""The cache with room and grouped attention, against what transformers itself does."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from algorithms.rollout.engines.decoding import (
    NAME,
    ROOM,
    PreallocatedLayer,
    grouped_attention,
    left_padding,
    padding_blocks,
    preallocated_kv_cache,
    use_grouped_decoding,
)


def states(generator, rows, tokens):
    return torch.randn(rows, 2, tokens, 4, generator=generator)


@pytest.mark.parametrize("prompt", [1, ROOM, 3 * ROOM + 1])
def test_a_cache_with_room_holds_what_a_growing_one_holds(prompt):
    generator = torch.Generator().manual_seed(prompt)
    roomy, growing = PreallocatedLayer(), DynamicLayer()
    rows = 3
    for step in range(2 * ROOM):
        tokens = prompt if step == 0 else 1
        keys, values = states(generator, rows, tokens), states(generator, rows, tokens)
        found, expected = roomy.update(keys, values), growing.update(keys, values)
        assert roomy.get_seq_length() == growing.get_seq_length()
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        if step in (0, 5, ROOM):
            kept = torch.tensor([2, 0, 0, 1][: rows + 1])
            roomy.batch_select_indices(kept)
            growing.batch_select_indices(kept)
            rows = len(kept)


def test_a_step_copies_nothing_while_there_is_room():
    generator = torch.Generator().manual_seed(0)
    layer = PreallocatedLayer()
    layer.update(states(generator, 2, 5), states(generator, 2, 5))
    places = {
        layer.update(states(generator, 2, 1), states(generator, 2, 1))[0].untyped_storage().data_ptr()
        for _ in range(ROOM)
    }
    assert len(places) == 1


def test_sliding_windows_keep_their_own_cache():
    layers = ["full_attention", "sliding_attention"]
    config = Qwen2Config(num_hidden_layers=2, layer_types=layers, use_sliding_window=True, sliding_window=8)
    assert [type(layer) for layer in preallocated_kv_cache(config).layers] == [
        PreallocatedLayer,
        DynamicSlidingWindowLayer,
    ]


class Layer(torch.nn.Module):
    num_key_value_groups = 3
    is_causal = True


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("masked", [True, False])
def test_grouped_attention_is_that_of_transformers(tokens, masked):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(5, 6, tokens, 8, generator=generator)
    key, value = (torch.randn(5, 2, 9, 8, generator=generator) for _ in range(2))
    mask = torch.rand(5, 1, tokens, 9, generator=generator) > 0.3
    mask[..., -1] = True
    arguments = (Layer(), query, key, value, mask if masked else None)
    found, _ = grouped_attention(*arguments, scaling=0.4)
    expected, _ = sdpa_attention_forward(*arguments, scaling=0.4)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_only_a_model_that_uses_sdpa_decodes_in_groups(model_folder):
    for implementation, expected in (("sdpa", NAME), ("eager", "eager")):
        lm = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation=implementation)
        use_grouped_decoding(lm)
        assert lm.config._attn_implementation == expected


def test_padding_is_cut_off_in_blocks_of_rows_with_similar_contexts():
    assert padding_blocks([5, 4, 0]) == [(slice(0, 3), 0)]
    assert padding_blocks([100, 97, 60, 59, 0]) == [(slice(0, 2), 97), (slice(2, 4), 59), (slice(4, 5), 0)]


def test_attention_without_the_padding_is_the_same_and_never_reads_it():
    generator = torch.Generator().manual_seed(0)
    padding, keys = [90, 88, 40, 0], 120
    query = torch.randn(4, 4, 1, 8, generator=generator)
    key, value = (torch.randn(4, 2, keys, 8, generator=generator) for _ in range(2))
    mask = (torch.arange(keys)[None] >= torch.tensor(padding)[:, None])[:, None, None]
    expected, _ = grouped_attention(torch.nn.Module(), query, key, value, mask)
    cut = key.clone()
    cut[0, :, :88] = cut[2, :, :40] = torch.nan
    with left_padding(keys, padding_blocks(padding)):
        found, _ = grouped_attention(torch.nn.Module(), query, cut, value, mask)
        shorter, _ = grouped_attention(torch.nn.Module(), query, key[:, :, 60:], value[:, :, 60:], mask[..., 60:])
    torch.testing.assert_close(found, expected)
    assert shorter.isfinite().all(), "a layer with a window keeps fewer keys, and is left alone"
