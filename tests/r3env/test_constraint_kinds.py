"""Each kind of constraint: texts that meet it, and near misses."""

import json
import random

import pytest

from r3env.constraints.generation import write_text
from r3env.constraints.kind import KINDS, SPLITS
from r3env.constraints.reading import forms, paragraphs, sentences, words
from r3env.constraints.requirements import Requirements

# Of each kind: its parameters, texts that meet it, near misses.
CASES = {
    "lowercase": ({}, ["bees buzz. they hum 3 songs."], ["bees buzz. They hum."]),
    "uppercase": ({}, ["BEES BUZZ. 3 SONGS!"], ["BEES BUzZ."]),
    "capitalized_words": ({}, ["Bees Hum, And 3 Birds Sing."], ["Bees Hum and Sing.", "Bees hum."]),
    "capital_words": ({"n": 2}, ["BEES hum LOUD songs.", "I like BIG BEES."], ["BEES hum.", "BIG BEES HUM."]),
    "no_commas": ({}, ["Bees hum; birds sing."], ["Bees hum, birds sing."]),
    "commas": ({"n": 2}, ["Bees, birds, cats."], ["Bees, birds.", "Bees, birds, cats, dogs."]),
    "no_periods": ({}, ["Bees hum! Do they?"], ["Bees hum.", "Bees cost 3.5 coins!"]),
    "exclamations": (
        {},
        ["Bees hum! Birds sing!", '"Bees hum!"'],
        ["Bees hum! Birds sing.", "Bees hum! Birds", "Bees?"],
    ),
    "questions": ({"n": 2}, ["Bees? Do they hum? Yes."], ["Bees?", "Bees? Birds? Cats?"]),
    "quoted": ({}, ['"Bees hum."', "“Bees hum.”"], ['"Bees hum.', "'Bees hum.'", 'He says "bees".', '""']),
    "parentheses": (
        {"n": 2},
        ["Bees (small) hum (soft songs)."],
        ["Bees (small) hum.", "Bees (small hum (soft).", "Bees () hum (soft).", "Bees ((small) (big))."],
    ),
    "sentence_count": (
        {"n": 3},
        ["Bees hum. Birds sing! Do cats?", "- Bees hum\n- Birds sing\n- Cats", "A 3.5 is one. Two. Three…"],
        ["Bees hum. Birds sing.", "Bees. Birds. Cats. Dogs.", "Bees hum, birds sing, cats."],
    ),
    "short_sentences": ({"n": 6}, ["One two three four five six. One two."], ["One two three four five six seven."]),
    "bullets": (
        {"n": 2},
        ["- Bees\n- Birds", "- Bees\n\n- Birds\n"],
        [
            "- Bees",
            "- Bees\n- Birds\n- Cats",
            "Here:\n- Bees\n- Birds",
            "* Bees\n* Birds",
            "-Bees\n-Birds",
            "- \n- Birds",
        ],
    ),
    "numbered": (
        {"n": 2},
        ["1. Bees\n2. Birds"],
        ["1. Bees", "1. Bees\n3. Birds", "1) Bees\n2) Birds", "1. Bees\n2. Birds\n3. Cats", "List:\n1. Bees\n2. Birds"],
    ),
    "paragraph_count": ({"n": 2}, ["Bees hum.\n\nBirds.", "A\nB\n \nC"], ["Bees.\nBirds.", "A\n\nB\n\nC"]),
    "line_count": ({"n": 2}, ["Bees\nBirds", "Bees\n\nBirds"], ["Bees birds", "A\nB\nC"]),
    "title": (
        {},
        ["# Bees\nThey hum."],
        ["# Bees\n---", "Bees\nThey hum.", "# Bees", "#Bees\nThey hum.", "They hum.\n# Bees", "# \nBees"],
    ),
    "as_json": (
        {},
        ['{"text": "Bees hum."}', '\n{"text":\n"Bees"}'],
        [
            "{'text': 'Bees'}",
            '{"text": "Bees", "more": 1}',
            '{"text": 3}',
            '{"text": "Bees", "text": "Birds"}',
            '[["text", "Bees"]]',
            '"text"',
            'JSON: {"text": "Bees"}',
            "[" * 9999,
        ],
    ),
    "hashtags": (
        {"n": 2},
        ["Bees hum. #bee #hum", "Bees #bee #hum "],
        ["Bees hum. #bee", "#bee hums #hum", "Bees #a #b #c", "Bees #bee #hum loud.", "Bees hum."],
    ),
    "include_word": ({"word": "garden"}, ["A Garden.", "garden-free? no: garden"], ["Gardens.", "gar den"]),
    "repeat_word": ({"word": "garden", "n": 2}, ["Garden, my garden."], ["A garden.", "garden garden garden"]),
    "avoid_word": ({"word": "the"}, ["Bees see them there."], ["The bees.", "Bees, the best."]),
    "avoid_letter": ({"letter": "k"}, ["Bees hum."], ["Bees like it.", "Keep."]),
    "first_word": (
        {"word": "Today"},
        ["Today bees hum.", '"today, bees', "- Today"],
        ["Bees hum today.", "Todays bees"],
    ),
    "ending": (
        {"ending": "That is all."},
        ["Bees hum. That is all.", '"Bees. that is all."'],
        ["Bees. That is all", "Bees breathe. Whathat is all.", "That is all. Bees.", "That is all!"],
    ),
    "sentence_letter": ({"letter": "T"}, ["They hum. the bees sing.", "- 1) *"], ["They hum. Bees sing."]),
    "words_with_letter": ({"letter": "b", "n": 3}, ["Big bees, Bold.", "b b b b"], ["Big bees.", "Cab cob tub"]),
    "short_words": ({"n": 7}, ["Bees hum softly.", "The bakery's 12345678 bees."], ["Butterfly songs."]),
    "distinct_words": ({}, ["Bees hum and sing."], ["Bees hum and bees sing.", "Hum, hum"]),
    "include_number": (
        {"n": 12},
        ["Bees make 12 songs.", "It is 12.", "A 12-year-old bee.", "7-12 of 12% cost $12, 13"],
        [
            "Twelve bees.",
            "112 bees",
            "1 2 bees",
            "3.12 bees",
            "12.5 bees",
            "12,000 bees",
            "1,012 bees",
            "12th",
            "12. Bees",
        ],
    ),
    "no_digits": ({}, ["Two bees."], ["2 bees.", "bee2"]),
    "same_ends": ({}, ["Bees love bees.", "Bees, bees!"], ["Bees hum.", "Bees", "Bees love bee"]),
    "word_count": (
        {"n": 10},
        ["a b c d e f g h i j", "- it's one-two c d e f g h i j", "it’s one‑two 1,000 3.5 e f g h i j."],
        ["a b c d e f g h i", "a " * 11],
    ),
    "ordered_words": ({"n": 3}, ["All bees can hum.", "A a b a"], ["Bees all can hum.", "All bees"]),
    "divided": (
        {},
        ["Bees\n***\nBirds", "Bees\n *** \r\nBirds"],
        ["Bees *** birds", "***\nBees", "A\n***\nB\n***\nC", "Bees\n****\nBirds"],
    ),
}


def test_every_kind_has_cases_and_there_are_at_least_25():
    assert CASES.keys() == KINDS.keys() and len(KINDS) >= 25


@pytest.mark.parametrize("name", CASES)
def test_a_kind_accepts_what_meets_it_and_says_what_is_wrong_with_near_misses(name):
    parameters, accepted, rejected = CASES[name]
    faults = {text: KINDS[name].check(text.strip(), **parameters) for text in (*accepted, *rejected)}
    assert [text for text in accepted if faults[text]] == []
    assert [text for text in rejected if not faults[text]] == []
    assert all(faults[text].endswith((".", '"')) and len(faults[text]) > 10 for text in rejected)


@pytest.mark.parametrize("name", CASES)
def test_a_kind_accepts_the_texts_that_are_written_for_it(name):
    rng = random.Random(name)
    for _ in range(30):
        wanted = Requirements("bees", 8, rng.choice((23, 28, 38)), [{"kind": name, **KINDS[name].draw(rng)}])
        text = write_text(wanted, rng)
        assert text and not any(wanted.faults(text).values())


@pytest.mark.parametrize("name", CASES)
def test_no_two_splits_state_a_kind_in_the_same_words(name):
    stated = [{wording.lower() for wording in KINDS[name].wordings[split]} for split in SPLITS]
    assert all(stated) and sum(map(len, stated)) == len(set.union(*stated))
    for wording in set.union(*stated):
        drawn = KINDS[name].draw(random.Random(0))
        assert all(str(value).lower() in wording.format(**drawn).lower() for value in drawn.values())


@pytest.mark.parametrize("name", [name for name in CASES if name != "as_json"])
def test_what_is_required_of_a_text_in_json_is_required_of_its_value(name):
    parameters, accepted, rejected = CASES[name]
    plain = Requirements("bees", 1, 99, [{"kind": name, **parameters}])
    wrapped = Requirements("bees", 1, 99, [{"kind": "as_json"}, {"kind": name, **parameters}])
    for text in (text.strip() for text in (*accepted, *rejected)):
        for escaped in (True, False):
            faults = wrapped.faults(json.dumps({"text": text}, ensure_ascii=escaped))
            assert faults == {**plain.faults(text), "as_json": ""}


def test_texts_are_read_as_people_read_them():
    assert words("It's a well-known fact: 3 bees!") == ["It's", "a", "well-known", "fact", "3", "bees"]
    assert words("1. Bees\n- birds\n# Cats") == ["Bees", "birds", "Cats"]
    assert sentences('He said "Go!" and left. 3.5 is a number.') == ['He said "Go!"', "and left.", "3.5 is a number."]
    assert sentences("One\nTwo. ***") == ["One", "Two."]
    assert paragraphs("A\nB\n\n\nC") == ["A\nB", "C"]


@pytest.mark.parametrize(
    ("topic", "named"),
    [("bees", "A bee."), ("libraries", "My LIBRARY"), ("potatoes", "potato"), ("foxes", "a fox"), ("chess", "Chess!")],
)
def test_a_topic_is_named_in_the_singular_or_plural(topic, named):
    assert forms(topic).search(named) and forms(topic).search(topic.title())
    assert not forms(topic).search(f"x{topic}") and not forms(topic).search("nothing")
