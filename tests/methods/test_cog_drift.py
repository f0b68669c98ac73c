"""Cog-DRIFT: which form a query is posed in, when it moves up, and what the environment makes of a form."""

import json
from types import SimpleNamespace

import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.sections import TrainingSettings
from algorithms.grpo.rollout_source import StepRollouts, saved_forms
from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.methods.cog_drift import CogDriftSettings
from benchmarks.embedded_model.build import fill_in, variants
from examples.hinted_sums import HintedSums
from r3env.adapters.foreign import ForeignEnv, Reply
from r3env.core import Query, Reason, Verdict, VerifiableEnv
from r3env.data.loading import load_queries
from r3env.envs.mixture import MixtureEnv
from r3env.queries import variants_of
from r3env.registry import make_env

from .simulated import UIDS, Run, group, made, services

FORMS = ["four_choice", "ten_choice", "fill_in", "open_ended"]
# Every third query has all forms, every third but one, and the others none.
INFO = {
    uid: {"variants": {form: {"problem": form} for form in (FORMS[:3], ["fill_in"], [])[number % 3]}}
    for number, uid in enumerate(UIDS)
}
ALL, ONE, NONE = UIDS[:3]


def drift(uids=UIDS, **settings):
    return made("cog_drift", services(uids=uids, info=lambda uid: INFO[uid]), **settings)


def posed(one, *uids):
    prompts = one.shape_prompts([Prompt(uid) for uid in uids], 0)
    assert all(prompt.context == (prompt.variant or "plain") for prompt in prompts)
    return [prompt.variant for prompt in prompts]


def answered(one, uid, *rewards, variant=None, context=None):
    form = posed(one, uid)[0] if variant is None else variant
    samples = [Sample(SimpleNamespace(reward=reward), reward) for reward in rewards]
    return Group(Prompt(uid, context or form or "plain", variant=form), samples)


def test_a_query_begins_in_its_easiest_form_and_moves_up_for_good():
    one = drift()
    assert posed(one, ALL, ONE, NONE) == ["four_choice", "fill_in", ""]
    seen = []
    for rewards in [(1, 0), (1, 1, 0), (0, 0), (1, 1), (0.6, 0.5), (0, 0)]:
        seen.append(posed(one, ALL)[0])
        Run.update(one, answered(one, ALL, *rewards))
    assert seen == ["four_choice", "four_choice", "ten_choice", "ten_choice", "fill_in", ""]
    assert posed(one, ALL, ONE, NONE) == ["", "fill_in", ""]
    assert one.metrics["cog_drift/open"] == pytest.approx((8 + 1) / 24)


def test_forms_that_a_query_lacks_are_passed_over():
    one = drift()
    Run.update(one, answered(one, ONE, 1, 1), answered(one, ALL, 0, 1), answered(one, NONE, 1, 1))
    assert posed(one, ONE, ALL) == ["", "four_choice"]
    assert {tag.partition("/")[2]: value for tag, value in one.metrics.items()} == {
        "variants": 2,
        "moved": 1,
        "open": pytest.approx(9 / 24),  # fmt: skip
    }


def test_a_form_in_the_middle_that_a_query_lacks_is_passed_over():
    forms = {"variants": {form: {"problem": form} for form in ("ten_choice", "four_choice")}}
    one = made(
        "cog_drift", services(uids=["q"], info=lambda uid: forms), formats=["ten_choice", "fill_in", "x", "open"]
    )
    assert posed(one, "q") == ["ten_choice"]
    forms["variants"]["x"] = {"problem": "x"}
    one = made(
        "cog_drift", services(uids=["q"], info=lambda uid: forms), formats=["ten_choice", "fill_in", "x", "open"]
    )
    Run.update(one, answered(one, "q", 1))
    assert posed(one, "q") == ["x"]


def test_only_answers_to_the_form_that_it_is_in_count():
    one = drift()
    Run.update(
        one,
        answered(one, ALL, 1, 1, variant=""),
        answered(one, ALL, 1, 1, variant="fill_in"),
        answered(one, ALL, 1, 1, context="hint"),
        group(ALL, 1, 1, context="reflection"),
    )
    assert posed(one, ALL) == ["four_choice"]
    Run.update(one, answered(one, ALL, 0, 0), dropped=[answered(one, ALL, 1, 1, 1)])
    assert posed(one, ALL) == ["ten_choice"], "3 of the 5 answers of a step"


def test_a_prompt_that_another_method_shaped_stays_as_it_is():
    greedy = Prompt(ALL, "greedy", size=1, greedy=True)
    assert drift().shape_prompts([greedy, Prompt(ALL, size=3)], 0) == [
        greedy,
        Prompt(ALL, "four_choice", size=3, variant="four_choice"),
    ]


def test_forms_are_restored_exactly_and_those_of_other_data_are_not():
    one = drift()
    Run.update(one, answered(one, ALL, 1, 1), answered(one, ONE, 0, 1))
    arrays, state = one.state()
    state = json.loads(json.dumps(state))
    other = drift()
    other.restore({name: array.copy() for name, array in arrays.items()}, state)
    for each in (one, other):
        Run.update(each, answered(each, ONE, 1, 1), answered(each, ALL, 0, 1))
    assert posed(one, *UIDS) == posed(other, *UIDS) and posed(one, ALL, ONE) == ["ten_choice", ""]
    for stranger in (drift(formats=FORMS[1:]), drift(UIDS[:5])):
        before = stranger.levels.copy()
        stranger.restore(arrays, state)
        assert (stranger.levels == before).all()
    drift().restore({}, {})


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_resumed_run_poses_what_an_uninterrupted_one_does(lag):
    def run():
        return Run(mechanisms=["cog_drift"], info=INFO.get, max_off_policy_steps=lag)

    whole = run()
    shown = whole.train(9)
    assert len({context for rolled_out, _, _ in shown for _, context, _ in rolled_out}) == 4
    saved = whole.save()
    resumed = run().load(saved)
    assert resumed.source.state == whole.source.state
    assert resumed.train(9) == whole.train(9)


def test_a_step_under_way_keeps_the_forms_that_it_was_begun_with():
    prompts = [Prompt("a", size=2), Prompt("b").in_form("fill_in"), Prompt("c", "greedy")]
    data = json.loads(json.dumps(StepRollouts(4, ["a", "b", "c"], [*prompts, Prompt("a", "hint")], []).saved()))
    assert data == {"step": 4, "queries": ["a", "b", "c"], "sizes": [2, None, None], "variants": ["", "fill_in", ""]}
    moved = [Prompt("a").in_form("fill_in"), Prompt("b"), Prompt("c", "greedy")]
    assert saved_forms(moved, data) == prompts
    assert StepRollouts(0, ["a"], [Prompt("a")], []).saved() == {"step": 0, "queries": ["a"]}


def test_what_cannot_work_is_one_line():
    with pytest.raises(ConfigError, match=r"cog_drift.formats: no query has a form of \['easy'\]; fix: data with"):
        drift(formats=["easy", "open_ended"])
    with pytest.raises(ConfigError, match=r"environment.columns.variants: variants of query 'q00' is not an object"):
        made("cog_drift", services(info=lambda uid: {"variants": [1]}))
    one = drift()
    plain = CogDriftSettings(formats=["plain", "open_ended"])
    with pytest.raises(ConfigError, match="cog_drift.formats: plain is already the name of a context; fix"):
        one.check(plain, SimpleNamespace(training_settings=TrainingSettings()))
    config = SimpleNamespace(training_settings=TrainingSettings(max_resample_rounds=2))
    with pytest.raises(ConfigError, match="training.max_resample_rounds: 2 samples .*; fix: training.max_resample_ro"):
        one.check(one.settings, config)


# -- The environment --------------------------------------------------------------------------------------------------

QUERY = Query(
    "q", "1+1", "2", info={"variants": {"choice": {"problem": "1+1: a) 3 b) 2", "answer": "b"}, "none": None}}
)


class Env(VerifiableEnv):
    def load_queries(self):
        return [QUERY]

    def verify(self, query, response):
        return Verdict(response == query.answer, Reason.EQUAL)


def test_an_environment_poses_and_grades_the_form_under_the_querys_own_name():
    env = Env(instruction="Go.", max_turns=2)
    text, info = env.reset(options={"uid": "q", "variant": "choice"})
    assert (text, info["uid"]) == ("1+1: a) 3 b) 2\n\nGo.", "q")
    assert env.step("2")[1:3] == (0.0, False) and env.step("b")[1:3] == (1.0, True)
    assert env.reset(options={"uid": "q"})[0] == "1+1\n\nGo." and env.step("2")[1] == 1.0
    _, info = env.reset(options={"uid": "q", "variant": "choice", "failed_attempt": "a"})
    assert info["conversation"][0]["content"] == "1+1: a) 3 b) 2\n\nGo."
    with pytest.raises(ValueError, match="query 'q' has no variant 'chioce'; the nearest is 'choice'"):
        env.reset(options={"uid": "q", "variant": "chioce"})


def test_forms_may_be_json_text_and_keep_the_answer():
    text = replaced({"x": {"problem": "3-1"}})
    assert {name: (form.uid, form.problem, form.answer) for name, form in variants_of(text).items()} == {
        "x": ("q", "3-1", "2")
    }
    assert variants_of(Query("q", "1", "1")) == {}
    (zero,) = variants_of(replaced({"x": {"problem": "5-5", "answer": 0}})).values()
    assert zero.answer == "0"
    for broken in ("{", "[]", {"x": "text"}, {"x": {"answer": "2"}}, {"x": {"problem": None, "answer": "2"}}):
        with pytest.raises(ValueError, match="variants of query 'q' is not an object of objects"):
            variants_of(Query("q", "1", "1", info={"variants": broken}))


def replaced(forms):
    return Query("q", "1+1", "2", info={"variants": json.dumps(forms)})


class Foreign(ForeignEnv):
    def load_queries(self):
        return [QUERY]

    def begin(self, query):
        self.begun = query.problem

    def reply(self, response):
        return Reply("", float(response == "b"), True)


def test_adapters_and_mixtures_pass_the_form_on():
    foreign = Foreign()
    foreign.reset(options={"uid": "q", "variant": "choice"})
    assert foreign.begun == "1+1: a) 3 b) 2"
    columns = {"data": "embedded:train", "instruction": ""}
    mixture = MixtureEnv({"sums": {"id": "r3env/Math-v0", "options": columns}})
    query = mixture.query("sums/train-003")
    text, info = mixture.reset(options={"uid": query.uid, "variant": "fill_in"})
    assert text == fill_in(query.problem) and info["uid"] == query.uid
    assert mixture.step(f"\\boxed{{{query.answer}}}")[1] == 1.0


def test_a_mixture_gives_hints_to_the_parts_that_place_them():
    sums = {"id": "r3env/Math-v0", "options": {"instruction": ""}}
    mixture = MixtureEnv({"sums": sums, "hinted": {"id": "examples.hinted_sums:HintedSums-v0"}})
    uid = next(uid for uid in mixture.uids if uid.startswith("hinted/"))
    hint = mixture.query(uid).info["hints"][-1]
    own = HintedSums()
    assert mixture.reset(options={"uid": uid, "hint": hint})[0] == own.reset(options={"uid": uid[7:], "hint": hint})[0]
    assert mixture.reset(options={"uid": "sums/train-003", "hint": "Count."})[0].endswith("\n\nCount.")


def test_the_embedded_forms_are_those_of_the_script_and_their_answers_are_right():
    queries = load_queries("embedded:train", columns={"variants": "variants"})
    assert [(q.uid, q.problem, q.answer) for q in queries] == [
        (q.uid, q.problem, q.answer) for q in load_queries("embedded:train")
    ]
    env = make_env("r3env/Math-v0", {"data": "embedded:train"})
    for query in queries:
        forms = variants_of(query)
        assert list(forms) == list(variants_of(env.query(query.uid))) == FORMS[:3]
        assert eval(forms["fill_in"].problem) == int(query.answer) == int(forms["four_choice"].answer)  # noqa: S307
        for name, count in (("four_choice", 4), ("ten_choice", 10)):
            offered = [int(text) for text in forms[name].problem.partition("One of ")[2].rstrip(".").split(", ")]
            assert len(set(offered)) == count and int(query.answer) in offered
    assert fill_in("7+1+9-5-2+3") == "17-5-2+3" and variants("1+2", "3")["fill_in"]["problem"] == "1+2"
