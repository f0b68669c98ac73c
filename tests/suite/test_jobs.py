"""Which runs there are, with which settings, and what is kept of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.utils.errors import RunError
from benchmarks.ablation.learned import Curve, cpu_until
from benchmarks.suite import command, worker
from benchmarks.suite import protocol as registered
from benchmarks.suite.bases import Made, Spec
from benchmarks.suite.jobs import Planned, chosen, job, key_of, planned
from benchmarks.suite.tasks import Screened
from benchmarks.suite.worker import append, stored
from r3env.assets import build

DRAFT, DIGEST = registered.read()
FROZEN = DRAFT.model_copy(
    update={"arms": {name: arm.model_copy(update={"lr": 1e-4}) for name, arm in DRAFT.arms.items()}}
)


@pytest.fixture
def base(tmp_path):
    """A folder of a base, whose every difficulty is the embedded model."""
    for difficulty in DRAFT.difficulties:
        (tmp_path / difficulty).symlink_to(Path(build.__file__).parent / "tiny")
    return tmp_path


def test_the_test_takes_every_arm_on_every_difficulty_of_every_base():
    runs = planned(["a", "b"], FROZEN, "test")
    assert len(runs) == 2 * sum(DRAFT.bases.values())
    keys = [run.key for of_base in runs.values() for run in of_base]
    assert len(keys) == len(set(keys)) == len(runs) * len(DRAFT.difficulties) * len(DRAFT.arms)


def test_the_sweep_takes_every_rate_on_one_base_of_a_task():
    runs = planned(["a", "b"], DRAFT, "sweep")
    assert list(runs) == [Spec("a", DRAFT.sweep.skills[0], 0), Spec("b", DRAFT.sweep.skills[1], 0)]
    assert all(len(of_base) == len(DRAFT.rates) * len(DRAFT.arms) for of_base in runs.values())


def test_an_excluded_difficulty_of_a_base_is_not_planned():
    spec, other = Spec("a", "none", 0), Spec("a", "own_failures", 0)
    runs = planned(["a"], FROZEN.model_copy(update={"excluded": {f"{spec.label}:medium": "passed over"}}), "test")
    assert {run.difficulty for run in runs[spec]} == set(FROZEN.difficulties) - {"medium"}
    assert {run.difficulty for run in runs[other]} == set(FROZEN.difficulties)


def test_a_base_that_passes_over_a_difficulty_is_run_at_the_other_and_named(tmp_path, monkeypatch):
    spec, records = Spec("a", "none", 0), tmp_path / "records.jsonl"
    runs = planned(["a"], FROZEN, "test")[spec]
    monkeypatch.setattr(worker, "make", lambda *_, **__: Made([(10, 0.2)], {"blind": 10}))
    monkeypatch.setattr(worker, "train", lambda one: (one.folder / "checkpoints").mkdir(parents=True))
    names = ("phase", "task", "difficulty", "skill", "base", "arm", "lr")
    monkeypatch.setattr(worker, "record", lambda run, *_: dict(zip(names, run.key, strict=True)))
    with pytest.raises(RunError, match=r"passed over medium; fix: name a:none:0:medium under excluded"):
        worker.work(spec, runs, FROZEN, DIGEST, tmp_path, records)
    assert [key_of(one) for one in stored(records)] == [run.key for run in runs if run.difficulty == "blind"]


def test_bases_of_a_task_begin_with_different_weights():
    specs = [Spec("a", skill, replicate) for skill in DRAFT.bases for replicate in range(3)]
    assert len({spec.seed for spec in specs}) == len({spec.name for spec in specs}) == len(specs)


def test_development_tasks_are_never_tested_on():
    screened = [Screened(str(number), None if number % 2 else "out") for number in range(40)]
    development, test = (chosen(screened, DRAFT, phase) for phase in ("sweep", "test"))
    assert len(development) == DRAFT.tasks["development"] and len(test) == DRAFT.tasks["test"]
    assert not set(development) & set(test) and all(int(name) % 2 for name in development + test)
    with pytest.raises(ConfigError, match="fix: python -m benchmarks.suite screen"):
        chosen(screened[:9], DRAFT, "test")


def test_no_test_without_a_frozen_rate_and_a_registered_protocol():
    grpo = FROZEN.arms["grpo"].model_copy(update={"lr": None})
    without = FROZEN.model_copy(update={"arms": {**FROZEN.arms, "grpo": grpo}})
    with pytest.raises(ConfigError, match=r"arms\.grpo\.lr"):
        planned(["a"], without, "test")
    with pytest.raises(ConfigError, match="a draft"):
        command.check_registered(DRAFT.model_copy(update={"registered": None}))


@pytest.mark.parametrize("arm", DRAFT.arms)
def test_each_arm_has_a_whole_configuration(base, tmp_path, arm):
    run = Planned("test", Spec("spell_backward", "none", 0), "medium", arm, 1e-4)
    made = job(run, FROZEN, base, tmp_path / "out")
    assert made.run.max_generated_tokens == DRAFT.tokens and made.seed == run.spec.seed
    assert made.sections["training"]["lr"] == 1e-4
    for section, values in DRAFT.settings.items():
        own = {text.partition("=")[0] for text in DRAFT.arms[arm].settings}
        there = {key: value for key, value in values.items() if f"{section}.{key}" not in own}
        assert {key: made.sections[section][key] for key in there} == there


def test_arms_differ_in_their_method_alone(base, tmp_path):
    runs = planned(["spell_backward"], FROZEN, "test")[Spec("spell_backward", "none", 0)]
    made = {run.arm: job(run, FROZEN, base, tmp_path) for run in runs if run.difficulty == "medium"}
    assert len({one.settings_hash for one in made.values()}) == len(DRAFT.arms)
    for name in ("environment", "rl_module", "env_runners"):
        assert len({json.dumps(one.sections[name], sort_keys=True) for one in made.values()}) == 1, name


def test_records_survive_a_kill_in_the_middle_of_a_line(tmp_path):
    file = tmp_path / "deep" / "records.jsonl"
    append(file, {"arm": "a"})
    with file.open("a") as out:
        out.write('{"arm": "b"')
    assert stored(file) == [{"arm": "a"}]
    append(file, {"arm": "c"})
    assert stored(file) == [{"arm": "a"}, {"arm": "c"}]
    assert stored(tmp_path / "none") == []


def test_a_record_is_found_again_by_its_key():
    run = planned(["a"], FROZEN, "test")[Spec("a", "none", 0)][0]
    record = {"phase": "test", "task": "a", "difficulty": run.difficulty, "skill": "none", "base": 0}
    assert key_of({**record, "arm": run.arm, "lr": 1e-4}) == run.key


def test_cpu_seconds_are_those_of_the_steps_up_to_an_evaluation():
    training = Curve.of([(step, step * 10, {"time/cpu": float(step)}) for step in range(1, 6)])
    np.testing.assert_array_equal(cpu_until(training, np.array([0, 2, 5])), [0, 3, 15])


def test_the_best_rate_comes_first():
    found = [
        {"arm": "grpo", "lr": rate, "final": {"pass@1": value}}
        for rate, value in ((1e-4, 0.1), (2e-4, 0.3), (1e-4, 0.3))
    ]
    assert list(command.rates(found)) == ["grpo: 0.0002 0.300 (1), 0.0001 0.200 (2)"]


def test_the_protocol_says_which_of_its_keys_is_wrong(tmp_path):
    (tmp_path / "p.yaml").write_text(registered.FILE.read_text().replace("tokens: 1", "tokens: -1"))
    with pytest.raises(ConfigError, match="tokens"):
        registered.read(tmp_path / "p.yaml")
    assert len(DIGEST) == 64
