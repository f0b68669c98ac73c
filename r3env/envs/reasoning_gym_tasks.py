"""The generated tasks of reasoning-gym as queries.

The library is imported when a task is made: it is an optional extra.
"""

import dataclasses
import json
import pickle
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from r3env.core import Queries, Query
from r3env.spelling import nearest

_ENTRIES_KEPT = 1024
# The one task that has nothing to generate by default: it is a mixture of others.
_COMPOSITE = "composite"
_COMPOSITE_DEFAULT = [{"name": "chain_sum"}, {"name": "leg_counting"}]


@dataclass(frozen=True)
class Task:
    """One generated task: its name, how much of it, and how hard.

    Args:
        name: As reasoning-gym registers it.
        seed: Which problems: problem `i` depends on the seed, `i`, the level and the configuration.
        size: How many problems.
        level: Level of the task's curriculum, from 0; None for the task's own defaults. Above the highest level of
            an attribute its highest counts.
        config: JSON of further fields of the task's configuration, which override the level's.
    """

    name: str
    seed: int = 0
    size: int = 500
    level: int | None = None
    config: str = "{}"

    @property
    def prefix(self) -> str:
        """The prefix of its problems' uids."""
        level = "" if self.level is None else f"level{self.level}/"
        return f"{self.name}/{level}{self.seed}"

    def dataset(self) -> Any:
        """Return the library's data set.

        Raises:
            ValueError: The library is missing, or it does not know the task, the level or a field.
        """
        factory = _library().factory
        if self.name not in factory.DATASETS:
            raise ValueError(f"reasoning-gym has no task {self.name!r}; the nearest is {self._nearest_task()}")
        dataset_class, config_class = factory.DATASETS[self.name]
        try:
            config = self._configuration(config_class)
            if hasattr(config, "validate"):
                config.validate()
            return dataset_class(config)
        except (AssertionError, TypeError, ValueError) as error:
            level = "" if self.level is None else f", level {self.level}"
            reason = " ".join(str(error).split()) or "its configuration is invalid"
            raise ValueError(f"reasoning-gym task {self.name!r}{level}: {reason}") from error

    def _configuration(self, config_class: type) -> Any:
        given = json.loads(self.config)
        known = [field.name for field in dataclasses.fields(config_class)]
        for key in given:
            if key not in known:
                raise ValueError(f"its configuration has no field {key!r}; the nearest is {nearest(key, known)}")
        given = {**given, "seed": self.seed, "size": self.size}
        if self.name == _COMPOSITE:
            given["datasets"] = _composite_parts(given.get("datasets", _COMPOSITE_DEFAULT))
        if self.level is None:
            return config_class(**given)
        factory = _library().factory
        if not factory.has_curriculum(self.name):
            raise ValueError("it has no curriculum; leave level out")
        curriculum = factory.create_curriculum(self.name)
        curriculum.set_global_level(self.level)
        return dataclasses.replace(curriculum.generate_configuration(), **given)

    def _nearest_task(self) -> str:
        return nearest(self.name, _library().factory.DATASETS)


class GeneratedQueries(Queries):
    """The problems of some tasks, each generated when it is needed; safe for any number of threads."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        """Make the tasks' data sets.

        Raises:
            ValueError: See `Task.dataset`; or there are no tasks, or one is named twice.
        """
        prefixes = [task.prefix for task in tasks]
        if not tasks or len(set(prefixes)) < len(prefixes):
            raise ValueError(f"name one or more tasks, each once; these are {', '.join(prefixes) or 'none'}")
        self._tasks = dict(zip(prefixes, tasks, strict=True))
        self._datasets = {task.prefix: task.dataset() for task in tasks}
        self._configs = {prefix: pickle.dumps(dataset.config) for prefix, dataset in self._datasets.items()}
        self._entries: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def uid_at(self, index: int) -> str:
        """Return the uid of the problem at this place of the order."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        for prefix, task in self._tasks.items():
            if index < task.size:
                return f"{prefix}/{index}"
            index -= task.size
        raise IndexError(index)

    def __len__(self) -> int:
        return sum(task.size for task in self._tasks.values())

    def __getitem__(self, uid: str) -> Query:
        prefix, _ = self._place(uid)
        entry = self.entry(uid)
        answer, level = entry["answer"], self._tasks[prefix].level
        return Query(uid, entry["question"], "" if answer is None else str(answer), "" if level is None else str(level))

    def entry(self, uid: str) -> dict[str, Any]:
        """Return what the library generated for this uid: `question`, `answer`, `metadata`.

        Raises:
            KeyError: There is no such problem.
        """
        prefix, index = self._place(uid)
        with self._lock:  # not every generator may run twice at once
            if uid not in self._entries:
                self._entries[uid] = self._datasets[prefix][index]
                if len(self._entries) > _ENTRIES_KEPT:
                    self._entries.popitem(last=False)
            return self._entries[uid]

    def scorer_arguments(self, uid: str) -> tuple[str, bytes, dict[str, Any]]:
        """Return the arguments of `r3env.envs.reasoning_gym_scoring.make_scorer` for this problem."""
        prefix, _ = self._place(uid)
        return self._tasks[prefix].name, self._configs[prefix], self.entry(uid)

    def _place(self, uid: str) -> tuple[str, int]:
        prefix, _, number = uid.rpartition("/")
        task = self._tasks.get(prefix)
        if task is None or not (number.isascii() and number.isdecimal()) or str(int(number)) != number:
            raise KeyError(uid)
        if int(number) >= task.size:
            raise KeyError(uid)
        return prefix, int(number)


def _composite_parts(parts: list[Mapping[str, Any]]) -> list[Any]:
    from reasoning_gym.composite import DatasetSpec

    return [DatasetSpec(part["name"], part.get("weight", 1.0), part.get("config", {})) for part in parts]


def _library() -> Any:
    try:
        import reasoning_gym
        import reasoning_gym.factory
    except ModuleNotFoundError as error:
        fix = "pip install -e '.[reasoning-gym]'"
        raise ValueError(f"r3env/ReasoningGym-v0 needs the package {error.name}; fix: {fix}") from None
    return reasoning_gym
