"""Search the learning rate with Ray Tune: `python -m examples.tune_learning_rate`.

Every trial is a training run of the quickstart. A scheduler stops those that are behind at an evaluation, and the
results hold every metric of a step.
"""

import argparse
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from algorithms.config.loading import load
from algorithms.r3_grpo.algorithm import R3GRPO
from algorithms.r3_grpo.config import R3GRPOConfig

STEP = "training_iteration"
# RLlib puts what `R3GRPO.evaluate` returns under `evaluation`.
PASS_AT_1 = "evaluation/pass@1"
COLUMNS = ["config/lr", STEP, PASS_AT_1, "reward/mean", "throughput/generated_tokens"]


class Lines(tune.Callback):
    """Prints a line an evaluation; Tune's own tables list all of RLlib's settings."""

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        """Print where the trial is."""
        if "evaluation" not in result:
            return
        done = sum(one.is_finished() for one in trials)
        accuracy = result["evaluation"]["pass@1"]
        print(f"{done} of {len(trials)} done; lr {result['config']['lr']:.1e}, step {result[STEP]}: {accuracy:.3f}")


def search(
    rates: Any, *, settings: list[str], trials: int, steps: int, at_a_time: int | None = None, folder: Path
) -> tune.ResultGrid:
    """Train trials with different learning rates; return Tune's results.

    Args:
        rates: search space of the learning rate.
        settings: of the quickstart, as the command takes them.
        trials: how many draws from the space.
        steps: training steps of a trial that is not stopped.
        at_a_time: trials; as many as the machine has cores for if None.
        folder: gets Tune's files.
    """
    config, run = load("configs/quickstart.yaml", settings, R3GRPOConfig)
    first_rung = config.evaluation_interval or steps
    tuner = tune.Tuner(
        R3GRPO,
        param_space=config.training(lr=rates).debugging(seed=run.seed),  # type: ignore[arg-type]  # RLlib's own way
        tune_config=tune.TuneConfig(
            metric=PASS_AT_1,
            mode="max",
            num_samples=trials,
            max_concurrent_trials=at_a_time,
            scheduler=ASHAScheduler(time_attr=STEP, max_t=steps, grace_period=first_rung, reduction_factor=2),
        ),
        run_config=tune.RunConfig(
            name="learning_rate", storage_path=str(folder.resolve()), callbacks=[Lines()], verbose=0
        ),
    )
    return tuner.fit()


def main() -> None:
    """Search, and print the best learning rate first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="section.key=value", help="of configs/quickstart.yaml")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("runs/tune"))
    given = parser.parse_args()
    rates = tune.loguniform(2e-5, 1e-3)
    found = search(rates, settings=given.settings, trials=given.trials, steps=given.steps, folder=given.out)
    print(found.get_dataframe()[COLUMNS].sort_values(PASS_AT_1, ascending=False).to_string(index=False))


if __name__ == "__main__":
    main()
