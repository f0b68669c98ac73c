"""ArenaRL: tournaments by hand, and what a comparator of a user's own may do."""

from types import SimpleNamespace

import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.methods.arena_rl import ArenaRL, ArenaRLSettings, bracket, closest_number, tournament
from algorithms.utils.errors import RunError
from r3env.core import Query
from tests.methods.simulated import services


def test_the_best_seeds_meet_last():
    assert [bracket(count) for count in (1, 2, 4, 8)] == [[0], [0, 1], [0, 3, 1, 2], [0, 7, 3, 4, 1, 6, 2, 5]]
    assert bracket(5) == [0, 3, 4, 1, 2], "places without a player stay empty"


def test_a_tournament_of_four_is_what_one_plays_by_hand():
    """Strengths 3, 9, 5, 7: all meet player 0, seeds are 1, 3, 2, 0; 1 beats 0 and 3 beats 2, then 1 beats 3."""
    strengths, played = [3, 9, 5, 7], []

    def play(first, second):
        played.append((first, second))
        return strengths[first], strengths[second]

    assert tournament(4, play) == [1, 3, 2, 0]
    assert played == [(1, 0), (2, 0), (3, 0), (1, 0), (3, 2), (1, 3)]


def test_whoever_has_no_partner_is_first_in_the_next_round_and_a_draw_goes_to_the_first():
    """Means of 4, 6 and 2 points make the seeds 1, 0, 2: player 1 beats 0; 2 waits, is first in the final, draws."""
    points = {(1, 0): (6, 5), (2, 0): (2, 3)}
    assert tournament(3, lambda first, second: points.get((first, second), (4, 4))) == [2, 1, 0]
    assert tournament(1, print) == [0]


def group(*texts):
    samples = [
        Sample(SimpleNamespace(messages=({"role": "assistant", "content": text},), tokens=None), 1.0) for text in texts
    ]
    return Group(Prompt("q00"), samples)


def test_responses_are_paid_by_rank_in_place_of_the_environments_reward():
    """The answer is 2."""
    given = group("it is 5", "it is 2", "no idea", "1+2=3")
    given.samples[1].length_penalty = -0.25
    one = ArenaRL(ArenaRLSettings(), services(opened_tokenizer=SimpleNamespace()))
    one.rewards(given)
    assert [sample.shaped_reward for sample in given.samples] == pytest.approx([1 / 3, 0.75, 0.0, 2 / 3])
    assert one.metrics["arena_rl/comparisons"] == 6 and one.is_informative(given)
    alone = group("2")
    one.rewards(alone)
    assert alone.samples[0].shaped_reward is None and not one.is_informative(alone)


def test_a_form_of_a_query_is_compared_with_its_own_answer():
    """The query's answer is 2, that of its easier form 5."""
    given = group("it is 2", "it is 5")
    given.prompt = given.prompt.in_form("fill_in")
    forms = {"variants": {"fill_in": {"problem": "2 + 3", "answer": "5"}}}
    one = ArenaRL(ArenaRLSettings(), services(info=lambda uid: forms, opened_tokenizer=SimpleNamespace()))
    one.rewards(given)
    assert [sample.shaped_reward for sample in given.samples] == [0.0, 1.0]


def test_the_closer_last_number_gets_more_points():
    query = Query("q", "", "10")
    assert closest_number(query, "9 or 10", "4, no: 12.0") == (1.0, pytest.approx(1 / 3))
    assert closest_number(query, "ten", "-90") == (0.0, pytest.approx(1 / 101))
    assert closest_number(Query("q", "", "ten"), "10", "11") == (0.0, 0.0)


@pytest.mark.parametrize("returned", ["1", "None", "(1, 'x')", "(1, float('nan'))", "(1, 2, 3)"])
def test_a_comparator_that_gives_no_two_numbers_ends_the_run_in_one_line(tmp_path, returned):
    file = tmp_path / "judge.py"
    file.write_text(f"def compare(query, first, second):\n    return {returned}\n")
    one = ArenaRL(ArenaRLSettings(comparator=f"{file}:compare"), services(opened_tokenizer=SimpleNamespace()))
    with pytest.raises(RunError, match=r"^arena_rl\.comparator: [^\n]*returned [^\n]*; fix: [^\n]*$"):
        one.rewards(group("a", "b"))


def test_a_comparator_that_is_not_there_is_an_error_of_configuration():
    with pytest.raises(ConfigError, match=r"^arena_rl\.comparator: [^\n]*$"):
        ArenaRL.check(ArenaRLSettings(comparator="json:no_such"), None)
