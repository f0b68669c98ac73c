"""What to train on and how: the run, the environment, the optimization, the reward and evaluation.

Where it runs is in `algorithms.config.machine`. Neither imports Ray.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from algorithms.config.machine import EnvRunnerSettings, LearnerSettings, RLModuleSettings
from algorithms.config.schema import Affects, Meaning, Settings, default_of, setting

FolderName = Annotated[
    str,
    Field(pattern=r"^\w[\w.+=,@ -]*$", max_length=200),
    Meaning("a folder name (letters, digits and _ . + = , @ -)"),
]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]


class RunSettings(Settings):
    """One run of the training script."""

    name: FolderName | None = setting(
        None, "Name of the run directory; null: the configuration file's name and the time of the start."
    )
    dir: Text = setting("runs", "Folder that holds the run directories.")
    steps: int = setting(100, "Training steps.", ge=1)
    max_generated_tokens: int = setting(
        0,
        "Training ends with the step that brings the tokens generated since its start, all responses of all steps, to "
        "this number, if `steps` has not ended it before; 0: no such end.",
        ge=0,
    )
    seed: int = setting(
        0,
        "Seeds the order of queries, sampling, replay and reflection.",
        affects=Affects.ANSWERS,
        hparam=True,
        ge=0,
        lt=2**32,
    )
    checkpoint_every: int = setting(50, "Steps between checkpoints; 0: only one, at the end.", ge=0)
    keep_checkpoints: int = setting(3, "Checkpoints that stay, the newest; 0: all.", ge=0)
    best_metric: str | None = setting(
        "eval/pass@1",
        "The checkpoint with the highest value of this metric stays as well, if it was measured at a checkpoint's "
        "step; null: no such.",
    )
    restarts: int = setting(
        0,
        "How often in a row a run that died is started again from its last checkpoint without a new one "
        "(docs/operate/restarts.md); 0: never.",
        ge=0,
    )
    trackers: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = setting(
        ["tensorboard"],
        "Where metrics, sample conversations, settings and the summary go beside the run directory's own files "
        "(docs/guides/trackers.md); `[]`: nowhere.",
    )
    log_conversations: int = setting(2, "Sample conversations sent to the trackers at every step.", ge=0)
    save_rollouts: bool = setting(True, "Whether to write every step's rollouts to `rollouts/*.parquet`.")
    save_tokens: bool = setting(
        True,
        "Whether these files also hold each token's text, log-prob and entropy, which `algorithms.report` shows: about "
        "4 bytes a token.",
    )


class EnvironmentSettings(Settings):
    """What the policy acts in. `data` and what follows it, but for `system`, are constructor arguments of it."""

    AFFECTS: ClassVar[Affects] = Affects.EVALUATION

    id: Text = setting(
        "r3env/Math-v0",
        "Gymnasium id; `module:Id-v0` imports the module first: so an environment of your own is named.",
        hparam=True,
    )
    data: Text | None = setting(
        None,
        "Problems: a jsonl, json, parquet or csv file, `embedded:train`, `embedded:heldout`, a preset such as "
        "`preset:gsm8k`, or the id of a data set on the Hugging Face Hub (docs/reference/data.md); null: the "
        "environment's own.",
        hparam=True,
    )
    columns: dict[str, str] = setting(
        {},
        "Column of the data that holds each field, where it is not called so: `{problem: question}`. Other names than "
        "`problem`, `answer`, `uid` and `level` keep that column in `Query.info`.",
    )
    system: Text | None = setting(
        None,
        "Text of a system turn at the beginning of every conversation; null: none but what the environment or the chat "
        "template have of their own.",
    )
    instruction: str | None = setting(None, "Instruction that goes with every problem; null: the environment's own.")
    reflection_guidance: str | None = setting(
        None, "Text of the turn that asks for a second attempt; null: the environment's own."
    )
    max_turns: int = setting(
        1,
        "Attempts per episode: from 2 on a wrong answer is met with feedback and tried again within the episode; 1 "
        "leaves the environment's own default.",
        ge=1,
    )
    grading_timeout_s: float = setting(
        5.0, "Seconds that the grader may spend on one answer. Passed on if not 5.", gt=0
    )
    options: dict[str, Any] = setting(
        {},
        "Further constructor arguments, such as `reward: my_module:my_function` of r3env/Function-v0, or for an "
        "environment of your own.",
    )

    @classmethod
    def argument_names(cls) -> tuple[str, ...]:
        """The settings that are constructor arguments of the environment."""
        return tuple(name for name in cls.model_fields if name not in ("id", "system", "options"))

    def constructor_arguments(self) -> dict[str, Any]:
        """What `gymnasium.make` gets: what differs from the default, as not every environment takes all."""
        fields = type(self).model_fields
        named = {name: getattr(self, name) for name in self.argument_names()}
        return {name: value for name, value in named.items() if value != default_of(fields[name])} | self.options

    @classmethod
    def from_constructor_arguments(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that give these constructor arguments (RLlib's `env_config`)."""
        named = {key: arguments[key] for key in cls.argument_names() if key in arguments}
        options = {key: value for key, value in arguments.items() if key not in named}
        return named | ({"options": options} if options else {})


class TrainingSettings(Settings):
    """The optimization. A training step samples `queries_per_step` times `group_size` responses."""

    lr: float = setting(1e-6, "Learning rate of AdamW, after the warm-up.", hparam=True, ge=0)
    warmup_steps: int = setting(
        0, "Optimizer steps over which the learning rate rises linearly from 0.", hparam=True, ge=0
    )
    weight_decay: float = setting(0.0, "Weight decay of AdamW.", hparam=True, ge=0)
    grad_clip: float = setting(1.0, "Largest norm of the gradient; 0: not clipped.", ge=0)
    max_skipped_steps: int = setting(
        3,
        "Optimizer steps in a row that may be skipped because the gradient is not finite; one more ends the run, with "
        "its batch in `skipped_batch.npz`. 0: any number.",
        ge=0,
    )
    group_size: int = setting(8, "Responses per prompt (G): the group whose mean is the baseline.", hparam=True, ge=2)
    queries_per_step: int = setting(16, "Queries per training step.", hparam=True, ge=1)
    minibatches: int = setting(
        1, "Optimizer steps per training step; must divide the number of responses.", hparam=True, ge=1
    )
    mechanisms: list[Text] = setting(
        [],
        "Further methods of your own (docs/method/extend.md), each `module:Class`, or one of the library's by name: "
        "`[my_package.hints:Hints]`. Each has a section of its own.",
    )
    query_sampler: Text = setting(
        "epoch",
        "What chooses the queries: `epoch` (a new shuffle each epoch), one of `posterior`, `greso`, `vas`, `window`, "
        "`adcl` and `exgrpo` (docs/method/family.md), or `module:Class` of your own.",
    )
    advantage: Text = setting(
        "std",
        "What a reward is worth in its group: its distance from the mean in standard deviations (`std`, GRPO), the "
        "distance itself (`mean`, Dr. GRPO), the distance from the mean of the others (`leave_one_out`, RLOO), one of "
        "`ngrpo`, `w_reinforce`, `psr`, `nsr`, `rl_zvp` and `hgpo` (docs/method/family.md), or `module:Class` of your "
        "own.",
        hparam=True,
    )
    max_resample_rounds: int = setting(
        0,
        "Dynamic sampling (DAPO): how often a step may ask further queries in place of those whose responses are all "
        "right or all wrong; 0: off.",
        hparam=True,
        ge=0,
    )
    objective: Text = setting(
        "clip",
        "The surrogate of PPO, whose clip silences tokens (`clip`), CISPO's, whose clip bounds what they weigh "
        "(`cispo`), one of `sapo`, `dppo` and `gmpo` (docs/method/family.md), or `module:Class` of your own.",
        hparam=True,
    )
    ratio_level: Literal["token", "sequence"] = setting(
        "token",
        "Whether the ratio to the sampling policy is a token's own or the response's, its geometric mean (GSPO).",
        hparam=True,
    )
    clip_low: float = setting(
        0.2, "The ratio is clipped from below at 1 - clip_low; 1: no bound.", hparam=True, ge=0, le=1
    )
    clip_high: float = setting(0.28, "The ratio is clipped from above at 1 + clip_high.", hparam=True, ge=0)
    dual_clip: float | None = setting(
        None, "Bound on the ratio where the advantage is negative (dual-clip PPO); null: none.", hparam=True, gt=1
    )
    loss_aggregation: Literal["token", "response", "constant"] = setting(
        "token",
        "What the loss is divided by: all response tokens (DAPO), each response's length and then the number "
        "of responses (GRPO), or a constant (Dr. GRPO).",
        hparam=True,
    )
    max_off_policy_steps: int = setting(
        0,
        "Steps by which a policy that samples may be older than the one that is trained. Above 0 rollouts of so many "
        "further steps run while the learners work, and weights change under them; `importance_cap` corrects for it. "
        "Needs remote env runners; a resumed run samples again what was under way.",
        affects=Affects.LEARNERS,
        hparam=True,
        ge=0,
    )
    beta: float = setting(
        0.0, "Weight of the KL penalty against the initial model; 0: no reference model is kept.", hparam=True, ge=0
    )
    kl_in: Literal["loss", "reward"] = setting(
        "loss",
        "Where that penalty is: in the loss, token by token, or in the reward, which a response's sum over its tokens "
        "lowers before advantages are computed. The latter scores a step's responses under both models first.",
        hparam=True,
    )
    kl_estimator: Literal["k1", "k2", "k3"] = setting(
        "k3",
        "How a token estimates the KL: the values of `k1` and `k3` are unbiased; in the loss `k2` has the KL's "
        "expected gradient, `k3` that of the KL the other way round, `k1` none (docs/method/family.md).",
        hparam=True,
    )
    importance_cap: float = setting(
        2.0,
        "Cap of the importance weight that corrects for the inference engine's log-probs; 0: no correction.",
        hparam=True,
        ge=0,
    )
    importance_level: Literal["token", "sequence", "geometric"] = setting(
        "token", "Whether that weight is a token's own, the product over its response, or their geometric mean."
    )
    importance_mode: Literal["truncate", "mask"] = setting(
        "truncate", "Whether a weight above `importance_cap` is set to the cap, or to 0: its tokens are left out."
    )
    importance_floor: float = setting(
        0.0, "With `importance_mode: mask`, weights below this are set to 0 too.", ge=0, lt=1
    )

    @property
    def loss_beta(self) -> float:
        """The weight of the KL penalty in the loss: 0 where it is in the reward."""
        return self.beta if self.kl_in == "loss" else 0.0


class RewardSettings(Settings):
    """A correct response gets `1 + length_bonus * max(0, 1 - length / length_bonus_max_tokens)`, an incorrect one 0.

    Long ones may lose some.
    """

    length_bonus: float = setting(1.0, "Weight of the bonus for short correct responses.", hparam=True, ge=0)
    length_bonus_max_tokens: int = setting(32768, "Length in tokens from which on there is no bonus.", ge=1)
    length_bonus_std_floor: float = setting(
        0.1,
        "Least standard deviation that advantages of a group are divided by in which the bonus alone sets correct "
        "responses apart; 0: answers that differ by few tokens push as hard as right against wrong.",
        ge=0,
    )
    overlong_penalty: float = setting(
        0.0,
        "What a response at the length limit loses, right or wrong (DAPO's soft punishment, 1 of whose points is 0.5 "
        "here); 0: nothing.",
        hparam=True,
        ge=0,
        lt=1,
    )
    overlong_share: float = setting(
        0.2,
        "Share of `env_runners.max_response_tokens`, at its end, over which that penalty grows from 0.",
        gt=0,
        le=1,
    )


class HistorySettings(Settings):
    """What was answered to each query before; kept while a mechanism reads it."""

    capacity: int | None = setting(
        8,
        "Correct responses, and as many incorrect ones, that are kept per query and context, the newest; null: all.",
        ge=1,
    )
    dedupe: bool = setting(True, "Whether a response that is stored already is stored again (false) or not (true).")
    window: int | None = setting(
        None,
        "Newest plain attempts that a query's mean is taken over; null: 4 × `training.group_size`; 0: all.",
        ge=0,
    )


class EvaluationSettings(Settings):
    """Accuracy on held-out problems, before and after training and in between."""

    AFFECTS: ClassVar[Affects] = Affects.EVALUATION

    interval: int = setting(
        0, "Training steps between evaluations; 0: only before and after.", affects=Affects.NOTHING, ge=0
    )
    data: Text | None = setting(
        None, "Held-out problems, named like `environment.data`; null: the environment's own problems."
    )
    columns: dict[str, str] = setting(
        {}, "Columns of the held-out problems; empty: `environment.columns`, or the preset's own."
    )
    samples: int = setting(8, "Responses per problem.", ge=1)
    k: list[Count] = setting(
        [1, 8], "The k of each pass@k to report; none may exceed `samples`.", affects=Affects.MEASUREMENT, min_length=1
    )
    limit: int | None = setting(
        None, "Evaluate on this many problems at most, evenly spaced in the data; null: on all.", ge=1
    )
    temperature: float | None = setting(
        None, "Sampling temperature; null: the one of training.", replaces="env_runners.temperature", gt=0
    )
    top_p: float | None = setting(
        None, "Nucleus of sampling; null: the one of training.", replaces="env_runners.top_p", gt=0, le=1
    )
    reflection: bool = setting(False, "Whether to measure pass@1 after one live reflection turn as well.")

    def environment_arguments(self) -> dict[str, Any]:
        """Constructor arguments that turn the training environment into the held-out one."""
        return {key: value for key, value in (("data", self.data), ("columns", self.columns)) if value}

    def held_out(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The held-out environment's constructor arguments, from those of the training environment.

        The columns of the training problems are not those of data with a preset, which knows its own; and held-out data
        need not have what only training uses (`Query.info`).
        """
        from r3env.data.loading import FIELDS
        from r3env.data.sources import has_preset

        shared = dict(arguments)
        if self.data is not None:
            columns = {} if has_preset(self.data) else shared.pop("columns", {})
            columns = {field: column for field, column in columns.items() if field in FIELDS}
            shared = {k: v for k, v in shared.items() if k != "columns"} | ({"columns": columns} if columns else {})
        return shared | self.environment_arguments()


class BenchmarksSettings(Settings):
    """What is asked, and what is told of the answers."""

    AFFECTS: ClassVar[Affects] = Affects.EVALUATION

    data: dict[str, str] = setting(
        {}, "Problems by a name of yours, each named like `environment.data`: `{aime24: preset:aime24}`."
    )
    columns: dict[str, str] = setting({}, "Columns of the problems where no preset knows them; the same for all data.")
    limits: list[Count] = setting(
        [],
        "Response limits in tokens to tell pass@k for as well: answers that are longer count as cut off there.",
        affects=Affects.MEASUREMENT,
    )
    hard_for: str | None = setting(
        None, "Folder of an earlier evaluation: only problems that were (nearly) never solved in it are asked."
    )
    solved_at_most: int = setting(1, "How many right answers a problem of `hard_for` may have had.", ge=0)
    confidence: bool = setting(
        False,
        "Whether to measure the log-prob of a token behind each answer, and to report how well it tells correct from "
        "incorrect ones, and the majority weighted by it.",
    )
    confidence_token: int | str | None = setting(None, "The token, as `laser.token`.")
    confidence_beta: float = setting(
        0.1, "What a nat of it is worth in an answer's weight.", affects=Affects.MEASUREMENT, gt=0
    )
    confidence_reference: float | None = setting(
        None,
        "Log-prob at which the weight is 0, such as `laser/reference` of a run; null: the lowest of the benchmark's.",
        affects=Affects.MEASUREMENT,
    )


SECTIONS: Mapping[str, type[Settings]] = MappingProxyType(
    {
        "environment": EnvironmentSettings,
        "rl_module": RLModuleSettings,
        "env_runners": EnvRunnerSettings,
        "learners": LearnerSettings,
        "training": TrainingSettings,
        "reward": RewardSettings,
        "history": HistorySettings,
        "evaluation": EvaluationSettings,
    }
)
