"""What a model folder, a data set, a checkpoint or an answer that somebody else made could run here: nothing."""

import ast
import json
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import algorithms
import r3env
from algorithms.config.errors import ConfigError
from algorithms.grpo.config import GRPOConfig
from algorithms.learner.model import CausalLMModule
from algorithms.models.names import resolve_model, validate_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.publishing.model_folder import export
from algorithms.rollout.engines.factory import make_engine
from algorithms.train.checkpoints import load_checkpoint
from algorithms.train.manifest import write_manifest
from algorithms.utils.errors import CheckpointError
from r3env import chat
from r3env.data.loading import load_queries
from r3env.grading import grade


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def marker(tmp_path):
    """What the attacks below leave behind when they succeed."""
    path = tmp_path / "was_here"
    yield path
    assert not path.exists()


@pytest.fixture
def model(tmp_path):
    return Path(shutil.copytree(resolve_model("embedded:tiny"), tmp_path / "model"))


def test_the_attack_works_where_nothing_defends_against_it(tmp_path):
    marker = tmp_path / "was_here"
    pickle.loads(pickle.dumps(Evil(marker)))
    assert marker.exists()


def test_pickled_weights_are_refused_by_name(model, marker):
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(marker)))
    with pytest.raises(ConfigError, match=r"rl_module.model: .* only pickled weights \(pytorch_model.bin\)"):
        validate_model(GRPOConfig().rl_module(model=str(model)))
    with pytest.raises(OSError, match="safetensors"):
        make_engine("transformers", model=str(model), dtype="float32", max_num_seqs=1, eos_token_ids=(1,))
    with pytest.raises(OSError, match="safetensors"):
        CausalLMModule(
            observation_space=None,
            action_space=None,
            model_config={"model": str(model), "dtype": "float32"},
        )


def test_pickled_weights_beside_the_others_are_not_looked_at(model, marker):
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(marker)))
    validate_model(GRPOConfig().rl_module(model=str(model)))
    make_engine("transformers", model=str(model), dtype="float32", max_num_seqs=1, eos_token_ids=(1,)).close()


def test_code_that_comes_with_a_model_is_not_run_unless_the_user_says_so(model, marker):
    assert GRPOConfig().rl_module_settings.trust_remote_code is False
    config = json.loads((model / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {name: f"own.{name}" for name in ("AutoConfig", "AutoModelForCausalLM")},
    }
    (model / "config.json").write_text(json.dumps(config))
    (model / "own.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with pytest.raises(ConfigError, match=r"rl_module.model: .*does not load|rl_module.model: .*that loads"):
        validate_model(GRPOConfig().rl_module(model=str(model)))


def test_a_chat_template_is_sandboxed(model, marker):
    attack = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    (model / "chat_template.jinja").write_text(
        attack + f"{{% set a = lipsum.__globals__.os.system('touch {marker}') %}}"
    )
    with pytest.raises(Exception, match="unsafe|undefined"):
        chat.first_turn(load_tokenizer(str(model)), [{"role": "user", "content": "1+1"}])


def test_pickled_arrays_in_a_checkpoint_are_refused(tmp_path, marker):
    (tmp_path / "state.json").write_text('{"format": 1}')
    np.savez(tmp_path / "arrays.npz", history=np.array([Evil(marker)], dtype=object))
    with pytest.raises(CheckpointError, match="allow_pickle"):
        load_checkpoint(SimpleNamespace(), tmp_path)


def test_pickles_that_were_put_into_a_checkpoint_are_not_exported(model, tmp_path, marker):
    checkpoint = tmp_path / "run" / "checkpoints" / "step_000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    model.rename(checkpoint / "model")
    write_manifest(checkpoint)
    for name in ("adapter_model.bin", "pytorch_model.pt"):
        (checkpoint / "model" / name).write_bytes(pickle.dumps(Evil(marker)))
    out = tmp_path / "out"
    assert export(tmp_path / "run", out) == checkpoint
    assert not [*out.glob("*.bin"), *out.glob("*.pt")] and (out / "tokenizer.json").is_file()


@pytest.mark.parametrize("suffix", [".pkl", ".pt", ".npy", ".arrow"])
def test_data_in_formats_that_may_run_code_is_refused(tmp_path, marker, suffix):
    (tmp_path / f"data{suffix}").write_bytes(pickle.dumps(Evil(marker)))
    with pytest.raises(ValueError, match="has no known format"):
        load_queries(str(tmp_path / f"data{suffix}"))


@pytest.mark.parametrize("gold", ["4", "x^2"])
@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').system('touch {marker}')",
        "exec(open('/proc/self/cmdline').read()) or __import__('os').system('touch {marker}')",
        r"\text{{__import__('os').system('touch {marker}')}}",
        "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0]('touch {marker}', shell=True)",
        r"\immediate\write18{{touch {marker}}}",
        "lambda: __import__('pathlib').Path('{marker}').touch()",
    ],
)
def test_a_graded_answer_is_never_evaluated(marker, answer, gold):
    verdict = grade(f"\\boxed{{{answer.format(marker=marker)}}}", gold)
    assert not verdict.correct


# Where pickle is used at all: between a process and a child of its own, on the way to it.
PICKLING = {
    "r3env/child_processes/subprocess_scorer.py",
    "r3env/child_processes/scorer_child.py",
    "r3env/envs/reasoning_gym_scoring.py",
    "r3env/envs/reasoning_gym_tasks.py",
}
PICKLERS = {"pickle", "cloudpickle", "dill", "shelve", "joblib", "jsonpickle"}
UNPICKLING = {"read_pickle", "unsafe_load"}
RUNNING = {"eval", "exec", "compile"}


def test_nothing_else_in_the_packages_unpickles_or_evaluates():
    """Names in the source, which says nothing about libraries: those are asked for above."""
    found = set()
    for package in (algorithms, r3env):
        root = Path(next(iter(package.__path__)))
        for file in root.rglob("*.py"):
            if any(map(_is_dangerous, ast.walk(ast.parse(file.read_text(encoding="utf-8"))))):
                found.add(str(file.relative_to(root.parent)))
    assert found == PICKLING


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import cloudpickle as safe",
        "import ray.cloudpickle",
        "from ray import cloudpickle",
        "from ray.cloudpickle import loads",
        "ray.cloudpickle.loads(data)",
        "torch.load(file)",
        "from torch import load",
        "np.load(file, allow_pickle=True)",
        "pd.read_pickle(file)",
        "yaml.unsafe_load(text)",
        "eval(text)",
    ],
)
def test_the_search_finds_each_way_to_unpickle_or_evaluate(source):
    assert any(map(_is_dangerous, ast.walk(ast.parse(source))))


@pytest.mark.parametrize("source", ["import json", "from json import load", "np.load(file, allow_pickle=False)"])
def test_the_search_finds_nothing_else(source):
    assert not any(map(_is_dangerous, ast.walk(ast.parse(source))))


def _is_dangerous(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(PICKLERS & set(name.name.split(".")) for name in names)
        case ast.ImportFrom(module=module, names=names):
            imported = {name.name for name in names}
            whole = {*str(module).split("."), *imported}
            return bool((PICKLERS | UNPICKLING) & whole) or (module == "torch" and "load" in imported)
        case ast.Call(func=ast.Name(id=name)) if name in RUNNING:
            return True
        case ast.Attribute(attr=name) if name in PICKLERS | UNPICKLING:
            return True
        case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
            return True
        case ast.keyword(arg="allow_pickle", value=ast.Constant(value=allowed)):
            return bool(allowed)
    return False
