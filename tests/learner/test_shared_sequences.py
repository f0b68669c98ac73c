"""Attention of segments behind shared contexts, in rectangles and by a GPU's kernel, against one dense mask."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from algorithms.learner import kernels
from algorithms.learner.kernels import attend
from algorithms.learner.shared_sequences import Copies, SharedSequences

CPU = torch.device("cpu")
# A prefix with continuations of unlike length, one of which has none; a lone sequence; contexts of similar length,
# which share rectangles; and blocks of queries.
GROUPS = ((40, (1, 9, 30, 17)), (7, (0, 5)), (33, (17, 30, 9, 1)), (37, (12, 6)), (90, (600, 31, 580)))
WINDOWS = [None, 12, 300, 5000]


def sources(groups):
    """Position of each token, and the tokens that it may attend to as far as positions allow: bool [T, T]."""
    positions, seen, at = [], [], 0
    total = sum(prefix + sum(lengths) for prefix, lengths in groups)
    for prefix, lengths in groups:
        start = at
        for begin, length in [(0, prefix), *((prefix, length) for length in lengths)]:
            row = torch.zeros(total, dtype=torch.bool)
            row[start : start + prefix] = True
            row[at : at + length] = True
            seen += [row] * length
            positions += range(begin, begin + length)
            at += length
    return torch.tensor(positions), torch.stack(seen)


def dense(query, key, value, groups, window):
    """Attention by the definition: [T, T] scores."""
    positions, seen = sources(groups)
    mask = seen & (positions[None] <= positions[:, None])
    if window:
        mask &= positions[None] > positions[:, None] - window
    heads = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(heads, 1).transpose(0, 1) for t in (key, value))
    scores = query.transpose(0, 1) @ key.transpose(1, 2) * query.shape[2] ** -0.5
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value).transpose(0, 1)


def variable_length(query, key, value, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False):
    """What torch's variable-length kernel computes on a GPU: causal from the lower right corner."""
    assert window_size[1] == 0 and query.shape[1] == key.shape[1] * 2 and enable_gqa
    assert (cu_q.dtype, cu_k.dtype) == (torch.int32, torch.int32)
    assert (max_q, max_k) == (int(cu_q.diff().max()), int(cu_k.diff().max()))
    outputs = []
    for a, b, c, d in zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:], strict=True):
        row, column = torch.arange(b - a)[:, None] + (d - c) - (b - a), torch.arange(d - c)[None]
        mask = (column <= row) & ((column >= row - window_size[0]) | (window_size[0] < 0))
        parts = [t.transpose(0, 1)[None] for t in (query[a:b], key[c:d], value[c:d])]
        out = functional.scaled_dot_product_attention(*parts, attn_mask=mask, scale=scale, enable_gqa=True)
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    total = sum(prefix + sum(lengths) for prefix, lengths in GROUPS)
    return [torch.randn(total, heads, 16, generator=generator, dtype=torch.float64) for heads in (4, 2, 2, 4)]


def result_and_gradients(function, tensors):
    given = [tensor.clone().requires_grad_() for tensor in tensors[:3]]
    out = function(*given)
    out.backward(tensors[3])
    return [out.detach(), *(tensor.grad for tensor in given)]


@pytest.mark.parametrize("kernel", ["rectangles", "variable length"])
@pytest.mark.parametrize("window", WINDOWS)
def test_each_segment_attends_to_its_context_and_causally_to_itself(tensors, window, kernel, monkeypatch):
    if kernel == "variable length":
        monkeypatch.setattr(kernels, "_flash_supports", lambda query: True)
        monkeypatch.setattr(kernels, "_VARLEN", variable_length)
        monkeypatch.setattr(kernels, "_VARLEN_HAS_GQA_FLAG", True)
    sequences = SharedSequences(GROUPS, CPU)
    found = result_and_gradients(lambda q, k, v: attend(q, k, v, sequences, window=window), tensors)
    expected = result_and_gradients(lambda q, k, v: dense(q, k, v, GROUPS, window), tensors)
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).abs().max()) < 1e-12


@pytest.mark.parametrize("seed", range(40))
def test_layouts_of_all_kinds_agree_with_the_dense_mask(seed):
    """Such as a rectangle whose contexts are all alike, in a bucket that has longer ones."""
    rng = np.random.default_rng(seed)
    groups = [(int(rng.integers(15, 26)), tuple(rng.integers(1, 33, 4))) for _ in range(rng.integers(4, 8))]
    window = [None, 9, 45][seed % 3]
    generator = torch.Generator().manual_seed(seed)
    sequences = SharedSequences(tuple(groups), CPU)
    shapes = [(sequences.tokens, heads, 8) for heads in (4, 2, 2, 4)]
    tensors = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    found = result_and_gradients(lambda q, k, v: attend(q, k, v, sequences, window=window), tensors)
    expected = result_and_gradients(lambda q, k, v: dense(q, k, v, groups, window), tensors)
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).abs().max()) < 1e-12


def test_what_a_prefix_gives_its_continuations_is_copied_for_the_kernel_alone():
    sequences = SharedSequences(((4, (2, 3)), (3, (0, 2))), CPU)
    assert [(s.start, s.length, s.context, s.context_length) for s in sequences.segments] == [
        (0, 4, 0, 0),
        (4, 2, 0, 4),
        (6, 3, 0, 4),
        (9, 5, 9, 0),  # one continuation: a sequence as any other
    ]
    assert sequences.positions.tolist() == [[0, 1, 2, 3, 4, 5, 4, 5, 6, 0, 1, 2, 3, 4]]
    assert sequences.query_offsets.tolist() == [0, 4, 6, 9, 14]
    assert sequences.key_offsets.tolist() == [0, 4, 10, 17, 22]
    keys = [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 6, 7, 8], [9, 10, 11, 12, 13]]
    assert sequences.keys.source.tolist() == sum(keys, [])


def test_rectangles_hold_each_segment_once_and_mix_contexts_only_while_masks_are_small():
    groups = tuple((length, (20, 25, 22)) for length in range(30, 40)) + ((2000, (900, 800)), (1900, (900, 850)))
    sequences = SharedSequences(groups, CPU)
    held = [segment for rectangle in sequences.rectangles for segment in rectangle.segments]
    assert sorted(held, key=lambda s: s.start) == list(sequences.segments)
    mixed = [rectangle for rectangle in sequences.rectangles if len(rectangle.contexts) > 1]
    assert len(mixed) == 1 and len(mixed[0].segments) == 30
    tokens = torch.arange(sequences.tokens)
    assert torch.equal(sequences.token_of_slot[sequences.slot_of_token], tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tokens_copies_add_up_in_float32_and_always_in_one_order(dtype):
    rng = np.random.default_rng(0)
    source = torch.from_numpy(rng.integers(0, 20, 400)) * 2  # half of the tokens have no copy
    padding = torch.from_numpy(rng.random(400) < 0.1)
    copies = Copies(40, source, padding, CPU)
    values = torch.randn(40, 3, dtype=dtype).requires_grad_()
    upstream = torch.randn(400, 3, dtype=dtype) * ~padding[:, None]
    copied = copies.copy(values)
    assert torch.equal(copied, values[source])
    copied.backward(upstream)
    exact = torch.zeros(40, 3, dtype=torch.float64).index_add_(0, source, upstream.double())
    # One rounding to the type of the gradient, not one an addition.
    assert torch.allclose(values.grad.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)
    first, values.grad = values.grad, None
    copies.copy(values).backward(upstream)
    assert torch.equal(first, values.grad)


@pytest.mark.gpu
@pytest.mark.parametrize("window", WINDOWS)
def test_the_gpus_kernel_agrees_with_rectangles(window):
    sequences = SharedSequences(GROUPS, torch.device("cuda"))
    generator = torch.Generator("cuda").manual_seed(0)
    tensors = [torch.randn(sequences.tokens, heads, 64, device="cuda", generator=generator) for heads in (6, 2, 2, 6)]

    def run(dtype):
        def function(*given):
            return attend(*(tensor.to(dtype) for tensor in given), sequences, window=window).float()

        return result_and_gradients(function, tensors)

    for low, exact in zip(run(torch.bfloat16), run(torch.float32), strict=True):
        assert float((low - exact).norm() / exact.norm()) < 0.02
