"""An evaluation makes its prompts as the run that it evaluates does, and those of a bare model as it is told."""

import shutil

import pytest
import yaml

from algorithms.evaluate import main, parser
from algorithms.evaluation.responses import ResponseFolder
from algorithms.evaluation.results import bearing_on_answers
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import chat_format, load_tokenizer
from algorithms.train.evaluated_run import resolve_config
from algorithms.train.manifest import write_manifest
from r3env.chat import ChatFormat

MOODY = "{% if add_generation_prompt %}{{ mood | default('') }}{% endif %}"
SYSTEM, MOOD = "1+1=2", "8"
OF_THE_RUN = {
    "environment": {"data": "embedded:train", "system": SYSTEM, "instruction": ""},
    "rl_module": {"chat_template_kwargs": {"mood": MOOD}, "earlier_turns": "rendered"},
    "evaluation": {"data": "embedded:heldout", "samples": 2, "k": [1], "limit": 6},
    "env_runners": {"max_response_tokens": 24},
}
BARE = [f"environment.system={SYSTEM}", "environment.instruction=''", f"rl_module.chat_template_kwargs.mood='{MOOD}'"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder whose model's template reads a variable."""
    folder = tmp_path_factory.mktemp("run")
    checkpoint = folder / "checkpoints" / "step_000001"
    model = shutil.copytree(resolve_model("embedded:tiny"), checkpoint / "model")
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template += MOODY
    tokenizer.save_pretrained(model)
    (checkpoint / "state.json").write_text("{}")
    write_manifest(checkpoint)
    (folder / "config.yaml").write_text(yaml.safe_dump({"algorithm": "r3_grpo", **OF_THE_RUN}))
    return folder


def answers(out, *arguments):
    assert main([*arguments, "--out", str(out)]) == 0
    return [one.response for one in ResponseFolder(out / "responses").read()]


def test_a_runs_own_settings_hold_and_the_answers_are_those_of_the_bare_model_with_them(run, tmp_path):
    config, _ = resolve_config(parser().parse_args(["--model", str(run)]))
    assert chat_format(config) == ChatFormat({"mood": MOOD}, SYSTEM, rerender=True)
    bare = ["--model", str(run / "checkpoints" / "step_000001" / "model"), "--data", "heldout=embedded:heldout"]
    bare += ["--samples", "2", "evaluation.limit=6", "evaluation.k=[1]", "env_runners.max_response_tokens=24"]
    of_run = answers(tmp_path / "run", "--model", str(run))
    assert of_run == answers(tmp_path / "bare", *bare, *BARE)
    assert of_run != answers(tmp_path / "no mood", *bare, *BARE[:2])
    assert of_run != answers(tmp_path / "no system", *bare, *BARE[1:])


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("rl_module", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("rl_module", {"earlier_turns": "rendered"}),
        ("environment", {"system": "Be brief."}),
    ],
)
def test_answers_of_other_prompts_do_not_mix(section, settings):
    assert bearing_on_answers({section: {}}, {section: settings})
