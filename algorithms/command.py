"""The console command: `r3-grpo …` is `python -m algorithms.r3_grpo …`, `r3-grpo evaluate …` the evaluation."""

import os
import sys
from typing import NoReturn

from r3env.streams import guard_streams

# The first word, if it is one of these, and the module that it starts.
COMMANDS = {
    "train": "algorithms.r3_grpo",
    "grpo": "algorithms.grpo",
    "sft": "algorithms.sft",
    "evaluate": "algorithms.evaluate",
    "report": "algorithms.report",
    "export": "algorithms.export",
    "inspect": "r3env.inspect",
    "check-data": "r3env.check",
}
_HELP = """\
r3-grpo [train] …   python -m algorithms.r3_grpo …, R³-GRPO; without arguments: the quickstart
{others}
r3-grpo --version   the installed version

r3-grpo WORD --help shows what each takes, r3-grpo train --help all every setting.
"""


def module_and_arguments(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the module that `r3-grpo` starts, and its arguments."""
    if arguments and arguments[0] in COMMANDS:
        return COMMANDS[arguments[0]], arguments[1:]
    return COMMANDS["train"], arguments


def main() -> NoReturn:
    """Replace this process with that of a command, with the working folder on its path, as with `python -m`."""
    guard_streams()
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        from importlib.metadata import version

        print(version("r3-grpo"))
        sys.exit(0)
    if arguments in (["--help"], ["-h"]):
        others = [f"r3-grpo {word:<11} python -m {module} …" for word, module in COMMANDS.items() if word != "train"]
        print(_HELP.format(others="\n".join(others)), end="")
        sys.exit(0)
    module, rest = module_and_arguments(arguments)
    os.execv(sys.executable, [sys.executable, "-m", module, *rest])
