"""Ray nodes as processes of their own, started by `ray start` and ended by their process ids."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.free_ports import free_ports

READY_S = 300.0
# How long a node waits for parts of its own, in whole seconds.
RAY_WAITS = (
    "RAY_gcs_server_port_wait_time_s",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S",
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT",
)
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def surroundings() -> dict[str, str]:
    """Environment variables of a shell in which the virtual environment is active and no Ray is known."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    waiting = dict.fromkeys(RAY_WAITS, str(int(READY_S)))
    return kept | {"PATH": path, "RAY_USAGE_STATS_ENABLED": "0"} | waiting | TOKEN


@dataclass
class RayNode:
    """A node: `ray start --block`, which ends what it started when it is told to end.

    Args:
        cpus: that Ray may give away on it.
        head: the head's address for a further node, None for the head itself.
        variables: the node's environment.
    """

    cpus: int
    head: str | None = None
    variables: Mapping[str, str] = field(default_factory=surroundings)
    folder: Path = field(init=False)
    process: "subprocess.Popen[bytes]" = field(init=False)

    def __post_init__(self) -> None:
        # Unix sockets lie in it, whose paths have to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
        gcs, self.dashboard_port, listen, grpc, metrics, runtime_env, client = free_ports(7)
        self.address = self.head or f"127.0.0.1:{gcs}"
        role = ["--address", self.head] if self.head else ["--head", "--port", str(gcs)]
        if self.head is None:
            role += ["--dashboard-port", str(self.dashboard_port), "--ray-client-server-port", str(client)]
        command = ["ray", "start", "--block", *role, "--node-ip-address", "127.0.0.1"]
        command += ["--num-cpus", str(self.cpus), "--object-store-memory", "150000000"]
        command += ["--temp-dir", str(self.folder), "--disable-usage-stats"]
        command += ["--dashboard-agent-listen-port", str(listen), "--dashboard-agent-grpc-port", str(grpc)]
        command += ["--metrics-export-port", str(metrics), "--runtime-env-agent-port", str(runtime_env)]
        with (self.folder / "start.log").open("wb") as log:
            self.process = subprocess.Popen(command, env=dict(self.variables), stdout=log, stderr=subprocess.STDOUT)

    @property
    def dashboard(self) -> str:
        """Address that jobs are submitted to."""
        return f"http://127.0.0.1:{self.dashboard_port}"

    def unpacked(self) -> Path:
        """The working directory that a job's upload became on this node."""
        packages = self.folder.glob("session_2*/runtime_resources/working_dir_files/_ray_pkg_*")
        (folder,) = (path for path in packages if path.is_dir())
        return folder

    def stop(self) -> None:
        """End this node's processes, and nothing else."""
        ours = self._processes()
        self.process.terminate()
        _, alive = psutil.wait_procs(ours, timeout=15)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            start = psutil.Process(self.process.pid)
            return [start, *start.children(recursive=True)]
        # It failed, and what it had started by then goes by the name of the node's folder alone.
        found = [each for each in psutil.process_iter(["cmdline"]) if each.pid != os.getpid()]
        return [each for each in found if str(self.folder) in " ".join(each.info["cmdline"] or ())]


def start_node(cpus: int, head: RayNode | None = None) -> RayNode:
    """A node that is up, of a cluster that has just its head otherwise, or the head itself.

    Somebody else may take a port between its choice and its use, so one that does not come up has more attempts.
    """
    for attempts_left in (2, 1, 0):
        node = RayNode(cpus, head.address if head else None)
        try:
            wait_for_nodes(head or node, 2 if head else 1, node)
            return node
        except BaseException as error:
            node.stop()
            if not attempts_left or not isinstance(error, RuntimeError):
                raise
    raise AssertionError


def get_json(url: str) -> dict:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN['RAY_AUTH_TOKEN']}"})
    with urllib.request.urlopen(request, timeout=READY_S) as answer:
        return json.load(answer)


def wait_for_nodes(head: RayNode, count: int, newest: RayNode) -> None:
    """Wait until the head answers and knows of so many nodes, job agents included."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            if len(alive_nodes(head)) == count:
                return
        except OSError:  # nobody listens yet
            pass
        if newest.process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{count} nodes did not come up: {(newest.folder / 'start.log').read_text()[-2000:]}")
        time.sleep(0.3)


def alive_nodes(head: RayNode) -> list[dict]:
    return [node for node in _state(head, "nodes") if node["state"] == "ALIVE"]


def actor_nodes(head: RayNode, class_name: str) -> list[str]:
    """Node ids on which actors of a class lived or live."""
    return [actor["node_id"] for actor in _state(head, "actors") if actor["class_name"].endswith(class_name)]


def _state(head: RayNode, what: str) -> list[dict]:
    return get_json(f"{head.dashboard}/api/v0/{what}?detail=1&limit=1000")["data"]["result"]["result"]
