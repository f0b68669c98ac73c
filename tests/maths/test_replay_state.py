import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from algorithms.history.store import ReplayHistory
from algorithms.rollout.types import Context

from .strategies import entry, repeatable, seeds

UIDS = ("a", "b", "ünïcode ∑ 🦋")

stored = st.builds(
    entry,
    uid=st.sampled_from(UIDS),
    response=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    correct=st.booleans(),
    truncated=st.booleans(),
    context=st.sampled_from([*Context, "hint"]),
    prompt=st.lists(st.integers(0, 9), max_size=4).map(tuple),
    step=st.integers(1, 99),
    text=st.text(max_size=5),
)
recorded = st.tuples(st.sampled_from(UIDS), st.booleans(), st.floats(0, 2))
histories = st.tuples(
    st.sampled_from([None, 1, 3]),
    st.booleans(),
    st.sampled_from([0, 2, 5]),
    st.lists(st.one_of(stored, recorded), max_size=25),
)


def play(history, events):
    for event in events:
        history.record(*event) if isinstance(event, tuple) else history.add(event)


def draws(history, seed):
    """Ask for everything that a training step asks for, and tell all of it."""
    rng, seen = np.random.default_rng(seed), []
    for uid in UIDS:
        seen.append((history.attempts(uid), history.mean(uid, "correct"), history.mean(uid, "reward")))
        entries = [history.sample_failure(uid, rng)]
        for correct_group in (True, False):
            entries += history.sample_opposite_outcomes(
                uid, correct_group=correct_group, k=2, contexts="any", context="plain", rng=rng
            )
        for one in entries:
            seen.append(None if one is None else (one.tokens.tobytes(), one.loss_mask.tobytes()))
            if one is not None:
                seen.append((one.uid, one.context, one.old_logprobs.tobytes(), one.reward, one.correct))
                seen.append((one.truncated, one.step, one.text))
    return seen


@repeatable
@given(histories, st.lists(st.one_of(stored, recorded), max_size=15), seeds)
def test_a_restored_history_draws_and_evolves_as_the_saved_one(history, later, seed):
    capacity, dedupe, window, events = history
    original, restored = (ReplayHistory(capacity=capacity, dedupe=dedupe, history_window=window) for _ in range(2))
    play(original, events)
    restored.add(entry("left over"))
    restored.load_state_dict(*original.state_dict())
    assert len(restored) == len(original)
    assert draws(restored, seed) == draws(original, seed)
    play(original, later)
    play(restored, later)
    assert draws(restored, seed) == draws(original, seed)


def filled():
    history = ReplayHistory(history_window=4)
    for step in range(1, 30):
        uid = UIDS[step % 3]
        history.record(uid, step % 4 == 0, step / 29)
        history.add(entry(uid, (step, step + 1), correct=step % 4 == 0, step=step, text=f"réponse {step}\n"))
    return history


@pytest.mark.parametrize("make", [filled, ReplayHistory])
def test_the_state_goes_through_npz_without_pickle_and_through_safetensors(make, tmp_path):
    history = make()
    arrays, metadata = history.state_dict()
    metadata = json.loads(json.dumps(metadata))
    np.savez(tmp_path / "replay.npz", **arrays)
    save_file(arrays, tmp_path / "replay.safetensors")
    with np.load(tmp_path / "replay.npz", allow_pickle=False) as file:
        from_npz = dict(file)
    for loaded in (from_npz, load_file(tmp_path / "replay.safetensors")):
        restored = ReplayHistory(history_window=4)
        restored.load_state_dict(loaded, metadata)
        assert draws(restored, 3) == draws(history, 3)


def test_other_settings_shrink_what_was_saved():
    small = ReplayHistory(capacity=2, history_window=1)
    small.load_state_dict(*filled().state_dict())
    assert len(small) == 2 * 2 * 3
    assert small.mean(UIDS[2], "reward") == 1.0, "the last attempt at it"
    assert small.attempts(UIDS[2]) == filled().attempts(UIDS[2])


def test_restored_entries_do_not_hold_on_to_the_saved_arrays():
    restored = ReplayHistory()
    restored.load_state_dict(*filled().state_dict())
    one = restored.sample_failure("a", np.random.default_rng(0))
    assert one is not None and one.tokens.base is None


def test_a_state_of_another_format_is_refused():
    arrays, _ = ReplayHistory().state_dict()
    with pytest.raises(ValueError, match="format"):
        ReplayHistory().load_state_dict(arrays, {"format": 0})
