"""Cog-DRIFT: a query begins in its easiest form, such as a choice of four, and moves up as it is solved."""

from typing import Any

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import Mechanism, Prompt, Services, Settings, State, StepBatch, setting
from algorithms.rollout.types import Context
from r3env.queries import VARIANTS, variants_of

THRESHOLD = 0.5  # of the mean reward, the environment's own


class CogDriftSettings(Settings):
    """Pose each query in easier forms first."""

    enabled: bool = setting(True, "Whether to pose queries in easier forms.")
    formats: list[str] = setting(
        ["four_choice", "ten_choice", "fill_in", "open_ended"],
        "Forms from easy to hard, named as in the data's variants; the last one is the query itself.",
        min_length=2,
    )


class CogDrift(Mechanism):
    """A query is posed in form f of `four_choice < ten_choice < fill_in < open_ended`, at first the easiest it has.

    After a step: if the mean reward of the query in form f is above 0.5, it moves up to the next form that it has, for
    good. The last form is the query itself.

    Forms are `Query.info["variants"]`. A form is a context of its own in history, replay and files: what is answered to
    it is never taken for an answer to the query, and query samplers learn from the query itself alone.

    Source: Cog-DRIFT, arXiv 2604.04767, the authors' code (n = 8, clip 0.2 and 0.28, KL 0.01).
    """

    section = "cog_drift"
    settings_class = CogDriftSettings
    by_query = ("levels",)
    tags = {"cog_drift/variants": 0.0, "cog_drift/moved": 0.0, "cog_drift/open": 0.0}
    # Its second round poses the query itself, whatever form was answered greedily.
    conflicts = {"self_filter": "it samples queries in their original form"}
    settings: CogDriftSettings

    def __init__(self, settings: CogDriftSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.index = {uid: number for number, uid in enumerate(services.uids)}
        self.has = np.zeros((len(self.index), len(settings.formats)), bool)
        self.has[:, -1] = True
        for uid, number in self.index.items():
            try:
                forms = variants_of(services.query(uid))
            except ValueError as error:
                raise ConfigError(f"environment.columns.{VARIANTS}: {error}; fix: the data") from error
            self.has[number, :-1] = [form in forms for form in settings.formats[:-1]]
        if not self.has[:, :-1].any():
            raise ConfigError(
                f"cog_drift.formats: no query has a form of {settings.formats[:-1]}; fix: data with such forms, and "
                f"environment.columns.{VARIANTS} names their column: environment.data=embedded:train has one"
            )
        self.levels = self.has.argmax(axis=1)

    @classmethod
    def check(cls, settings: CogDriftSettings, config: Any) -> None:
        """Raise ConfigError for a form named as a context, and where further rounds would pose queries as they are."""
        taken = sorted({*settings.formats[:-1]} & {*Context})
        if settings.enabled and taken:
            raise ConfigError(
                f"cog_drift.formats: {taken[0]} is already the name of a context; fix: give the form another name"
            )
        rounds = config.training_settings.max_resample_rounds
        if settings.enabled and rounds:
            raise ConfigError(
                f"training.max_resample_rounds: {rounds} samples further queries, which cog_drift would not pose in "
                "their forms; fix: training.max_resample_rounds=0"
            )

    def shape_prompts(self, prompts: list[Prompt], step: int) -> list[Prompt]:
        """Pose each query in its form."""
        return [self.posed(prompt) for prompt in prompts]

    def posed(self, prompt: Prompt) -> Prompt:
        """Return a plain prompt in the form that its query has reached."""
        level = self.levels[self.index[prompt.uid]]
        is_open = level == len(self.settings.formats) - 1 or prompt.context != Context.PLAIN
        return prompt if is_open else prompt.in_form(self.settings.formats[level])

    def update_history(self, batch: StepBatch) -> None:
        """Move up the queries that are solved in their form."""
        rewards: dict[int, list[float]] = {}
        for group in batch.rolled_out:
            number, prompt = self.index[group.prompt.uid], group.prompt
            # Not one that it has left since, nor what another method asked of it.
            if prompt.context == prompt.variant == self.settings.formats[self.levels[number]]:
                rewards.setdefault(number, []).extend(sample.rollout.reward for sample in group.fresh)
        solved = [number for number, each in rewards.items() if each and np.mean(each) > THRESHOLD]
        for number in solved:
            above = self.has[number, self.levels[number] + 1 :]
            self.levels[number] += 1 + int(above.argmax())
        self.metrics["cog_drift/variants"] = float(sum(bool(group.prompt.variant) for group in batch.rolled_out))
        self.metrics["cog_drift/moved"] = float(len(solved))
        self.metrics["cog_drift/open"] = float(np.mean(self.levels == len(self.settings.formats) - 1))

    def state(self) -> State:
        """Return the form of each query."""
        return {"levels": self.levels}, {"formats": self.settings.formats}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Restore them; without those of other data or other forms."""
        levels = np.array(arrays.get("levels", ()), int)
        same = len(levels) == len(self.levels) and state.get("formats") == self.settings.formats
        if same and self.has[np.arange(len(levels)), levels].all():
            self.levels = levels
