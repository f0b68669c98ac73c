"""What the driver costs, and how much the engines idle, with up to 256 engines and 64k responses per step.

    python -m benchmarks.scale [--full] [--json FILE]

The driver is the project's own: training step, rollout workers, dispatch and supervisor. Engines are simulated (latency
and sizes of a real one, no model), many to a process, and the learner only takes its time. Modeled time runs faster
than real time, so that a step of an hour takes a minute; CPU seconds of the driver are real. `steady` lines are taken
at real speed in the middle of a step: they also count the calls that a faster clock would leave out.
"""

import argparse
import logging
from collections.abc import Iterator
from typing import Any

import ray
from rich.table import Table

from algorithms.utils.process import prepare
from benchmarks.record import benchmark_parser, show, write_figures
from benchmarks.simulation.engine import Latency, Lengths
from benchmarks.simulation.measure import Figures, measure_real_actors, measure_steady, measure_step
from benchmarks.simulation.runner import Scenario

SLOW_SHARE, SLOWDOWN = 1 / 16, 4.0
# Of the table that is kept. Seconds are modeled ones.
HEADINGS = {
    "name": "scenario",
    "engines": "engines",
    "responses": "responses",
    "step_s": "step, s",
    "cpu_share": "driver CPU, share of the time",
    "collect_us": "collecting, CPU µs per response",
    "after_us": "after that, CPU µs per response",
    "idle": "engines idle",
    "occupancy": "slots in use",
    "heap_gb": "own memory, GB",
    "shared_gb": "shared with the object store, GB",
    "base_gb": "own memory before, GB",
    "store_gb": "object store, GB",
    "both_gb": "both, GB",
    "kb_a_response": "kB per response",
    "stolen": "stolen",
    "requeued": "re-queued",
    "restarts": "restarts",
}
SHARES = ("cpu_share", "idle", "occupancy")


def scenarios(arguments: argparse.Namespace) -> Iterator[Scenario]:
    """Yield the scenarios to measure."""
    latency = Latency(step_s=arguments.step_s, sequence_s=arguments.sequence_s)
    lengths = Lengths(mean=arguments.mean_tokens, sigma=arguments.sigma, limit=arguments.limit)

    def scenario(name: str, engines: int, responses: int, **options: Any) -> Scenario:
        # As fast as the machine can make the payloads: the driver's own clock (calls of 0.1 s and more) is real.
        wall = max(arguments.wall_s, responses * arguments.wall_ms_a_response / 1000)
        return Scenario(
            name,
            engines=engines,
            responses=responses,
            latency=latency,
            lengths=lengths,
            wall_s=wall,
            payload=arguments.payload,
            **options,
        )

    most, each = arguments.responses, arguments.responses // arguments.engines
    for engines in arguments.sweep:
        yield scenario(f"{engines} engines", engines, most)
    count, whole = arguments.engines, arguments.engines * each
    slow = max(1, round(count * SLOW_SHARE))

    def compared(name: str, **options: Any) -> Scenario:
        return scenario(name, count, whole, warm_up=True, **options)

    yield compared("in order", longest_first=False)
    yield compared("longest first")
    yield compared("stragglers", slow=slow, slowdown=SLOWDOWN)
    yield compared("stragglers, no stealing", slow=slow, slowdown=SLOWDOWN, stealing=False)
    yield compared("deaths", deaths=slow)
    yield compared("with a learner", learner_share=0.5)
    for lag in arguments.lags:
        # A learner as slow as the rollouts: neither has time to spare.
        name = f"asynchronous, {lag} steps ahead"
        yield compared(name, learner_share=1.0, lag=lag, steps=arguments.lag_steps, whole=True)


def main() -> None:
    """Measure, print a table, and write the figures where a file is named."""
    prepare()
    arguments = _parser().parse_args()
    if arguments.full:
        arguments.responses, arguments.sweep, arguments.wall_s = 65536, [1, 4, 16, 64, 256], 45.0
        arguments.steady_engines, arguments.real_actors = [64, 256], 16
    ray.init(
        address="local",  # never a cluster that this machine happens to be in
        num_cpus=32,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=int(arguments.store_gb * 2**30),
    )
    figures: list[Figures] = []
    for figure in _measured(arguments):
        figures.append(figure)
        if arguments.json:  # after each line: what was measured stays when the rest is interrupted
            write_figures(arguments.json, [done.as_row() for done in figures])
    tables = [_table(figures[first : first + 5]) for first in range(0, len(figures), 5)]
    show(tables, arguments, [done.as_row() for done in figures], width=110, kept=[_kept(figures)])


def _measured(arguments: argparse.Namespace) -> Iterator[Figures]:
    latency = Latency(step_s=arguments.step_s, sequence_s=arguments.sequence_s)
    lengths = Lengths(mean=arguments.mean_tokens, sigma=arguments.sigma, limit=arguments.limit)
    for scenario in scenarios(arguments):
        if _chosen(arguments, scenario.name):
            yield measure_step(scenario)
    for engines in arguments.steady_engines:
        scenario = Scenario("steady", engines, engines * 512, latency, lengths, wall_s=60.0, payload=arguments.payload)
        if _chosen(arguments, "steady"):
            yield measure_steady(scenario, settle_s=arguments.settle_s, seconds=arguments.steady_s)
    if arguments.real_actors and _chosen(arguments, "real actors"):
        count = arguments.real_actors
        responses = count * arguments.real_responses
        wall_s = max(30.0, responses * arguments.wall_ms_a_response / 1000)
        yield from measure_real_actors(Scenario("real actors", count, responses, latency, lengths, wall_s=wall_s))


def _chosen(arguments: argparse.Namespace, name: str) -> bool:
    return not arguments.only or any(part in name for part in arguments.only)


def _table(figures: list[Figures]) -> Table:
    """Make the table, a column per scenario: there are more figures than scenarios."""
    rows = [figure.as_row() for figure in figures]
    name, *columns = Figures.columns()
    table = Table(name, title="driver and engines", title_justify="left")
    for row in rows:
        table.add_column(_shown(row[name]), justify="right", overflow="fold")
    for column in columns:
        table.add_row(column, *(_shown(row[column]) for row in rows))
    return table


def _kept(figures: list[Figures]) -> Table:
    """Make the table that is kept: a row per scenario, with headings for readers."""
    table = Table(*HEADINGS.values())
    for figure in figures:
        row = figure.as_row()
        row["both_gb"] = row["heap_gb"] + row["store_gb"]
        shares = {name: f"{row[name]:.1%}" for name in SHARES if row[name] is not None}
        table.add_row(*(shares.get(name) or _shown(row[name]) for name in HEADINGS))
    return table


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _parser() -> argparse.ArgumentParser:
    parser = benchmark_parser(
        __doc__,
        full=(False, "64k responses of 1 to 256 engines, 16 real actors: about 20 minutes"),
        engines=(16, "engines of the lines about stragglers, deaths and pipelining"),
        responses=(2048, "responses of a step"),
        sweep=([4, 16, 64], "numbers of engines for the plain lines"),
        lags=([0, 1, 2, 4], "steps ahead of the asynchronous lines"),
        lag_steps=(4, "steps that such a line is measured"),
        settle_s=(25.0, "real seconds before a line at real speed is measured"),
        steady_s=(40.0, "real seconds that such a line is measured"),
        real_actors=(0, "real env runner actors for the control"),
        real_responses=(64, "responses of each of them in a step"),
        step_s=(0.02, "seconds of a decoding step with an empty batch"),
        sequence_s=(0.00032, "seconds that each sequence adds: 2,500 tokens/s at 256"),
        mean_tokens=(8192.0, "mean length of a response"),
        sigma=(0.6, "standard deviation of the lengths' logarithm"),
        limit=(32768, "length at which a response is truncated"),
        payload=(1.0, "share of each response's tokens that is really sent"),
        wall_s=(5.0, "least real seconds of a step"),
        wall_ms_a_response=(0.7, "least real milliseconds of a step per response"),
        store_gb=(6.0, "size of Ray's object store"),
    )
    add = parser.add_argument
    add("--only", nargs="*", default=[], help="run only lines whose names contain one of these")
    add("--steady-engines", type=int, nargs="*", default=[], help="numbers of engines for lines at real speed")
    return parser


if __name__ == "__main__":
    main()
