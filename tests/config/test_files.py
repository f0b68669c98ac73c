"""YAML files and overrides: types, precedence, round trip, and the line of every mistake."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from algorithms.config.files import configs_folder, to_yaml
from algorithms.config.loading import load
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.evaluated_run import EvaluateConfig
from tests.shipped_files import evaluation_files, training_files

OVERRIDES = [
    ("training.lr=1e-4", "training", "lr", 1e-4),
    ("training.lr=1", "training", "lr", 1.0),
    ("training.group_size=16", "training", "group_size", 16),
    ("replay.enabled=false", "replay", "enabled", False),
    ("reflection.max_attempt_tokens=null", "reflection", "max_attempt_tokens", None),
    ("history.capacity=", "history", "capacity", None),
    ("evaluation.k=[1,2,4]", "evaluation", "k", [1, 2, 4]),
    ("evaluation.evaluation_interval=4", "evaluation", "interval", 4),
    ("environment.env=own:Id-v0", "environment", "id", "own:Id-v0"),
    ("environment.data=123.jsonl", "environment", "data", "123.jsonl"),
    ("environment.data=123", "environment", "data", "123"),
    ("environment.data=1e-3", "environment", "data", "1e-3"),
    ("environment.data=true", "environment", "data", "true"),
    ("environment.data=null", "environment", "data", None),
    ("environment.data='null'", "environment", "data", "null"),
    ("environment.instruction=Solve: ${x} # {now} [a=b]", "environment", "instruction", "Solve: ${x} # {now} [a=b]"),
    ("environment.columns={problem: question}", "environment", "columns", {"problem": "question"}),
    ("environment.columns.answer=007", "environment", "columns", {"problem": "q", "answer": "007"}),
    ("env_runners.vllm.seed=3", "env_runners", "vllm", {"seed": 3}),
    ("env_runners.vllm.a.b=[1,x]", "env_runners", "vllm", {"a": {"b": [1, "x"]}}),
    ("rl_module.revision=1.0", "rl_module", "revision", "1.0"),
]
WRONG_OVERRIDES = [
    ("lr=1", "lr: no such section; did you mean training.lr?"),
    ("trainin.lr=1", "trainin.lr: no such section; did you mean training?"),
    ("training=3", "training: is a section; fix: write training.key=value"),
    ("training.lr", "'training.lr': not an override; fix: write section.key=value"),
    ("training.lr=abc", "training.lr: 'abc' is not a number >= 0; the default is 1e-06"),
    ("training.lrr=1", "training.lrr: no such setting; did you mean training.lr?"),
    ("training.lr.x=1", "training.lr.x: training.lr is not a mapping; fix: write training.lr=value"),
    ("training.lr={", "training.lr: '{' cannot be read: did not find expected node content"),
    (
        "run.steps=0200",
        "run.steps: '0200' cannot be read: 0200 would be a number of base 8; fix: leave out the leading 0, "
        "or quote it if it is a text",
    ),
    (
        "run.stop={wall_hours: 11:30}",
        "run.stop: '{wall_hours: 11:30}' cannot be read: 11:30 would be a number of base 60; fix: write a number, or "
        "quote it if it is a text",
    ),
    ("run.steps=0", "run.steps: 0 is not a whole number >= 1; the default is 100"),
    ("rl_module.model=", "rl_module.model: null is not text that is not empty; the default is 'embedded:tiny'"),
    (
        "run.name=a/b",
        "run.name: 'a/b' is not a folder name (letters, digits and _ . + = , @ -), or null; the default is null",
    ),
    ("run.stepz=3", "run.stepz: no such setting; did you mean run.steps?"),
]
# Ten entries, and eight times ten of the line before: a gigabyte once it is unfolded.
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (new, new, b",".join(10 * [b"*%c" % old])) for old, new in pairwise(b"abcdefghi")
)
WRONG_FILES = [
    (BOMB, "not a valid configuration: its aliases unfold into more than 100,000 entries; fix: write them out"),
    (
        b"a0: xxxxxxxxxx\n" + b"".join(b"a%d: ${a%d}${a%d}\n" % (n + 1, n, n) for n in range(40)),
        "not a valid configuration: its interpolations unfold into more than 10,000,000 characters; fix: write",
    ),
    (b'base: "a\\0b"', "not a valid configuration: a text holds a NUL character; fix: leave it out"),
    (b"run: {steps: 0x" + 5000 * b"F" + b"}", "not a valid configuration: a number has more than 1,000 digits"),
    (b"run: {steps: " + b":".join(5000 * [b"59"]) + b"}", "not a valid configuration: a number has more than 1,000"),
    (b"run: " + 50_000 * b"[", "not a valid configuration: its entries are nested more than 100 deep; fix: write"),
    (b"run: {mode: 0750}", "not a valid configuration: 0750 would be a number of base 8; fix: leave out the leading 0"),
    (b"base: ~nobody9/x.yaml", "base: "),
    (b"base: " + 300 * b"x", "base: "),
    (b"a: &a [*a]", "not a valid configuration: an alias stands within what it names; fix: write it out"),
    (b"training: [", "not a valid configuration: line 2, column 1: did not find expected node content"),
    (b"run:\n\tsteps: 1", "not a valid configuration: line 2, column 1: found character that cannot start any token"),
    (b"training: {lr: 1, lr: 2}", "not a valid configuration: line 1, column 19: found duplicate key lr"),
    (b"training:\n  lr: ${no}", "not a valid configuration: Interpolation key 'no' not found"),
    (b"training: *a", "not a valid configuration: line 1, column 11: found undefined alias"),
    (
        b"a: !!python/object:os.system x",
        "not a valid configuration: line 1, column 4: could not determine a constructor",
    ),
    (b"- 1", "holds no sections; fix: write them, such as training: {lr: 1e-6}"),
    (b"7", "holds no sections; fix: write them, such as training: {lr: 1e-6}"),
    (b"\xff", "not UTF-8 (byte 0); fix: save the file as UTF-8"),
    (b"training: 3", "training: 3 is not a mapping; fix: write training: {key: value}"),
    (b"run: 3", "run: 3 is not a mapping; fix: write run: {key: value}"),
    (b"training: {lr: x}", "training.lr: 'x' is not a number >= 0; the default is 1e-06"),
    (b"environment: {data: 7}", "environment.data: 7 is not text that is not empty, or null; fix: quote it"),
    (b"traning: {lr: 1}", "traning: no such section; did you mean training?"),
    (b"training: {1: 2}", "training.1: no such setting; known: lr, "),
    (b"run: {seeed: 2}", "run.seeed: no such setting; did you mean run.seed?"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("run: {steps: 3}\ntraining: {lr: 1e-5}\nenvironment: {columns: {problem: q}}\nreplay: {k: 2}\n")
    return path


@pytest.mark.parametrize(("text", "section", "key", "value"), OVERRIDES)
def test_an_override_wins_and_has_the_type_of_its_setting(file, text, section, key, value):
    config, _ = load(file, ["training.lr=0.5", text], R3GRPOConfig)
    found = config.to_sections()[section][key]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("time", ["00:10", "01:30", "0:30", "00:11:22:33:44:55", "11:30h", "12:00-13:00"])
def test_what_yaml_takes_for_text_stays_text(file, time):
    config, _ = load(file, [f"environment.options={{at: {time}}}"], R3GRPOConfig)
    assert config.environment_settings.options == {"at": time}


def test_a_file_wins_over_the_defaults_and_the_rest_stays(file):
    config, run = load(str(file), [], R3GRPOConfig)
    expected = R3GRPOConfig().training(lr=1e-5).environment(columns={"problem": "q"}).replay(k=2)
    assert config.to_sections() == expected.to_sections()
    assert run.steps == 3


@pytest.mark.parametrize(("text", "line"), WRONG_OVERRIDES)
def test_the_line_of_a_wrong_override(file, text, line):
    with pytest.raises(ConfigError) as raised:
        load(file, [text], R3GRPOConfig)
    assert str(raised.value) == line


@pytest.mark.parametrize(("content", "line"), WRONG_FILES)
def test_the_line_of_a_wrong_file_begins_with_its_name(tmp_path, content, line):
    path = tmp_path / "torn.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        load(path, [], R3GRPOConfig)
    assert str(raised.value).startswith(f"{path}: {line}")


def test_a_device_without_end_and_a_link_to_itself_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match="/dev/zero: has more than 10,000,000 characters"):
        load("/dev/zero", [], R3GRPOConfig)
    path = tmp_path / "loop.yaml"
    path.symlink_to(path.name)
    with pytest.raises(ConfigError, match="loop.yaml: cannot be read"):
        load(path, [], R3GRPOConfig)


def test_a_missing_file_names_the_nearest(file):
    shipped = configs_folder() / "quickstart.yaml"
    for wrong, ending in [
        (file.with_name("mime.yaml"), f"no such file; did you mean {file}?"),
        (file.parent / "no" / "a.yaml", f"no such file; there is no folder {file.parent / 'no'}"),
        (file.parent / "quickstart.yaml", f"no such file; did you mean {shipped}?"),
        (file.parent / "quikstart.yaml", f"no such file; did you mean {shipped}?"),
        (file.parent, f"is a folder; fix: name a YAML file, such as {file.parent / 'config.yaml'}"),
    ]:
        with pytest.raises(ConfigError) as raised:
            load(wrong, [], R3GRPOConfig)
        assert str(raised.value) == f"{wrong}: {ending}"


def test_contradictions_are_found_after_the_overrides(file):
    load(file, ["evaluation.samples=4", "evaluation.k=[4]"], R3GRPOConfig)
    with pytest.raises(ConfigError, match=r"^evaluation\.k: 8 is more than evaluation\.samples, 4"):
        load(file, ["evaluation.samples=4"], R3GRPOConfig)


def test_grpo_skips_the_mechanisms_of_a_shared_file_with_one_note(file, capsys):
    config, _ = load(file, [], GRPOConfig)
    assert config.lr == 1e-5
    assert capsys.readouterr().err == f"note: {file}: GRPO skips settings that it does not have: replay\n"


def test_an_evaluation_of_a_run_s_file_skips_what_only_training_has_without_a_note(tmp_path, capsys):
    file = tmp_path / "config.yaml"
    file.write_text("algorithm: r3_grpo\nreplay: {enabled: true}")
    load(file, [], EvaluateConfig)
    assert not capsys.readouterr().err
    file.write_text("replay: {enabled: true}")
    load(file, [], EvaluateConfig)
    assert "skips settings that it does not have: replay" in capsys.readouterr().err
    load(file, [], R3GRPOConfig)
    assert capsys.readouterr().err == ""


def test_grpo_refuses_the_mechanisms_as_overrides(file):
    with pytest.raises(ConfigError, match=r"^replay\.k: GRPO has no section replay; R3GRPO has$"):
        load(file, ["replay.k=1"], GRPOConfig)


@pytest.mark.parametrize("file", training_files(), ids=lambda file: file.stem)
@pytest.mark.parametrize("config_class", [GRPOConfig, R3GRPOConfig])
def test_every_shipped_file_loads_for_both_algorithms(file, config_class):
    config, _ = load(file, [], config_class)
    config.check_settings()


@pytest.mark.parametrize("file", evaluation_files(), ids=lambda file: file.stem)
def test_a_file_for_evaluations_loads_as_one_and_says_so_to_a_training(file):
    config, _ = load(file, [], EvaluateConfig)
    assert config.benchmarks_settings.data
    assert all(source.startswith("preset:") for source in config.benchmarks_settings.data.values())
    with pytest.raises(ConfigError, match=r"benchmarks: .*; fix: python -m algorithms.evaluate --config "):
        load(file, [], R3GRPOConfig)


def test_every_shipped_file_is_one_or_the_other():
    assert {*training_files(), *evaluation_files()} == {*configs_folder().glob("*.yaml")}
    assert evaluation_files() and len(training_files()) > 10


def test_the_default_file_is_the_quickstart():
    assert load(None, [], R3GRPOConfig)[0].to_sections() == (
        load(configs_folder() / "quickstart.yaml", [], R3GRPOConfig)[0].to_sections()
    )


def test_the_run_is_named_after_its_file_and_the_time(file):
    _, run = load(file, [], R3GRPOConfig)
    stem, day, time = str(run.name).rsplit("-", 2)
    assert (stem, len(day), len(time)) == ("mine", 8, 6)
    assert load(file, ["run.name=007"], R3GRPOConfig)[1].name == "007"


def test_the_seed_of_the_run_is_rllibs(file):
    assert load(file, ["run.seed=7"], R3GRPOConfig)[0].seed == 7


def test_a_resolved_configuration_reads_back_the_same(file, tmp_path):
    texts = [
        "environment.instruction=ü ${x} \\boxed{}\n'now'",
        "env_runners.vllm.a={b: [1, 2.5, null]}",
        "training.lr=1e-7",
    ]
    config, run = load(file, texts, R3GRPOConfig)
    resolved = tmp_path / "config.yaml"
    resolved.write_text(to_yaml(config, run, algorithm="r3_grpo"), encoding="utf-8")
    again, run_again = load(resolved, [], R3GRPOConfig)
    assert again.to_sections() == config.to_sections()
    assert run_again == run
    assert again.environment_settings.instruction == "ü ${x} \\boxed{}\n'now'"


def test_what_is_not_plain_data_cannot_be_written(file):
    config, run = load(file, [], R3GRPOConfig)
    config.environment(env_config={"judge": print})
    with pytest.raises(ConfigError, match=r"^environment\.options or env_runners\.vllm: not plain data"):
        to_yaml(config, run, algorithm="r3_grpo")


def test_an_environment_variable_can_be_part_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBLEMS", "/data/p.jsonl")
    path = tmp_path / "a.yaml"
    path.write_text("environment: {data: '${oc.env:PROBLEMS}'}\n")
    config, run = load(path, [], R3GRPOConfig)
    assert config.env_config == {"data": "/data/p.jsonl"}
    assert "data: ${oc.env:PROBLEMS}\n" in to_yaml(config, run, algorithm="r3_grpo")
    config, run = load(path, ["environment.data=/data/p.jsonl.gz"], R3GRPOConfig)
    assert "data: /data/p.jsonl.gz\n" in to_yaml(config, run, algorithm="r3_grpo"), "an override wins"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a file into a folder of the test's own."""

    def into_folder(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return into_folder


def test_a_file_holds_what_differs_from_its_base(write: Callable[[str, str], Path]) -> None:
    write("machine.yaml", "env_runners: {num_env_runners: 4, vllm: {seed: 1}}\ntraining: {lr: 1e-5, group_size: 16}\n")
    write("method.yaml", "training: {lr: 2e-5, clip_high: 0.3}\n")
    file = write("run.yaml", "base: [machine.yaml, method.yaml]\nenv_runners: {vllm: {tensor_parallel_size: 2}}\n")
    config, run = load(file, ["training.clip_high=0.4"], GRPOConfig)
    assert (config.training_settings.lr, config.training_settings.group_size) == (2e-5, 16)
    assert config.training_settings.clip_high == 0.4
    assert config.env_runners_settings.num_env_runners == 4
    assert config.env_runners_settings.vllm == {"tensor_parallel_size": 2}, "a setting is replaced as a whole"
    assert run.name is not None
    assert run.name.startswith("run-")


def test_a_base_of_two_bases_does_not_undo_the_first(write: Callable[[str, str], Path]) -> None:
    write("common.yaml", "training: {lr: 1e-5}\n")
    write("first.yaml", "base: common.yaml\ntraining: {lr: 3e-5}\n")
    write("second.yaml", "base: common.yaml\ntraining: {group_size: 4}\n")
    training = load(write("run.yaml", "base: [first.yaml, second.yaml]\n"), [], GRPOConfig)[0].training_settings
    assert (training.lr, training.group_size) == (3e-5, 4)


def test_of_several_files_the_later_wins(write: Callable[[str, str], Path]) -> None:
    task = write("task.yaml", "training: {lr: 1e-5, group_size: 16}\n")
    method = write("method.yaml", "training: {lr: 2e-5, clip_high: 0.3}\n")
    config, run = load([task, method], ["training.clip_high=0.4"], GRPOConfig)
    training = config.training_settings
    assert (training.group_size, training.lr, training.clip_high) == (16, 2e-5, 0.4)
    assert str(run.name).startswith("task-method-")
    assert load([method, task], [], GRPOConfig)[0].training_settings.lr == 1e-5
    with pytest.raises(ConfigError, match=r"/task\.yaml: training\.lr: "):
        load([write("task.yaml", "training: {lr: x}\n"), method], [], GRPOConfig)


def test_the_name_of_a_run_of_many_files_is_still_one_for_a_folder(write: Callable[[str, str], Path]) -> None:
    files = [write(f"{'long' * 15}{number}.yaml", "training: {lr: 1e-5}\n") for number in range(9)]
    assert len(str(load(files, [], GRPOConfig)[1].name)) < 200


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("commn.yaml", "run.yaml: base: {folder}/commn.yaml: no such file; did you mean {folder}/common.yaml?"),
        ("7", "run.yaml: base: 7 is not a file or a list of files; fix: base: other.yaml"),
        ("run.yaml", "run.yaml: is its own base; fix: take it out of base"),
        ("round.yaml", "run.yaml: is its own base; fix: take it out of base"),
        ("common.yaml", "common.yaml: training.lr: 'x' is not a number >= 0; the default is 1e-06"),
    ],
)
def test_a_wrong_base_is_one_line_that_names_the_file(
    base: str, message: str, write: Callable[[str, str], Path], tmp_path: Path
) -> None:
    write("common.yaml", "training: {lr: x}\n")
    write("round.yaml", "base: run.yaml\n")
    with pytest.raises(ConfigError) as caught:
        load(write("run.yaml", f"base: {base}\n"), [], GRPOConfig)
    assert str(caught.value) == f"{tmp_path}/{message.format(folder=tmp_path)}"
