"""The settings of what to train on and how: run, environment, optimization, reward, evaluation.

Where it runs is in `algorithms.config.machine`. Neither imports Ray.
"""

from collections.abc import Mapping, Sequence
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
Folder = Annotated[
    str,
    Field(min_length=1, pattern=r"^(?:[^:]|:[^/]|:/[^/])+$"),
    Meaning("a folder of this machine (run.copy_to copies runs to object storage)"),
]
Uri = Annotated[str, Field(pattern=r"^\w[\w.+-]*://"), Meaning("a URI, such as s3://bucket/runs")]
AccessMode = Annotated[
    str,
    Field(pattern=r"^0?7[0-7]{2}$"),
    Meaning("an octal mode of three digits in quotes, the first of them 7"),
]
StopConditions = Annotated[dict[str, Any], Meaning("a mapping from conditions to limits")]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]


class RunSettings(Settings):
    """The run: its folder, length, checkpoints, restarts and trackers."""

    name: FolderName | None = setting(
        None, "Name of the run directory; null: the configuration file's name and the start time."
    )
    dir: Folder = setting("runs", "Folder that holds the run directories.")
    copy_to: Uri | None = setting(
        None,
        "Object storage that each checkpoint is copied to, as Ray's `storage_path` takes it: `s3://bucket/runs` "
        "(docs/operate/run-control.md); null: none.",
    )
    mode: AccessMode = setting(
        "0700",
        "Who may enter a new run directory, as `chmod` takes it; write it in quotes. `0750` lets the group read it.",
    )
    steps: int = setting(100, "Training steps.", ge=1)
    max_generated_tokens: int = setting(
        0,
        "End training with the step that brings the tokens generated since its start, all responses of all steps, to "
        "this number, unless `steps` ends it first; 0: no such limit.",
        ge=0,
    )
    start_from: Text | None = setting(
        None,
        "Start a new run from the weights of this run, checkpoint or adapter (docs/operate/run-control.md); null: from "
        "`rl_module.model`.",
    )
    start_with: list[Literal["optimizer", "history", "queries"]] = setting(
        [], "Further parts of that checkpoint to start with: `queries` is the position in the data."
    )
    stop: StopConditions = setting(
        {},
        "End training with the first step that satisfies a condition: a metric, or `wall_hours`, and the number that "
        'it reaches, or a text such as `"<0.05"` (docs/operate/run-control.md). '
        "`{eval/pass@1: 0.8, wall_hours: 11.5}`.",
    )
    seed: int = setting(
        0,
        "Seed for the order of queries, sampling, replay and reflection.",
        affects=Affects.ANSWERS,
        hparam=True,
        ge=0,
        lt=2**32,
    )
    checkpoint_every: int = setting(50, "Steps between checkpoints; 0: only one, at the end.", ge=0)
    keep_checkpoints: int = setting(3, "Number of newest checkpoints to keep; 0: all.", ge=0)
    best_metric: str | None = setting(
        "eval/pass@1",
        "Also keep the checkpoint with the highest value of this metric, if it was measured at that checkpoint's "
        "step; null: none.",
    )
    restarts: int = setting(
        0,
        "How many times in a row to restart a run that died, without a new checkpoint in between; each restart "
        "resumes from the last checkpoint (docs/operate/restarts.md). 0: never.",
        ge=0,
    )
    trackers: list[Text] = setting(
        ["tensorboard"],
        "Trackers that receive metrics, sample conversations, settings and the summary, in addition to the run "
        "directory's own files: tensorboard, wandb, mlflow, trackio, or `module:Class` of your own "
        "(docs/guides/trackers.md); `[]`: none.",
    )
    log_conversations: int = setting(2, "Sample conversations sent to the trackers per step.", ge=0)
    save_rollouts: bool = setting(True, "Whether to write each step's rollouts to `rollouts/*.parquet`.")
    save_tokens: bool = setting(
        True,
        "Whether these files also hold the text, log-prob and entropy of each token, which `algorithms.report` "
        "shows: about 4 bytes per token.",
    )


class EnvironmentSettings(Settings):
    """The environment. `data` and the settings after it, except `system`, are its constructor arguments."""

    AFFECTS: ClassVar[Affects] = Affects.EVALUATION

    id: Text = setting(
        "r3env/Math-v0",
        "Gymnasium id. `module:Id-v0` imports the module first: name an environment of your own this way, or by its "
        "class, `path/to/folder:Class` or `path/to/file.py:Class`.",
        hparam=True,
    )
    data: Text | None = setting(
        None,
        "Problems: a jsonl, json, parquet or csv file, `embedded:train`, `embedded:heldout`, a preset such as "
        "`preset:gsm8k`, or the id of a data set on the Hugging Face Hub (docs/reference/data.md); null: the "
        "environment's own problems.",
        hparam=True,
    )
    columns: dict[str, str] = setting(
        {},
        "Which column of the data holds each field, where the names differ: `{problem: question}`; dots name a column "
        "within a column, `{answer: reward_model.ground_truth}`. Names other than `problem`, `answer`, `uid` and "
        "`level` keep that column in `Query.info`.",
    )
    answer: Text = setting(
        "box",
        "Where the final answer is read, in r3env/Math-v0, Tools-v0 and Agent-v0: `box`: the last `\\boxed{}`; "
        "`last_number`: the last number, or a box; `after:TEXT`: what follows the last TEXT on its line, such as "
        "`after:####`. The default instruction asks for that form. Passed on if not `box`.",
    )
    system: Text | None = setting(
        None,
        "System message at the start of every conversation, in place of one in the data's rows; null: the rows', the "
        "environment's or the chat template's own, if any.",
    )
    instruction: str | None = setting(
        None,
        "Instruction added to every problem, unless its row holds it, or asks for a box, already; null: the "
        "environment's own.",
    )
    reflection_guidance: str | None = setting(
        None, "Message that asks for a second attempt; null: the environment's own."
    )
    max_turns: int = setting(
        1,
        "Attempts per episode. From 2 on, an incorrect answer gets feedback and another attempt within the episode; "
        "1: the environment's own default.",
        ge=1,
    )
    grading_timeout_s: float = setting(5.0, "Time limit for grading one answer, in seconds. Passed on if not 5.", gt=0)
    options: dict[str, Any] = setting(
        {},
        "Further constructor arguments: `reward: my_module:my_function` for r3env/Function-v0, or those of an "
        "environment of your own.",
    )

    @classmethod
    def argument_names(cls) -> tuple[str, ...]:
        """Return the settings that are constructor arguments of the environment."""
        return tuple(name for name in cls.model_fields if name not in ("id", "system", "options"))

    def constructor_arguments(self) -> dict[str, Any]:
        """Return the arguments for `gymnasium.make` that differ from the default: not every environment takes all."""
        fields = type(self).model_fields
        named = {name: getattr(self, name) for name in self.argument_names()}
        return {name: value for name, value in named.items() if value != default_of(fields[name])} | self.options

    @classmethod
    def from_constructor_arguments(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that give these constructor arguments (RLlib's `env_config`)."""
        named = {key: arguments[key] for key in cls.argument_names() if key in arguments}
        options = {key: value for key, value in arguments.items() if key not in named}
        return named | ({"options": options} if options else {})


class TrainingSettings(Settings):
    """The optimization. A training step samples `queries_per_step` × `group_size` responses."""

    lr: float = setting(1e-6, "Learning rate of AdamW after the warm-up.", hparam=True, ge=0)
    warmup_steps: int = setting(
        0, "Optimizer steps over which the learning rate rises linearly from 0.", hparam=True, ge=0
    )
    lr_schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant",
        "The learning rate after the warm-up: it stays, or falls to `lr_min_share` of itself along a line or half a "
        "cosine.",
        hparam=True,
    )
    lr_min_share: float = setting(
        0.0, "Share of `lr` that the schedule ends at; it stays there afterwards.", hparam=True, ge=0, le=1
    )
    lr_decay_steps: int | None = setting(
        None,
        "Training steps, the warm-up's included, after which the schedule is at its end; null: `run.steps`. A resumed "
        "run with more `run.steps` continues on the longer schedule.",
        ge=1,
    )
    weight_decay: float = setting(0.0, "Weight decay of AdamW.", hparam=True, ge=0)
    grad_clip: float = setting(1.0, "Maximum norm of the gradient; 0: no clipping.", ge=0)
    max_skipped_steps: int = setting(
        3,
        "Optimizer steps in a row that may be skipped because the gradient is not finite; of several passes, those of "
        "the first. One more ends the run and writes its batch to `skipped_batch.npz`. 0: no limit.",
        ge=0,
    )
    group_size: int = setting(8, "Responses per prompt (G). Their mean reward is the baseline.", hparam=True, ge=2)
    queries_per_step: int = setting(16, "Queries per training step.", hparam=True, ge=1)
    minibatches: int = setting(
        1, "Optimizer steps per training step; must divide the number of responses.", hparam=True, ge=1
    )
    passes: int = setting(
        1,
        "Passes over a step's responses, each with `minibatches` optimizer steps and a shuffle of its own. Ratios stay "
        "those to the policy before the first pass.",
        hparam=True,
        ge=1,
    )
    mechanisms: list[Text] = setting(
        [],
        "Further methods, each a name from the library or `module:Class` of your own (docs/method/extend.md): "
        "`[my_package.hints:Hints]`. Each has its own section of settings.",
    )
    query_sampler: Text = setting(
        "epoch",
        "How queries are chosen: `epoch` (a new shuffle each epoch), one of `posterior`, `greso`, `vas`, `window`, "
        "`adcl` and `exgrpo` (docs/method/family.md), or `module:Class` of your own.",
    )
    advantage: Text = setting(
        "std",
        "How a group's rewards become advantages: distance from the mean in standard deviations (`std`, GRPO), "
        "distance from the mean (`mean`, Dr. GRPO), distance from the mean of the others (`leave_one_out`, RLOO), "
        "one of `ngrpo`, `w_reinforce`, `psr`, `nsr`, `rl_zvp` and `hgpo` (docs/method/family.md), or `module:Class` "
        "of your own.",
        hparam=True,
    )
    max_resample_rounds: int = setting(
        0,
        "Dynamic sampling (DAPO): how many times per step further queries may replace those whose responses are all "
        "correct or all incorrect; 0: off.",
        hparam=True,
        ge=0,
    )
    objective: Text = setting(
        "clip",
        "The objective: PPO's, where the clip removes a token's gradient (`clip`), CISPO's, where the clip bounds a "
        "token's weight (`cispo`), one of `sapo`, `dppo`, `gmpo` and `ma_rlhf` (docs/method/family.md), or "
        "`module:Class` of your own.",
        hparam=True,
    )
    ratio_level: Literal["token", "sequence"] = setting(
        "token",
        "Whether the ratio to the sampling policy is computed per token, or per response as the geometric mean over "
        "its tokens (GSPO).",
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
        "What divides the loss: all response tokens (DAPO), each response's length and then the number of responses "
        "(GRPO), or a constant (Dr. GRPO).",
        hparam=True,
    )
    mask_truncated: bool = setting(
        False,
        "Whether to leave truncated responses out of the loss, replayed ones too (DAPO's overlong filtering). Their "
        "rewards still count in the mean and the deviation of their group.",
        hparam=True,
    )
    max_off_policy_steps: int = setting(
        0,
        "Maximum number of steps by which the sampling policy may be older than the trained one. Above 0, rollouts "
        "for that many further steps run while the learners work, and weights change during these rollouts; "
        "`importance_cap` corrects for it. Needs remote env runners. A resumed run samples unfinished rollouts again.",
        affects=Affects.LEARNERS,
        hparam=True,
        ge=0,
    )
    beta: float = setting(
        0.0,
        "Weight of the KL penalty against the initial model; 0: no penalty, and no reference model is kept.",
        hparam=True,
        ge=0,
    )
    kl_in: Literal["loss", "reward"] = setting(
        "loss",
        "Where the KL penalty applies: in the loss, per token, or in the reward, where the sum over a response's "
        "tokens is subtracted before advantages are computed. The latter scores a step's responses under both models "
        "first.",
        hparam=True,
    )
    kl_estimator: Literal["k1", "k2", "k3"] = setting(
        "k3",
        "How the KL of a token is estimated. The values of `k1` and `k3` are unbiased. In the loss, `k2` has the "
        "KL's gradient in expectation, `k3` the gradient of the KL with its arguments swapped, `k1` none "
        "(docs/method/family.md).",
        hparam=True,
    )
    importance_cap: float = setting(
        2.0,
        "Cap of the importance weight that corrects for the inference engine's log-probs; 0: no correction.",
        hparam=True,
        ge=0,
    )
    importance_level: Literal["token", "sequence", "geometric"] = setting(
        "token",
        "Whether the importance weight is a token's own, the product over its response, or the geometric mean "
        "over its response.",
    )
    importance_mode: Literal["truncate", "mask"] = setting(
        "truncate", "Whether a weight above `importance_cap` is set to the cap, or to 0, which leaves its tokens out."
    )
    importance_floor: float = setting(
        0.0, "With `importance_mode: mask`, weights below this are also set to 0.", ge=0, lt=1
    )

    @property
    def loss_beta(self) -> float:
        """The weight of the KL penalty in the loss: 0 where it is in the reward."""
        return self.beta if self.kl_in == "loss" else 0.0


class RewardSettings(Settings):
    """A correct response's reward is multiplied by `1 + length_bonus * max(0, 1 - length / length_bonus_max_tokens)`.

    Other responses get the environment's, which is 0 where it gives no partial credit. One near the length limit loses
    up to `overlong_penalty`.
    """

    length_bonus: float = setting(
        0.0, "Weight of the bonus for short correct responses; 1 with algorithms.r3_grpo.", hparam=True, ge=0
    )
    length_bonus_max_tokens: int = setting(
        32768, "Length in tokens, of all turns together, from which there is no bonus.", ge=1
    )
    length_bonus_std_floor: float = setting(
        0.1,
        "Minimum standard deviation that divides the advantages of a group in which only the bonus separates correct "
        "responses; 0: a difference of a few tokens weighs as much as correct against incorrect.",
        ge=0,
    )
    overlong_penalty: float = setting(
        0.0,
        "What a response at the length limit loses, correct or incorrect (DAPO's soft overlong punishment, 1 of "
        "whose points is 0.5 here); of several turns the longest one counts, as the limit is each turn's. 0: nothing.",
        hparam=True,
        ge=0,
        lt=1,
    )
    overlong_share: float = setting(
        0.2,
        "The penalty grows from 0 over this share of `env_runners.max_response_tokens`, at its end.",
        gt=0,
        le=1,
    )


class HistorySettings(Settings):
    """Earlier responses to each query; kept while a mechanism reads them."""

    capacity: int | None = setting(
        8,
        "Newest correct responses, and as many incorrect ones, to keep per query and context; null: all.",
        ge=1,
    )
    dedupe: bool = setting(
        True, "Whether to skip a response that its context has stored already; false: store it again."
    )
    window: int | None = setting(
        None,
        "Newest plain attempts that a query's mean is computed from; null: 4 × `training.group_size`; 0: all.",
        ge=0,
    )


class EvaluationSettings(Settings):
    """Accuracy on held-out problems, before and after training and in between."""

    AFFECTS: ClassVar[Affects] = Affects.EVALUATION

    interval: int = setting(
        0,
        "Training steps between evaluations; 0: evaluate only before and after training.",
        affects=Affects.NOTHING,
        ge=0,
    )
    data: Text | dict[str, Text] | None = setting(
        None,
        "Held-out problems, named like `environment.data`, of a preset its test split where it has one; for a mixture "
        "also by part, without the parts that are not named: `{math: preset:math500}`; null: the environment's own "
        "problems.",
    )
    columns: dict[str, str] = setting(
        {}, "Columns of the held-out problems; empty: those in `environment.columns`, or the preset's own."
    )
    samples: int = setting(8, "Responses per problem.", ge=1)
    k: list[Count] = setting(
        [1, 8], "The k of each pass@k to report; at most `samples`.", affects=Affects.MEASUREMENT, min_length=1
    )
    limit: int | None = setting(
        None, "Maximum number of problems to evaluate on, evenly spaced in the data; null: all.", ge=1
    )
    temperature: float | None = setting(
        None,
        "Sampling temperature; null: the training temperature; 0: greedy decoding, with `samples: 1` and `k: [1]`.",
        replaces="env_runners.temperature",
        ge=0,
    )
    top_p: float = setting(
        1.0,
        "Nucleus sampling: sample from the smallest set of tokens with this probability. Training samples the whole "
        "distribution, as its learner computes it.",
        gt=0,
        le=1,
    )
    top_k: int = setting(0, "Sample from this many most likely tokens; 0: all, as training does.", ge=0)
    min_p: float = setting(
        0.0,
        "Sample from tokens of at least this share of the most likely one's probability; 0: all, as training does.",
        ge=0,
        le=1,
    )
    stop: list[Text] | None = setting(
        None, "Texts that end a response; null: those of training.", replaces="env_runners.stop"
    )
    reflection: bool = setting(False, "Whether to also measure pass@1 after one live reflection turn.")

    def environment_arguments(self) -> dict[str, Any]:
        """Return the constructor arguments that turn the training environment into the held-out one.

        Problems by part are those of the parts' own arguments, see `held_out`.
        """
        from r3env.data.sources import evaluation_source

        data = evaluation_source(self.data) if isinstance(self.data, str) else None
        return {key: value for key, value in (("data", data), ("columns", self.columns)) if value}

    def held_out(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the held-out environment's constructor arguments, from those of the training environment.

        The columns of the training problems are not those of data with a preset, which knows its own; and held-out data
        need not have what only training uses (`Query.info`).
        """
        from r3env.data.rows import FIELDS
        from r3env.data.sources import has_preset

        shared = dict(arguments)
        if isinstance(self.data, dict):
            common = {"columns": shared.pop("columns")} if "columns" in shared else {}
            shared["environments"] = {}
            for name, source in self.data.items():
                part, own = arguments["environments"][name], EvaluationSettings(data=source, columns=self.columns)
                options = own.held_out({**common, **(part.get("options") or {})})
                shared["environments"][name] = {**part, "options": options}
            return shared
        if self.data is not None:
            columns = {} if has_preset(self.data) else shared.pop("columns", {})
            columns = {field: column for field, column in columns.items() if field in FIELDS}
            shared = {k: v for k, v in shared.items() if k != "columns"} | ({"columns": columns} if columns else {})
        return shared | self.environment_arguments()


class BenchmarksSettings(Settings):
    """The problems of an evaluation (`python -m algorithms.evaluate`), and what to report of the answers."""

    AFFECTS: ClassVar[Affects] = Affects.EVALUATION

    data: dict[str, str] = setting(
        {},
        "Problems under names of your choice, each source written like `evaluation.data`: `{aime24: preset:aime24}`.",
    )
    columns: dict[str, str] = setting(
        {}, "Columns of the problems, where no preset defines them; the same for all data."
    )
    limits: list[Count] = setting(
        [],
        "Further response limits, in tokens, to report pass@k for: longer answers count as truncated there.",
        affects=Affects.MEASUREMENT,
    )
    hard_for: str | None = setting(
        None, "Folder of an earlier evaluation: evaluate only problems with at most one correct answer there."
    )
    confidence: bool = setting(
        False,
        "Whether to measure the log-prob of a token after each answer, and to report how well it separates correct "
        "from incorrect answers, and the majority vote weighted by it.",
    )
    confidence_token: int | str | None = setting(None, "The token, as in `laser.token`.")
    confidence_beta: float = setting(
        0.1, "Weight of a nat of this log-prob in an answer's vote.", affects=Affects.MEASUREMENT, gt=0
    )
    confidence_reference: float | None = setting(
        None,
        "Log-prob at which the weight is 0, such as `laser/reference` of a run; null: the mean over the "
        "benchmark's answers.",
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

# What people set most: `--help` shows these, `--help all` every setting.
COMMON: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "run": ["name", "dir", "steps", "seed", "checkpoint_every", "restarts", "trackers"],
        "environment": ["id", "data", "columns", "answer", "max_turns", "options"],
        "rl_module": ["model", "dtype", "gradient_checkpointing", "lora_rank"],
        "env_runners": [
            "engine",
            "num_env_runners",
            "num_gpus_per_env_runner",
            "max_response_tokens",
            "temperature",
            "tensor_parallel_size",
            "gpu_memory_utilization",
        ],
        "learners": ["num_learners", "num_gpus_per_learner", "token_budget", "sharding"],
        "training": [
            "lr",
            "group_size",
            "queries_per_step",
            "minibatches",
            "mechanisms",
            "beta",
            "max_off_policy_steps",
        ],
        "reward": ["length_bonus"],
        "evaluation": ["data", "interval", "samples", "limit"],
    }
)
