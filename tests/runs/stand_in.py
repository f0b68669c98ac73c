"""Plays the algorithm where a run's folder is what is tested."""

import json
from types import SimpleNamespace

from algorithms.config.placement import TransferKind
from algorithms.grpo.types import StepBatch
from algorithms.history.database import HistoryDatabase
from algorithms.train.manifest import write_manifest


class StandIn:
    """Makes steps in which nothing happens but an entry in the history; `seen` is called before each of them."""

    steps_done = generated_tokens = 0
    evaluated_at = tokenizer = on_evaluation_progress = None
    in_step, evaluating, can_be_saved = False, False, True
    seen = staticmethod(lambda: None)
    accuracy, reward = 0.25, 0.5
    rollout_workers = SimpleNamespace(weight_transfer=TransferKind.IN_PROCESS)

    def __init__(self, config):
        self.config = config

    def keep_state_in(self, folder):
        self.history = HistoryDatabase(folder / "history.sqlite")

    def prove_learner(self):
        """There is none."""

    def start_again(self):
        self.history.rollback(0)

    def uids(self, split):
        return ["a"]

    def evaluate(self):
        type(self).seen()
        metrics = {"pass@1": type(self).accuracy}
        self.evaluation = SimpleNamespace(
            metrics=lambda: metrics, share_correct=lambda: {"a": 1.0}, uids=[], answers=[]
        )
        self.environments = dict.fromkeys(["training", "evaluation"], SimpleNamespace(unwrapped=self))
        self.queries = {}
        self.evaluated_at = self.steps_done

    def train(self):
        type(self).seen()
        self.steps_done += 1
        self.batch = StepBatch(self.steps_done, record={"reward/mean": self.reward})
        self.history.record("a", True, 1.0)
        self.history.commit()
        return {}

    def prune(self, state):
        pass

    def abandon_rollouts(self):
        """Nothing runs ahead."""

    def stop(self):
        self.history.close()


def save(algo, folder, metrics):
    path = folder / f"step_{algo.steps_done:06d}"
    path.mkdir()
    (path / "state.json").write_text(json.dumps({"steps_done": algo.steps_done, "mark": algo.history.savepoint()}))
    write_manifest(path)


def load(algo, path):
    state = json.loads((path / "state.json").read_text())
    algo.history.rollback(state["mark"])
    algo.steps_done = state["steps_done"]


def content(run):
    """Every file of a run, but links and the lock's."""
    files = (path for path in run.path.rglob("*") if path.is_file() and not path.is_symlink())
    return {path: path.read_bytes() for path in files if path.name != ".lock"}
