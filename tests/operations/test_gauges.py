"""What Prometheus gets, and what Grafana makes of it."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from algorithms.train.recorder import WATCHED, gauge_name

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "docs" / "grafana" / "r3-grpo.json").read_text())
# A recorder in a Ray of its own, which stands until its standard input ends.
RECORDING = """
import sys
from pathlib import Path

import ray

from algorithms.train.recorder import Recorder
from algorithms.train.run_directory import RunDirectory

ray.init(
    address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
    _system_config={"metrics_report_interval_ms": 1000},
)
print(ray.nodes()[0]["MetricsExportPort"], flush=True)
recorder = Recorder(RunDirectory.create(Path(sys.argv[1]), "watched", ""), trackers=[])
recorder.record({"step": 1, "reward/mean": 0.25, "rollout/engine": "transformers", "replay/added": 1})
recorder.record({"step": 2, "reward/mean": 0.5, "policy/loss": float("nan")})
recorder.record_evaluation(2, {"eval/pass@1": 0.75})
sys.stdin.read()
"""


@pytest.mark.slow
def test_prometheus_scrapes_the_last_value_of_each_watched_metric(tmp_path):
    prometheus_client = pytest.importorskip("prometheus_client.parser")
    pytest.importorskip("aiohttp_cors")  # ray[default], whose agent exports
    command = [sys.executable, "-c", RECORDING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            port, scraped = int(process.stdout.readline()), {}
            deadline = time.monotonic() + 300
            while "ray_r3_grpo_eval_pass_at_1" not in scraped:
                assert process.poll() is None and time.monotonic() < deadline, scraped
                scraped = watched(prometheus_client, scrape(port))
        finally:
            process.stdin.close()
    assert scraped == {
        "ray_r3_grpo_step": ("watched", 2.0),
        "ray_r3_grpo_reward_mean": ("watched", 0.5),
        "ray_r3_grpo_eval_pass_at_1": ("watched", 0.75),
    }


def scrape(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return answer.read().decode()
    except OSError:  # Ray's agent is not there yet
        return ""


def watched(parser, text):
    samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
    return {s.name: (s.labels["run"], s.value) for s in samples if s.name.startswith("ray_r3_grpo_")}


def test_without_ray_gauges_do_nothing():
    command = "import sys; from algorithms.train.recorder import Gauges; Gauges('run').set({'step': 1})"
    assert subprocess.run([sys.executable, "-c", command], cwd=ROOT).returncode == 0


def test_the_dashboard_draws_each_gauge_once_and_nothing_else():
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    drawn = [re.fullmatch(r'ray_(\w+)\{run=~"\$run"\}', query)[1] for query in queries]
    assert sorted(drawn) == sorted(map(gauge_name, WATCHED))


def test_panels_have_places_and_numbers_of_their_own_and_a_data_source():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "run"}


def test_what_is_watched_is_a_metric_of_the_documentation():
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    named = set(re.findall(r"`([\w/@.]+)`", page))
    assert set(WATCHED) - {"eval/pass@1"} <= named


def test_names_are_those_that_prometheus_takes():
    assert gauge_name("eval/pass@1") == "r3_grpo_eval_pass_at_1"
    names = [gauge_name(tag) for tag in WATCHED]
    assert all(re.fullmatch(r"[a-zA-Z_]\w*", name, re.ASCII) for name in names) and len(set(names)) == len(names)
