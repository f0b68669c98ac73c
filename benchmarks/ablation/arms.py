"""The arms of an ablation: which algorithm, with which method file and which settings on top of the task."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from algorithms.config.errors import ConfigError, did_you_mean, shown
from algorithms.config.files import read_sections


@dataclass(frozen=True)
class Arm:
    """One method of the comparison.

    Args:
        name: names its runs.
        algorithm: `grpo` or `r3_grpo`.
        method: a shipped file of settings that goes on top of the task's files.
        settings: overrides `section.key=value`, which go before everything else.
    """

    name: str
    algorithm: str
    method: str | None = None
    settings: tuple[str, ...] = ()

    def with_settings(self, settings: Sequence[str]) -> "Arm":
        """Return the same arm with further settings, which win over its own."""
        return replace(self, settings=(*self.settings, *settings))


_WITHOUT_CCR, _WITHOUT_ISR, _WITHOUT_SERR = (
    f"{section}.enabled=false" for section in ("replay", "reflection", "ranking")
)


def _r3(name: str, *settings: str) -> Arm:
    """Return an arm of R³ that ranks by entropy, as the paper does."""
    return Arm(name, "r3_grpo", settings=("ranking.order=entropy", *settings))


# Presets that are arms as they are.
_PRESETS = """
dapo dr_grpo gspo cispo rloo ngrpo w_reinforce rl_zvp sapo dppo gmpo clip_cov kl_cov entropy_bonus hgpo gigpo
ma_rlhf mdpo bcpg_nsa prerl rover arena_rl med_grpo rep_exp gdpo
delethink vade greso vas window adcl self knapsack gdro rlep luffy exgrpo rorecomp
sdpo opd ace laser dph_rl
prefix_rl cog_drift fission scaf_grpo egsr svs
""".split()

ARMS: Mapping[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("grpo", "grpo"),
        _r3("r3"),
        _r3("r3-no-ccr", _WITHOUT_CCR),
        _r3("r3-no-isr", _WITHOUT_ISR),
        _r3("r3-no-serr", _WITHOUT_SERR),
        _r3("ccr", _WITHOUT_ISR, _WITHOUT_SERR),
        _r3("isr", _WITHOUT_CCR, _WITHOUT_SERR),
        _r3("serr", _WITHOUT_CCR, _WITHOUT_ISR),
        Arm("r3-paper", "r3_grpo", "paper.yaml"),
        _r3("r3-no-distill", "reflection.distill=false"),
        # Controls: the ranking without an order, with one by chance, alone; a second turn without a history.
        _r3("r3-flat", "ranking.order=flat"),
        _r3("r3-random-rank", "ranking.order=random"),
        _r3("flat-penalty", _WITHOUT_CCR, _WITHOUT_ISR, "ranking.order=flat"),
        Arm("grpo-two-turn", "grpo", settings=("environment.max_turns=2",)),
        Arm("supo", "grpo", "supo.yaml", ("environment.max_turns=4",)),
        *(Arm(name, "grpo", f"{name}.yaml") for name in _PRESETS),
        # The same method with the other engine: what it learns must not depend on who samples.
        _r3("r3-vllm", "env_runners.engine=vllm", "env_runners.vllm={max_model_len: 256, enforce_eager: true}"),
    )
}


def chosen_arms(names: Sequence[str], own: Sequence[str], settings_file: Path | None) -> list[Arm]:
    """Return the arms to run, in order: those named, then those defined on the command line and not named.

    Args:
        names: of shipped arms or of those in `own`.
        own: `NAME=BASE:section.key=value,section.key=value`; the base may be an arm of one's own defined before.
        settings_file: a YAML file `{arm: {section.key: value}}`; its settings go before all others of the arm.

    Raises:
        ConfigError: an unknown arm, or text that is no definition of one.
    """
    known = dict(ARMS)
    defined = []
    for text in own:
        arm = _defined(text, known)
        known[arm.name] = arm
        defined.append(arm.name)
    if settings_file:
        for name, settings in _settings_by_arm(settings_file).items():
            known[name] = _known(name, known, f"{settings_file}").with_settings(settings)
    wanted = dict.fromkeys([*names, *defined])
    return [_known(name, known, "--arms") for name in wanted]


def _defined(text: str, known: Mapping[str, Arm]) -> Arm:
    match = re.fullmatch(r"(?P<name>\w[\w.+-]*)=(?P<base>[^:=,]+)(:(?P<settings>.*))?", text, re.DOTALL)
    if not match:
        raise ConfigError(
            f"--arm: {shown(text)} defines no arm; fix: --arm NAME=BASE:section.key=value,section.key=value"
        )
    if match["name"] in known:
        raise ConfigError(f"--arm: there is an arm {match['name']} already; fix: another name")
    # A comma within a value, as in [1, 2], is not followed by a setting's name.
    settings = re.split(r",(?=\w+(?:\.\w+)+=)", match["settings"]) if match["settings"] else []
    return replace(_known(match["base"], known, "--arm").with_settings(settings), name=match["name"])


def _known(name: str, known: Mapping[str, Arm], where: str) -> Arm:
    if name not in known:
        raise ConfigError(f"{where}: no arm {shown(name)}; {did_you_mean(name, known)}")
    return known[name]


def _settings_by_arm(file: Path) -> dict[str, list[str]]:
    content = read_sections(file)
    for name, settings in content.items():
        if not isinstance(settings, Mapping):
            raise ConfigError(f"{file}: {name}: {shown(settings)} is no mapping; fix: {name}: {{training.lr: 1e-4}}")
    return {
        name: [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]
        for name, settings in content.items()
    }
