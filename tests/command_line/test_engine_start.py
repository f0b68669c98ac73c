"""An engine that cannot start ends the command in one line, in the driver's process and in an actor's."""

import pytest

from .conftest import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


@pytest.mark.parametrize("runners", [0, 1])
def test_what_vllm_refuses_is_one_line_with_the_fix(runners, run_command, tmp_path):
    wrong = ["env_runners.engine=vllm", "env_runners.vllm={quantization: nonsense}"]
    done = run_command(*SMALL, *wrong, f"env_runners.num_env_runners={runners}", f"run.dir={tmp_path}")
    assert done.returncode == 1
    *before, last = done.stderr.splitlines()
    assert last.startswith("error: env_runners.engine: vLLM did not start: Value error, Unknown quantization method")
    assert "; fix: correct env_runners.vllm" in last
    # Before it there is nothing but what every start prints.
    assert [line for line in before if not line.startswith(("run directory: ", "starting  ", "note: "))] == []
