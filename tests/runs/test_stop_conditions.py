"""`run.stop`: which entries there are, where they end a run, and what a resume makes of that."""

import json
import re
import sys
import types

import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.sections import RunSettings
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.stop_conditions.base import StopCondition, build_conditions, check_best_metric, known_tags
from algorithms.utils.errors import RunError
from tests.docs.pages import DOCS, fenced

NAN = float("nan")


def config(**evaluation):
    return R3GRPOConfig().evaluation(**({"interval": 5, "k": [1, 4]} | evaluation))


@pytest.mark.parametrize(
    ("entry", "row", "said"),
    [
        ({"eval/pass@4": 0.8}, {"eval/pass@4": 0.8}, "run.stop.eval/pass@4: 0.8 >= 0.8"),
        ({"reward/mean": 1}, {"reward/mean": 0.99}, None),
        ({"response/truncated": "<0.05"}, {"response/truncated": 0.04}, "run.stop.response/truncated: 0.04 < 0.05"),
        ({"response/truncated": "<= 0.05"}, {"response/truncated": 0.06}, None),
        ({"reward/mean": ">0.5"}, {"reward/mean": 0.5}, None),
        ({"reward/function/style": 0.5}, {}, None),
        ({"reward/mean": -1}, {"reward/mean": NAN}, None),
        ({"reward/mean": -1}, {"reward/mean": None}, None),
        ({"wall_hours": 11.5}, {"run/wall_s": 41400.0}, "run.stop.wall_hours: 11.5 >= 11.5"),
    ],
)
def test_a_limit_is_reached_or_not(entry, row, said):
    (condition,) = build_conditions(entry, config())
    assert condition.observe(row) == said


@pytest.fixture
def own(monkeypatch):
    """Builds a condition of a user's class, from the body of the class."""

    def build(body, limit=1):
        module = types.ModuleType("own_stops")
        exec(f"import numpy\nfrom {StopCondition.__module__} import StopCondition\n{body}", vars(module))
        vars(module)["Own"].__module__ = "own_stops"
        monkeypatch.setitem(sys.modules, "own_stops", module)
        (condition,) = build_conditions({"own_stops:Own": limit}, config())
        return condition

    return build


def test_a_condition_of_ones_own_takes_two_numbers_and_measures_with_numpy(own):
    class_ = """
class Own(StopCondition):
    def __init__(self, key, limit):
        self.scale, limit = limit
        super().__init__(key, limit)
    def measure(self, row):
        return numpy.float32(self.scale * row["a"]) if row["a"] else None
"""
    condition = own(class_, [2, 3])
    assert condition.observe({"a": 1}) is condition.observe({"a": 0}) is None
    assert condition.observe({"a": 2}) == "run.stop.own_stops:Own: 4 >= 3"
    with pytest.raises(ConfigError, match=r"run.stop.own_stops:Own: Own does not take 'abc' \(ValueError: .*; fix: "):
        own(class_, "abc")


@pytest.mark.parametrize(
    ("measured", "said"),
    [("row['b']", "KeyError: 'b'"), ("'many'", "TypeError: it returned 'many', which is no number")],
)
def test_a_condition_that_fails_ends_the_run_in_one_line(own, measured, said):
    condition = own(f"class Own(StopCondition):\n    def measure(self, row): return {measured}")
    with pytest.raises(RunError) as raised:
        condition.observe({"step": 3})
    assert str(raised.value) == (
        f"run.stop.own_stops:Own: measure failed on the row of step 3 ({said}); fix: correct it, or resume with "
        "run.stop={}"
    )


def test_a_condition_that_forgets_its_key_and_limit_is_refused(own):
    body = "class Own(StopCondition):\n    def __init__(self, key, limit): pass\n    def measure(self, row): return 1"
    with pytest.raises(ConfigError, match="it does not call super"):
        own(body)


def test_a_condition_that_measures_nothing_is_refused(own):
    with pytest.raises(ConfigError, match="does not define measure; fix: write it, as StopCondition says"):
        own("class Own(StopCondition): pass")


@pytest.mark.parametrize(
    ("entry", "settings", "named"),
    [
        ({"reward/maen": 1}, {}, "no such metric or condition; did you mean reward/mean?"),
        ({"wall_hour": 1}, {}, "did you mean wall_hours?"),
        ({"loss/anchr": 1}, {}, "did you mean loss/anchor?"),
        ({"loss/policy": 1}, {}, "no such metric or condition"),
        ({"ranking/rankd": 1}, {}, "did you mean ranking/ranked?"),
        ({"eval/pass@8": 1}, {}, "fix: evaluation.k=[1,4,8]"),
        ({"eval/pass@1": 1}, {"interval": 0}, "fix: evaluation.interval=10"),
        ({"reward/mean": "high"}, {}, "'high' is no limit"),
        ({"reward/mean": True}, {}, "true is no limit"),
        ({"reward/mean": "<"}, {}, "is no limit"),
        ({"reward/mean": NAN}, {}, "is no limit"),
        ({"reward/mean": {"above": 1}}, {}, "is no limit"),
        ({"no_such_module:Stop": 1}, {}, "cannot be imported"),
    ],
)
def test_what_cannot_end_a_run_is_refused(entry, settings, named):
    with pytest.raises(ConfigError) as error:
        build_conditions(entry, config(**settings))
    (key,) = entry
    assert str(error.value).startswith("run.stop") and key in str(error.value) and named in str(error.value)


def test_terms_of_the_loss_can_end_a_run_the_librarys_and_the_users():
    for name in ("kl", "anchor", "Squared"):
        (condition,) = build_conditions({f"loss/{name}": "<0.5"}, config())
        assert condition.observe({"step": 1, f"loss/{name}": 0.25}) and not condition.observe({"step": 2})


def test_every_number_on_the_page_of_metrics_can_end_a_run():
    text = (DOCS / "reference/metrics.md").read_text(encoding="utf-8")
    text = re.sub(r"^## A supervised start$.*?(?=^## )", "", text, flags=re.M | re.S)
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    documented = {tag for cell in cells for tag in re.findall(r"`([^`]+)`", cell)}
    texts = {"rollout/weight_transfer", "rollout/engine", "step"}
    patterns = {"reward/function/NAME", "loss/NAME", "eval/pass@k"}
    known = set(known_tags(config(reflection=True).training(mask_truncated=True)))
    assert known - {"eval/pass@1", "eval/pass@4"} == documented - texts - patterns


# -- A run -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(command, algorithm, tmp_path):
    """A run whose reward rises by a tenth a step, and that is to end at 0.3."""
    algorithm.reward = property(lambda self: self.steps_done / 10)
    small = ["run.steps=9", "run.save_rollouts=false", "run.log_conversations=0", "run.checkpoint_every=0"]
    assert command(f"run.dir={tmp_path}", "run.name=run", *small, "run.stop.reward/mean=0.3")[0] == 0
    return tmp_path / "run"


def summary(run):
    return json.loads((run / "summary.json").read_text())


def steps(run):
    return [path.name for path in sorted((run / "checkpoints").iterdir())]


def test_the_run_ends_with_the_step_a_checkpoint_and_an_evaluation(stopped):
    assert summary(stopped)["steps"] == 3
    assert summary(stopped)["ended_by"] == "run.stop.reward/mean: 0.3 >= 0.3"
    assert steps(stopped) == ["step_000003"]
    assert json.loads((stopped / "evaluation.json").read_text())["after"]["step"] == 3


def test_a_stopped_run_is_done_until_its_condition_changes(stopped, command):
    assert command("--resume", str(stopped), "run.steps=20")[0] == 0
    assert summary(stopped)["steps"] == 3
    assert command("--resume", str(stopped), "run.stop.reward/mean=0.5")[0] == 0
    assert summary(stopped)["steps"] == 5
    assert command("--resume", str(stopped), "run.stop={}", "run.steps=6")[0] == 0
    assert (summary(stopped)["steps"], summary(stopped)["ended_by"]) == (6, "run.steps: 6")


def test_the_closing_lines_name_the_condition(command, algorithm, tmp_path, capsys):
    from algorithms.train.main import main

    small = ["run.steps=9", "run.save_rollouts=false", "run.log_conversations=0"]
    assert main("grpo", [f"run.dir={tmp_path}", *small, "run.stop={wall_hours: 1, reward/mean: 0.5}"]) == 0
    assert "Training ended after step 1, by run.stop.reward/mean: 0.5 >= 0.5." in capsys.readouterr().out


@pytest.mark.parametrize(("condition", "last"), [("EvaluationsWithoutGain: 3", 4), ("LongAnswers: -1 for 3", 3)])
def test_the_conditions_of_the_page_end_a_run_and_see_stored_rows_again(
    condition, last, command, algorithm, tmp_path, monkeypatch
):
    (code,) = fenced(DOCS / "operate/run-control.md", "python")
    code = re.sub("eval/pass@1|response/mean_tokens", "reward/mean", code)
    (tmp_path / "stops.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    small = ["run.name=run", "run.save_rollouts=false", "run.log_conversations=0"]
    stop = f"run.stop={{stops:{condition}}}"
    assert command(f"run.dir={tmp_path}", *small, "run.steps=2", stop)[0] == 0
    assert command("--resume", str(tmp_path / "run"), "run.steps=9")[0] == 0
    assert summary(tmp_path / "run")["steps"] == last
    sys.modules.pop("stops", None)


def test_a_condition_that_nothing_measures_is_refused_before_anything_starts(command, algorithm, tmp_path):
    code, said = command(f"run.dir={tmp_path}/none", "run.stop.reward/maen=1")
    assert code == 2 and said.startswith("error: run.stop.reward/maen: ") and not (tmp_path / "none").exists()


@pytest.mark.parametrize("known", ["eval/pass@1", "eval/pass@4", "reward/mean", "loss/Bonus", "wall_hours", None])
def test_the_best_checkpoint_is_one_by_a_metric_of_the_run(known):
    run = RunSettings(best_metric=known)
    if known == "wall_hours":  # a condition, and no metric
        with pytest.raises(ConfigError, match=r"^run\.best_metric: no such metric; "):
            check_best_metric(run, config())
    else:
        check_best_metric(run, config(interval=0))


@pytest.mark.parametrize(
    ("typed", "fix"),
    [("eval/pas@1", r"no such metric; did you mean eval/pass@1\?"), ("eval/pass@8", r"fix: evaluation\.k=\[1,4,8\]")],
)
def test_a_misspelt_metric_does_not_delete_the_best_checkpoint(typed, fix):
    with pytest.raises(ConfigError, match=rf"^run\.best_metric: .*{fix}"):
        check_best_metric(RunSettings(best_metric=typed), config())
