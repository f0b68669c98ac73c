"""A server of the installed openenv-core: guess a number in up to three turns. `python -m … PORT SESSIONS [ACTION]`."""

import random
import sys
import time

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    """What the player says."""

    message: str


class GuessWithName(Action):
    """A guess that names its player."""

    guess: str
    player: str


class Move(Action):
    """What is no text."""

    row: int


class Told(Observation):
    """What the game says, and how often it has."""

    text: str
    turn: int


class Game(Environment):
    """A number from 1 to 9."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.secret, self.turn = random.Random(seed).randint(1, 9), 0
        self.top = kwargs.get("top", 9)
        return Told(text=f"Guess my number, from 1 to {self.top}. Game {seed}.", turn=0)

    def step(self, action, timeout_s=None, **kwargs):
        self.turn += 1
        if action.message == "crash":
            raise ZeroDivisionError
        if action.message == "late":
            time.sleep(0.5)
        if action.message == str(self.secret):
            return Told(text="Right.", turn=self.turn, reward=1.0, done=True)
        return Told(text="Wrong.", turn=self.turn, reward=0.0, done=self.turn == 3)

    @property
    def state(self):
        return State(step_count=self.turn)


if __name__ == "__main__":
    action = {"GuessWithName": GuessWithName, "Move": Move}.get(sys.argv[-1], Guess)
    app = create_fastapi_app(Game, action, Told, max_concurrent_envs=int(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
