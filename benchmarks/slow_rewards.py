"""What a slow judge costs a step: the quickstart with an `async` reward that waits, beside the quickstart as it is.

    python -m benchmarks.slow_rewards                 # 2 minutes
    python -m benchmarks.slow_rewards --forks         # the same function in forks, as without reward actors

Both sides sample the same responses (the learning rate is 0) and take their steps in turn. The wait itself is one time
`--wait-s`: all responses of a step can be judged at once. `ratio` is the step with the judge by the step without it and
that wait: 1 where nothing else is lost.
"""

import argparse
import asyncio
import json
import re
import statistics
import time
from typing import Any

import ray
from rich.table import Table

from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.ray_session import start_ray
from benchmarks.record import add_record_option, show

WAIT_S = 0.3
_BOX = re.compile(r"\\boxed\{([^{}]*)\}")


async def judge(response: str, answer: str, wait_s: float = WAIT_S) -> bool:
    """Return whether the last box holds the answer, as a service that takes `wait_s` would."""
    await asyncio.sleep(wait_s)
    return _BOX.findall(response)[-1:] == [answer]


def build(*settings: str) -> Any:
    """Build GRPO with the quickstart's settings and these."""
    config, _ = load(None, ["training.lr=0", "run.seed=1", *settings], GRPOConfig)
    start_ray(config)
    return config.build_algo()


def step_seconds(algorithm: Any) -> float:
    """Take a training step; return its wall time."""
    started = time.perf_counter()
    algorithm.training_step()
    return time.perf_counter() - started


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15, help="of each side, after two that do not count")
    parser.add_argument("--forks", action="store_true", help="call the function in forks")
    parser.add_argument("--json", metavar="FILE", help="write the ratio there")
    add_record_option(parser)
    arguments = parser.parse_args()
    judged = [
        "environment.data=embedded:train",
        "environment.id=r3env/Function-v0",
        f"environment.options={{reward: '{__name__ if __name__ != '__main__' else 'benchmarks.slow_rewards'}:judge'}}",
        f"env_runners.reward_actor.replicas={0 if arguments.forks else 1}",
    ]
    sides = {"no judge": build(), "judge": build(*judged, "evaluation.data=embedded:heldout")}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(arguments.steps + 2):
        for name, algorithm in sides.items():
            seconds[name].append(step_seconds(algorithm))
    for algorithm in sides.values():
        algorithm.stop()
    ray.shutdown()
    plain, slow = (statistics.median(each[2:]) for each in seconds.values())
    ratio = slow / (plain + WAIT_S)
    table = Table(
        title=f"Median of {arguments.steps} quickstart steps, a judge that waits {WAIT_S:g} s", title_justify="left"
    )
    for column in ("seconds without judge", "seconds with judge", "ratio"):
        table.add_column(column, justify="right")
    table.add_row(f"{plain:.2f}", f"{slow:.2f}", f"{ratio:.2f}")
    show([table], arguments.record)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"plain_s": plain, "judged_s": slow, "ratio": ratio}, file)


if __name__ == "__main__":
    main()
