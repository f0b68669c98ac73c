"""One call in a thread of its own, whose result or exception is asked for later."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """A call that runs while its maker goes on; it does not keep the process alive.

    Args:
        work: what to call.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Wait for the end of the call; returns what it returned, and raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def wait(self, seconds: float) -> None:
        """Wait for the end of the call, however it ends, but not for ever."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # raised again by `result`
            self._error = error
