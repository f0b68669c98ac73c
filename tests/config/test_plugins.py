"""Methods of one's own: named in `training`, with a section like any other."""

import copy

import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.files import to_yaml
from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.registry import build_mechanisms, enabled, named_mechanisms
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.evaluated_run import EvaluateConfig

SOURCE = '''
import functools
from algorithms.grpo.advantages import AdvantageEstimator, mean_advantages
from algorithms.grpo.mechanism import Mechanism, Settings, setting
from algorithms.grpo.query_sampler import QuerySampler
from algorithms.losses.base import LossTerm, Objective


class BonusSettings(Settings):
    """Pay more."""

    enabled: bool = setting(False, "Whether to pay.")
    amount: float = setting(0.5, "What is paid.", ge=0)


class Bonus(Mechanism):
    section, settings_class, tags = "bonus", BonusSettings, {"bonus/paid": -1.0}
    conflicts = {"ranking": "both rank"}


class Other(Mechanism):
    section, settings_class = "bonus", BonusSettings


class Ours(Mechanism):
    section, settings_class = "training", BonusSettings


class StrideSettings(Settings):
    """Take queries in strides."""

    stride: int = setting(3, "How far to go.", ge=1)


class Empty(QuerySampler):
    pass


class Nil(AdvantageEstimator):
    pass


class Vain(Objective):
    pass


class Mixed:
    @functools.partialmethod
    def choose(self, count, step, occasion=0):
        return []


class Borrowing(Mixed, QuerySampler):
    pass


class Stride(QuerySampler):
    section, settings_class = "stride", StrideSettings

    def choose(self, count, step, occasion=0):
        return list(self.services.uids)[:: self.settings.stride][:count]


class Picky(Stride):
    conflicts = {"reflection": "both ask again"}


class Runs(Mechanism):
    section, settings_class = "run", BonusSettings


class Forgetful(QuerySampler):
    def choose(self, count, step, occasion=0):
        return []

    def state(self):
        return {}, {"seen": 1}


class ScaledSettings(Settings):
    """Scale advantages."""

    factor: float = setting(2.0, "By what.", gt=0)


class Scaled(AdvantageEstimator):
    section, settings_class = "scaled", ScaledSettings

    def advantages(self, group):
        return self.settings.factor * mean_advantages(self.rewards(group))


class Penalty(LossTerm):
    pass


class Neither:
    pass


class Typo(Bonus):
    def advantage(self, group, advantages):
        return advantages


class Helped(Bonus):
    def advantages(self, group, advantages):
        return self.advantage(advantages)

    def advantage(self, advantages):
        return advantages


class Chosen(QuerySampler):
    def chose(self, count, step, occasion=0):
        return []
'''
NAMED = {"mechanisms": ["own_methods:Bonus"], "query_sampler": "own_methods:Stride", "advantage": "own_methods:Scaled"}
VALUES = {"bonus": {"enabled": True, "amount": 0.25}, "stride": {"stride": 5}, "scaled": {"factor": 3.0}}
OFF = {"ranking": {"enabled": False}}


@pytest.fixture(autouse=True)
def own_methods(tmp_path, monkeypatch):
    (tmp_path / "own_methods.py").write_text(SOURCE)
    (tmp_path / "broken_method.py").write_text("raise OSError('no\\nlicence')\n")
    monkeypatch.syspath_prepend(tmp_path)


def named() -> R3GRPOConfig:
    return R3GRPOConfig().apply({**VALUES, **OFF, "training": NAMED})


def own_sections(config) -> dict:
    return {section: values for section, values in config.to_sections().items() if section in VALUES}


def test_their_sections_come_from_files_and_overrides_like_any_other(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("bonus: {amount: 0.25}\ntraining: {mechanisms: ['own_methods:Bonus']}\nranking: {enabled: false}\n")
    overrides = ["stride.stride=5", "bonus.enabled=true", "training.query_sampler=own_methods:Stride"]
    config, _ = load(file, [*overrides, "scaled.factor=3", "training.advantage=own_methods:Scaled"], R3GRPOConfig)
    assert own_sections(config) == VALUES
    assert config.bonus_settings.amount == 0.25
    assert config.enabled_mechanisms() == ["replay", "reflection", "bonus"]


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"bonus": {"amount": -1}}, "bonus.amount: -1 is not a number >= 0; the default is 0.5"),
        ({"bonus": {"enabled": 1}}, "bonus.enabled: 1 is not true or false; the default is false"),
        ({"stride": {"stride": "x"}}, "stride.stride: 'x' is not a whole number >= 1; the default is 3"),
        ({"bonus": {"amont": 1}}, "bonus.amont: no such setting; did you mean bonus.amount?"),
        ({"bonsu": {"amount": 1}}, "bonsu: no such section; did you mean bonus?"),
    ],
)
def test_their_settings_are_checked(sections, line):
    with pytest.raises(ConfigError) as raised:
        named().apply(sections)
    assert str(raised.value) == line


def test_every_way_of_taking_a_configuration_along_keeps_them():
    config = named()
    assert own_sections(config) == VALUES
    assert R3GRPOConfig().apply(config.to_sections()).to_sections() == config.to_sections()
    assert R3GRPOConfig().update_from_dict(config.to_dict()).to_sections() == config.to_sections()
    for twin in (copy.deepcopy(config), config.copy(copy_frozen=False)):
        assert twin.to_sections() == config.to_sections()
        twin.apply({"bonus": {"amount": 9.0}})
        assert config.bonus_settings.amount == 0.25


def test_what_tune_samples_in_their_sections_arrives():
    from ray import tune

    config = named().apply({"bonus": {"amount": tune.grid_search([0.1, 0.2])}})
    with pytest.raises(ConfigError, match=r"^bonus\.amount: is still a search space"):
        config.check_settings()
    flat = config.to_dict()
    assert flat["bonus_settings"]["amount"] == {"grid_search": [0.1, 0.2]}
    chosen = flat | {"bonus_settings": flat["bonus_settings"] | {"amount": 0.2}}
    trial = R3GRPOConfig().update_from_dict(chosen)
    trial.check_settings()
    assert own_sections(trial) == {**VALUES, "bonus": {"enabled": True, "amount": 0.2}}


def test_a_runs_own_file_brings_them_back(tmp_path):
    config, run = load(None, [f"training.mechanisms={NAMED['mechanisms']}", "bonus.amount=0.75"], R3GRPOConfig)
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config, run, algorithm="r3_grpo"))
    assert load(file, [], R3GRPOConfig)[0].to_sections() == config.to_sections()


def test_what_is_no_longer_named_takes_its_section_along():
    config = named().apply({"training": {"mechanisms": []}})
    assert set(own_sections(config)) == {"stride", "scaled"}
    with pytest.raises(ConfigError, match=r"^bonus: no such section; "):
        config.apply({"bonus": {"amount": 1.0}})
    again = config.apply({"training": {"mechanisms": NAMED["mechanisms"]}})
    assert own_sections(again) == {**VALUES, "bonus": {"enabled": False, "amount": 0.5}}


def test_another_setting_of_section_training_leaves_them_alone():
    assert own_sections(named().training(lr=1e-3)) == VALUES


@pytest.mark.parametrize(
    ("training", "line"),
    [
        (
            {"objective": "own_methods:Penalty"},
            "'own_methods:Penalty' is derived from LossTerm, not from Objective; fix: term('own_methods:Penalty') in ",
        ),
        (
            {"mechanisms": ["own_methods:Scaled"]},
            "'own_methods:Scaled' is derived from AdvantageEstimator, not from Mechanism; fix: training.advantage=",
        ),
        (
            {"advantage": "own_methods:Bonus"},
            "'own_methods:Bonus' is derived from Mechanism, not from AdvantageEstimator; fix: training.mechanisms=[",
        ),
        (
            {"advantage": "own/methods.py:Scaled"},
            "'own/methods.py:Scaled' names a file, not a module; fix: write own.met",
        ),
        ({"advantage": "/a/b.py:C"}, "'/a/b.py:C' names a file, not a module; fix: write b:C, with /a on PYTHONPATH"),
        ({"query_sampler": "own_methods:Empty"}, "'own_methods:Empty' does not define choose; fix: write it, as Quer"),
        ({"advantage": "own_methods:Nil"}, "'own_methods:Nil' does not define advantages; fix: write it, as Advantage"),
        ({"objective": "own_methods:Vain"}, "'own_methods:Vain' does not define token_objective or response_object"),
        (
            {"query_sampler": "first"},
            "'first' is not one of epoch, adcl, exgrpo, greso, posterior, vas, window, or a class; fix: write m",
        ),
    ],
)
def test_the_line_of_a_class_that_belongs_elsewhere_says_where(training, line):
    with pytest.raises(ConfigError) as raised:
        R3GRPOConfig().training(**training)
    ((setting, _),) = training.items()
    assert str(raised.value).startswith(f"training.{setting}: {line}")


@pytest.mark.parametrize("config_class", [R3GRPOConfig, GRPOConfig])
@pytest.mark.parametrize(
    ("mechanisms", "line"),
    [
        (["own_methods:Bonus", "own_methods:Other"], "training.mechanisms: two methods have a section bonus; fix: "),
        (
            ["own_methods:Bonus", "own_methods:Bonus"],
            "training.mechanisms: ['own_methods:Bonus', 'own_methods:Bonus'] ",
        ),
        (["own_methods:Ours"], "training: the library has a section of this name; fix: "),
        (["not_there:X"], "training.mechanisms: 'not_there:X': not_there cannot be imported (ModuleNotFoundError: "),
        (["broken_method:X"], "training.mechanisms: 'broken_method:X': broken_method cannot be imported (OSError: "),
        (["own_methods:Bonsu"], "training.mechanisms: 'own_methods:Bonsu': own_methods has no class Bonsu "),
        (["own_methods:Neither"], "training.mechanisms: 'own_methods:Neither': own_methods has no class Neither "),
        (
            ["own_methods:Typo"],
            "training.mechanisms: 'own_methods:Typo': advantage is not a hook, and nothing calls it; did you mean adv",
        ),
        (["own_methods:Stride"], "training.mechanisms: 'own_methods:Stride' is a query sampler; fix: training.query_s"),
        (["replya"], "training.mechanisms: 'replya' is not one of ranking, reflection, replay, "),
    ],
)
def test_the_line_of_a_method_that_cannot_be_had(config_class, mechanisms, line):
    with pytest.raises(ConfigError) as raised:
        config_class().apply({"training": {"mechanisms": mechanisms}})
    assert str(raised.value).startswith(line)
    assert "fix: " in str(raised.value) or "did you mean" in str(raised.value)


def test_a_method_that_the_algorithm_has_may_be_named_and_is_there_once():
    """So a preset that names it goes on top of any algorithm."""
    config = R3GRPOConfig().training(mechanisms=["replay"])
    config.check_settings()
    assert config.enabled_mechanisms() == R3GRPOConfig().enabled_mechanisms()


def test_grpo_takes_the_librarys_mechanisms_by_name():
    config, _ = load(None, ["training.mechanisms=[replay]", "replay.k=2"], GRPOConfig)
    assert config.replay_settings.k == 2 and config.enabled_mechanisms() == ["replay"]


def test_two_that_do_not_go_together_are_refused_and_only_if_both_are_on():
    config = named().apply({"ranking": {"enabled": True}})
    with pytest.raises(ConfigError) as raised:
        config.check_settings()
    assert str(raised.value) == "bonus.enabled: cannot be combined with ranking: both rank; fix: ranking.enabled=false"
    config.apply({"bonus": {"enabled": False}}).check_settings()
    named().check_settings()


def test_only_what_is_on_is_built():
    from types import SimpleNamespace

    config = named()
    kinds = tuple(named_mechanisms(config.training_settings))
    (built,) = build_mechanisms(kinds, SimpleNamespace(config=config))
    assert built.settings == config.bonus_settings and built.metrics == {"bonus/paid": -1.0}
    assert enabled(kinds, config.apply({"bonus": {"enabled": False}})) == []


def test_a_method_that_a_later_file_or_override_no_longer_names_takes_its_section_along(tmp_path):
    file, child = tmp_path / "a.yaml", tmp_path / "b.yaml"
    file.write_text(to_yaml(*load(None, [], R3GRPOConfig), algorithm="r3_grpo"))
    file.write_text(
        file.read_text().replace("mechanisms: []", "mechanisms: [own_methods:Bonus]") + "bonus: {amount: 3}\n"
    )
    child.write_text("base: a.yaml\ntraining: {mechanisms: []}\n")
    for files, overrides in ((file, ["training.mechanisms=[]"]), (child, [])):
        config, _ = load(files, overrides, R3GRPOConfig)
        assert config.training_settings.mechanisms == [] and "bonus" not in config.sections
    again, _ = load(child, ["training.mechanisms=[own_methods:Bonus]"], R3GRPOConfig)
    assert again.bonus_settings.amount == 3.0


def test_overrides_may_stand_in_any_order():
    overrides = ["bonus.amount=3", "training.mechanisms=[own_methods:Bonus]"]
    for order in (overrides, overrides[::-1]):
        assert load(None, order, R3GRPOConfig)[0].bonus_settings.amount == 3.0


def test_a_misspelt_section_of_an_evaluations_own_file_is_an_error(tmp_path):
    file = tmp_path / "e.yaml"
    file.write_text("evalution: {samples: 4}\n")
    with pytest.raises(ConfigError, match="evalution: no such section; did you mean evaluation?"):
        load(file, [], EvaluateConfig)


@pytest.mark.parametrize(
    ("training", "line"),
    [
        (
            {"mechanisms": ["own_methods:Runs"]},
            "run: the library has a section of this name; fix: give BonusSettings another name",
        ),
        ({"query_sampler": "own_methods:Forgetful"}, "training: Forgetful has a state and no section; fix: section ="),
    ],
)
def test_a_section_that_cannot_be_one_is_refused(training, line):
    with pytest.raises(ConfigError, match=line):
        R3GRPOConfig().apply({"training": training})


@pytest.mark.parametrize("later", ["opd", "sdpo", "own_methods:Helped"])
def test_what_changes_advantages_is_refused_behind_what_keeps_them(later):
    name = "bonus" if ":" in later else later

    def config(*names, enabled=True):
        return GRPOConfig().training(mechanisms=list(names)).apply({name: {"enabled": enabled}})

    with pytest.raises(ConfigError, match=f"rorecomp keeps advantages.* {name} changes.*; fix: write rorecomp behind"):
        config("rorecomp", later).check_settings()
    config(later, "rorecomp").check_settings()
    config("rorecomp", later, enabled=False).check_settings()


def test_a_hook_may_come_from_a_class_beside_the_base_and_be_no_plain_function():
    R3GRPOConfig().training(query_sampler="own_methods:Borrowing")


def test_a_query_sampler_may_refuse_a_mechanism():
    config = R3GRPOConfig().training(query_sampler="own_methods:Picky")
    with pytest.raises(ConfigError, match="training.query_sampler: cannot be combined with reflection"):
        config.check_settings()


def test_a_helper_beside_the_hook_that_it_resembles_is_let_through():
    R3GRPOConfig().training(mechanisms=["own_methods:Helped"])


def test_a_samplers_hook_is_checked_for_its_spelling_too():
    with pytest.raises(ConfigError, match="chose is not a hook, and nothing calls it; did you mean choose?"):
        R3GRPOConfig().training(query_sampler="own_methods:Chosen")


def test_a_check_says_which_hooks_ones_own_methods_have():
    own = named().training(mechanisms=["own_methods:Helped", "self_filter"]).own_methods()
    assert own == [
        "training.mechanisms: own_methods:Helped, hooks advantages",
        "training.query_sampler: own_methods:Stride, hooks choose",
        "training.advantage: own_methods:Scaled, hooks advantages",
    ]
    assert named().apply({"bonus": {"enabled": False}}).own_methods() == own[1:]
    nothing = named().apply({"bonus": {"enabled": True}}).own_methods()
    assert nothing == ["training.mechanisms: own_methods:Bonus, NO HOOK: it changes nothing", *own[1:]]
    assert R3GRPOConfig().training(mechanisms=["self_filter"]).own_methods() == []


def test_a_section_like_no_other_may_be_that_of_a_method_that_is_not_named():
    with pytest.raises(ConfigError, match="^mine: .*; known: .*; that of a method of your own is there once "):
        R3GRPOConfig().apply({"mine": {"amount": 1}})


def test_a_file_of_a_modules_name_does_not_hide_the_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_methods").touch()
    assert "stride" in own_sections(named())
