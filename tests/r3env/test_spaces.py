"""The space of all strings."""

import pickle

import pytest
from gymnasium.spaces import Text
from hypothesis import given
from hypothesis import strategies as st

from r3env.spaces import UnicodeText


@given(st.text())
def test_holds_any_string(text: str) -> None:
    assert text in UnicodeText()


@pytest.mark.parametrize("text", ["", "\U0001f600", "\ud800", "ناقص ٣", "a" * 100_000])
def test_holds_strings_that_gymnasium_text_does_not(text: str) -> None:
    assert UnicodeText().contains(text)


@pytest.mark.parametrize("other", [None, 3, b"bytes", ["text"]])
def test_holds_nothing_but_strings(other: object) -> None:
    assert other not in UnicodeText()


def test_samples_follow_the_seed() -> None:
    def samples(seed: int) -> list[str]:
        space = UnicodeText(seed=seed)
        return [space.sample() for _ in range(20)]

    assert samples(1) == samples(1)
    assert samples(1) != samples(2)


def test_samples_range_over_unicode_and_can_be_encoded() -> None:
    space = UnicodeText(sample_length=50, seed=0)
    samples = [space.sample() for _ in range(100)]
    characters = "".join(samples)
    assert all(sample in space and len(sample) <= 50 for sample in samples)
    assert characters.encode("utf-8").decode("utf-8") == characters
    assert any(ord(character) < 0x10000 for character in characters)
    assert any(ord(character) > 0x10000 for character in characters)


def test_equality_repr_and_pickling() -> None:
    space = UnicodeText(sample_length=7, seed=3)
    assert repr(space) == "UnicodeText(sample_length=7)"
    assert pickle.loads(pickle.dumps(space)) == space == UnicodeText(sample_length=7)
    assert space != UnicodeText(sample_length=8)
    assert space != Text(7)
    assert isinstance(space, Text)
    assert not space.is_np_flattenable


def test_masks_and_negative_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="without mask"):
        UnicodeText().sample(mask=(3, None))
    with pytest.raises(ValueError, match="sample_length"):
        UnicodeText(sample_length=-1)
