"""The registry of objectives, and an objective of a user's own."""

import sys
from textwrap import dedent

import pytest
import torch

from algorithms.config.errors import ConfigError
from algorithms.config.plugins import find_plugins
from algorithms.losses.base import PACKAGE, LossSettings, Objective, load_objective
from algorithms.utils.errors import RunError
from tests.maths.losses import policy_loss

USER_MODULE = """
    import torch

    from algorithms.config.schema import Settings, setting
    from algorithms.losses.base import Objective


    class ReinforceSettings(Settings):
        scale: float = setting(2.0, "Factor of the objective.", gt=0)


    class Reinforce(Objective):
        section = "reinforce"
        settings_class = ReinforceSettings

        def token_objective(self, ratio, logprobs, advantages, settings):
            return self.settings.scale * advantages * logprobs, torch.zeros_like(ratio, dtype=torch.bool)


    class GeometricMean(Objective):
        def response_objective(self, ratio, logprobs, advantages, settings, lengths):
            means = [part.log().mean().exp().expand(len(part)) for part in ratio.split(list(lengths))]
            ratio = torch.cat(means)
            return ratio * advantages, ratio > 1 + settings.clip_high


    class Scalar(Objective):
        def token_objective(self, ratio, logprobs, advantages, settings):
            return (ratio * advantages).sum(), ratio > 2


    class Elsewhere:
        pass
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch) -> str:
    """A module of the user's own, on the path for one test."""
    (tmp_path / "my_losses.py").write_text(dedent(USER_MODULE), encoding="utf-8")
    (tmp_path / "my_broken_losses.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_losses"
    sys.modules.pop("my_losses", None)


def loss_and_gradient(settings, lengths=(2, 3)):
    logprobs = torch.tensor([-1.0, -0.5, -2.0, -0.1, -3.0], requires_grad=True)
    old = torch.tensor([-1.2, -0.9, -1.0, -0.1, -2.5])
    advantages, weights = torch.tensor([1.0, 1.0, -2.0, 0.5, -2.0]), torch.full((5,), 0.25)
    loss, sums = policy_loss(logprobs, old, advantages, weights, settings=settings, lengths=lengths)
    loss.backward()
    return loss.item(), logprobs.grad, sums


def test_the_registered_objectives_load_by_name():
    found = find_plugins(PACKAGE, Objective)
    for_rows = {name for name, kind in found.items() if kind.not_for_setting}
    assert for_rows == {"direct", "shaped"}
    assert found.keys() - for_rows == {"cispo", "clip", "dppo", "gmpo", "ma_rlhf", "sapo"}
    for name in for_rows:
        with pytest.raises(
            ConfigError, match=f"training.objective: '{name}' is not one of cispo, clip, dppo, gmpo, ma_rlhf, sapo"
        ):
            load_objective(name)
    for name in found.keys() - for_rows:
        objective = load_objective(name)
        assert issubclass(objective, Objective) and objective.section in ("", name)
        assert LossSettings(objective=name).token_local == (name not in ("gmpo", "ma_rlhf"))


def test_a_user_objective_is_its_formula_and_takes_its_own_settings(user_module):
    settings = LossSettings(objective=f"{user_module}:Reinforce", objective_options={"scale": 3.0})
    assert settings.token_local and load_objective(settings.objective).section == "reinforce"
    loss, gradient, sums = loss_and_gradient(settings)
    expected = -3.0 * 0.25 * torch.tensor([1.0, 1.0, -2.0, 0.5, -2.0])
    torch.testing.assert_close(gradient, expected)
    assert loss == pytest.approx(float((expected * torch.tensor([-1.0, -0.5, -2.0, -0.1, -3.0])).sum()))
    assert sums["clipped"].item() == 0
    default, _, _ = loss_and_gradient(LossSettings(objective=settings.objective))
    assert default == pytest.approx(loss * 2 / 3)


def test_an_objective_of_whole_responses_is_not_token_local_and_sees_their_lengths(user_module):
    settings = LossSettings(objective=f"{user_module}:GeometricMean", clip_high=9.0)
    assert not settings.token_local
    loss, gradient, _ = loss_and_gradient(settings)
    same, expected, _ = loss_and_gradient(LossSettings(clip_low=1.0, clip_high=9.0, ratio_level="sequence"))
    assert loss == pytest.approx(same)
    torch.testing.assert_close(gradient, expected)


def test_settings_equal_by_value_and_travel_to_a_learner(user_module):
    import pickle

    settings = LossSettings(objective=f"{user_module}:Reinforce", objective_options={"scale": 3.0})
    again = pickle.loads(pickle.dumps(settings))
    assert again == settings and hash(again) == hash(settings)
    assert again.objective_instance.settings.scale == 3.0


def test_an_objective_of_the_wrong_shape_is_refused(user_module):
    with pytest.raises(RunError, match=r":Scalar.token_objective returned a Tensor of .* shape \(\) for \d+ tokens"):
        loss_and_gradient(LossSettings(objective=f"{user_module}:Scalar"))


def test_an_objective_must_define_its_formula():
    with pytest.raises(NotImplementedError, match="Objective must define token_objective"):
        Objective().token_objective(*[torch.zeros(1)] * 3, LossSettings())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clipp", r"'clipp' is not one of cispo, clip, .*, or a class; did you mean clip\? \(or write module:Class\)"),
        ("dpo", r"'dpo' is not one of cispo, clip, .*, or a class; did you mean dppo\? \(or write module:Class\)"),
        (":Reinforce", "':Reinforce' is not one of cispo, clip, .* or a class"),
        ("no_such_module:Reinforce", "no_such_module cannot be imported .*fix: install it, or add its folder"),
        ("my_broken_losses:Reinforce", r"cannot be imported \(ZeroDivisionError: division by zero\)"),
        ("my_losses:Reinforced", r"has no class Reinforced derived from .*\.Objective; fix: did you mean Reinforce\?"),
        ("my_losses:Elsewhere", "has no class Elsewhere derived from algorithms.losses.base.Objective"),
    ],
)
def test_a_wrong_name_is_one_line(user_module, name, message):
    with pytest.raises(ConfigError, match=rf"^training\.objective: .*{message}"):
        load_objective(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scales": 1.0}, r"reinforce\.scales: no such setting; did you mean reinforce\.scale\?"),
        ({"scale": -1.0}, r"reinforce\.scale: -1.0 is not a number > 0"),
    ],
)
def test_wrong_options_are_one_line(user_module, options, message):
    settings = LossSettings(objective=f"{user_module}:Reinforce", objective_options=options)
    with pytest.raises(ConfigError, match=message):
        _ = settings.objective_instance
