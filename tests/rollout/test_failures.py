"""Which episodes failed: how many, of what, when a user is told, and when the run ends."""

import json
import re

import pytest

from algorithms.rollout.failures import (
    NO_ROOM,
    EpisodesFailed,
    FailureLimit,
    Failures,
    FailureWatch,
    describe_error,
    refuse_if_all_failed,
)
from r3env.child_processes.subprocess_scorer import WAITED
from tests.hand_made import answer

from .requests import requests_of

BROKEN = "step: KeyError('tool 7') (env.py, line 31)"
OTHER = "reset: OSError('the data is gone') (env.py, line 12)"


def episodes(*errors, verdict="environment_error"):
    """One for each error; None: it went well."""
    pairs = zip(requests_of(["q"] * len(errors)), errors, strict=True)
    return [
        answer(request, prompt=[1], response=[2], correct=False, error=error, verdict=verdict if error else "equal")
        for request, error in pairs
    ]


def watched(*steps):
    watch = FailureWatch("training", "They are left out")
    return [watch.observe(step) for step in steps]


def test_errors_that_differ_in_numbers_and_quoted_text_are_one_kind():
    failures = Failures.of(episodes(OTHER, BROKEN, BROKEN.replace("tool 7", "tool 8"), None))
    assert failures.kinds == ((BROKEN, 2), (OTHER, 1))
    assert (failures.failed, failures.share) == (3, 0.75)
    assert str(failures) == f"3 of 4 episodes failed (75%), 2 of them with: {BROKEN}"


def test_what_a_verifier_declines_to_grade_is_no_failure_unless_it_is_everything():
    ungraded, broken = episodes("f returned None", verdict="ungraded"), episodes(BROKEN)
    assert Failures.of([*ungraded, *broken, *episodes(None)]).kinds == ((BROKEN, 1),)
    FailureLimit(0.5).check([*ungraded * 9, *episodes(None)])
    with pytest.raises(EpisodesFailed, match="every one of 2 episodes failed: f returned None"):
        FailureLimit(1.0).check(ungraded * 2)


def test_addresses_of_objects_are_no_kinds():
    errors = [f"step: AttributeError(<Game object at {address}>)" for address in ("0x7f3a1c", "0xffee01", "0xA1")]
    assert len(Failures.of(episodes(*errors)).kinds) == 1


def test_errors_of_two_lines_are_two_kinds():
    assert len(Failures.of(episodes(BROKEN, BROKEN.replace("line 31", "line 32"))).kinds) == 2


def test_it_warns_of_the_first_failure_and_is_silent_while_nothing_changes():
    some = episodes(BROKEN, *[None] * 9)
    first, *later = watched(episodes(None), some, some, some)[1:]
    assert first == f"training: 1 of 10 episodes failed (10%): {BROKEN}. They are left out"
    assert later == [None, None]


def test_it_warns_again_when_the_share_has_risen_and_after_it_had_fallen():
    few, many, none = ([*[BROKEN] * failed, *[None] * (100 - failed)] for failed in (5, 40, 0))
    said = watched(*(episodes(*errors) for errors in (few, many, many, none, many)))
    assert [text is not None for text in said] == [True, True, False, False, True]
    assert "40 of 100 episodes failed (40%)" in said[1]


def test_what_chance_does_to_a_small_step_is_no_change():
    steps = [episodes(*[BROKEN] * failed, *[None] * (8 - failed)) for failed in (2, 4, 1, 3, 0, 2)]
    assert [text is not None for text in watched(*steps)] == [True, False, False, False, False, False]


def test_it_warns_of_an_error_of_another_kind_beside_the_most_frequent():
    _, said = watched(episodes(BROKEN, BROKEN, None), episodes(BROKEN, BROKEN, OTHER))
    assert f"2 of them with: {BROKEN}; also: {OTHER}" in said


def test_endless_kinds_of_errors_are_not_all_told():
    steps = [episodes(f"step: {'x' * length}", None) for length in range(1, 60)]
    assert sum(text is not None for text in watched(*steps)) == FailureWatch.MOST_KINDS


def test_a_step_may_lose_as_many_episodes_as_the_setting_allows():
    half = episodes(BROKEN, BROKEN, None, None)
    FailureLimit(0.5).check(half)
    with pytest.raises(EpisodesFailed, match=r"^env_runners.max_failed_share: 2 of 4 episodes failed \(50%\): step"):
        FailureLimit(0.49).check(half)


def test_a_step_that_loses_all_of_them_ends_the_run_whatever_is_allowed():
    with pytest.raises(EpisodesFailed, match="every one of 2 episodes failed: step"):
        FailureLimit(1.0).check(episodes(BROKEN, BROKEN))
    FailureLimit(0.5).check([])


def test_the_fix_of_timeouts_is_the_time_limit():
    late = episodes(*["the answer could not be graded: timeout"] * 8, *[None] * 8, verdict="timeout")
    with pytest.raises(EpisodesFailed, match="fix: make the verifier quicker, or raise environment.grading_timeout_s"):
        FailureLimit(0.25).check(late)


def test_the_fix_of_conversations_that_are_too_long_is_the_engines_context():
    turns = f"the conversation cannot be continued: 9000 tokens {NO_ROOM} 2672"
    with pytest.raises(EpisodesFailed, match="fix: set env_runners.max_model_len, if vLLM was started with less"):
        FailureLimit(0.25).check(episodes(*[turns] * 8, *[None] * 8))


def test_the_fix_of_calls_that_waited_for_a_thread_is_no_longer_limit():
    with pytest.raises(EpisodesFailed, match="fix: start threads, clients and models in the function, or hold them"):
        FailureLimit(0.25).check(episodes(*[f"late; {WAITED}"] * 8, *[None] * 8, verdict="timeout"))


@pytest.mark.parametrize("most", [0.0, 0.5, 1.0])
def test_small_steps_that_are_lost_to_timeouts_are_judged_together(most):
    late, well = episodes(*["too slow"] * 6, verdict="timeout"), episodes(None)
    limit = FailureLimit(most)
    limit.check(late)
    limit.check(late)
    with pytest.raises(EpisodesFailed, match="every one of 18"):
        limit.check(late)
    forgiving = FailureLimit(0.5)
    for _ in range(9):  # 6 of 12 are not more than half: the two small steps are forgotten
        forgiving.check(late)
        forgiving.check(well * 6)
    with pytest.raises(EpisodesFailed, match="every one of 1 "):
        FailureLimit(most).check(episodes(BROKEN))


def test_an_evaluation_may_have_a_few_answers_that_are_all_too_hard_to_grade():
    late = "the answer could not be graded: timeout"
    refuse_if_all_failed(episodes(*[late] * 15, verdict="timeout"))
    with pytest.raises(EpisodesFailed, match="every one of 16 episodes failed"):
        refuse_if_all_failed(episodes(*[late] * 16, verdict="timeout"))
    with pytest.raises(EpisodesFailed, match="every one of 2 episodes failed"):
        refuse_if_all_failed(episodes(BROKEN, BROKEN))


def raised(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_error_is_placed_at_the_users_line_not_in_the_library_that_it_called():
    said = describe_error("step", raised(lambda: json.loads("{")))
    assert re.fullmatch(r"step: JSONDecodeError\(.*\) \(test_failures.py, line \d+\)", said)


def test_an_error_of_our_own_code_needs_no_line():
    assert describe_error("reset", ValueError("unknown uid")) == "reset: ValueError('unknown uid')"
