"""The page's data and text, without a browser."""

import html.parser
import json

import pytest
import yaml

from algorithms.report import main
from algorithms.reporting.page import inline_json, render
from algorithms.train.manifest import MANIFEST
from algorithms.train.run_directory import RunDirectory

from .runs import HOSTILE, config, make_run, row, step_rows


class Page(html.parser.HTMLParser):
    """What an HTML parser finds: elements, and the text of each script."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.attributes = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.elements[-1:] == ["script"]:
            self.scripts[-1] += data


def report(*runs, out, options=()):
    assert main([*map(str, runs), "--out", str(out), *options]) == 0
    text = out.read_text(encoding="utf-8")
    return Page(text), json.loads(Page(text).scripts[0])


def refusal(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_one_page_holds_everything_and_names_nothing_to_fetch(tmp_path):
    parsed, data = report(make_run(tmp_path), out=tmp_path / "r.html")
    assert not {"link", "img", "iframe"} & set(parsed.elements)
    assert not [attributes for _, attributes in parsed.attributes if "src" in attributes or "href" in attributes]
    policies = [a["content"] for t, a in parsed.attributes if t == "meta" and "http-equiv" in a]
    assert policies[0].startswith("default-src 'none'; ") and "unsafe" not in policies[0]
    (run,) = data["runs"]
    assert (run["algorithm"], run["seed"], run["steps"], run["tokens"], run["wall_s"]) == ("R3GRPO", 0, 4, 352, 8.0)


def test_whatever_a_policy_writes_the_page_has_the_same_elements(tmp_path):
    hostile = [
        row(step=1, response=text, prompt=text, uid=text, turns=(), answer=text, token_data=None) for text in HOSTILE
    ]
    tame = [row(step=1, response="a", prompt="b", uid="c", turns=(), answer="d", token_data=None) for _ in HOSTILE]
    pages = [
        report(make_run(tmp_path, name, steps=1, rollouts=lambda step, r=r: r), out=tmp_path / f"{name}.html")
        for name, r in (("hostile", hostile), ("tame", tame))
    ]
    assert pages[0][0].elements == pages[1][0].elements
    assert pages[0][0].scripts[1] == pages[1][0].scripts[1]
    texts = pages[0][1]["trajectories"]["texts"]
    assert texts == [text.replace("\ud800", "?").replace("\u2028", "\\u2028") for text in HOSTILE]


def test_inline_json_is_the_same_data_without_a_character_that_opens_a_tag():
    text = inline_json({"a": list(HOSTILE[:4]), "b": "\u2028 & >"})
    assert json.loads(text) == {"a": list(HOSTILE[:4]), "b": "\\u2028 & >"}
    assert not set("<>&\u2028") & set(text)


def test_a_title_is_text():
    assert "<title>&lt;/title&gt;&amp;</title>" in render({}, "</title>&")


def test_runs_are_told_apart_by_what_differs(tmp_path):
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", training__lr=3e-4, run__name="b")]
    _, data = report(*runs, out=tmp_path / "r.html")
    assert data["differing"] == ["training.lr"]
    assert [run["settings"]["training.lr"] for run in data["runs"]] == ["0.0001", "0.0003"]


def test_runs_of_the_same_name_are_labeled_with_their_folders(tmp_path):
    runs = [make_run(tmp_path / "x", "a"), make_run(tmp_path / "y", "a")]
    _, data = report(*runs, out=tmp_path / "r.html")
    assert [run["label"] for run in data["runs"]] == ["x/a", "y/a"]


def test_curves_begin_with_the_evaluation_before_training(tmp_path):
    _, data = report(make_run(tmp_path), out=tmp_path / "r.html")
    (curves,) = data["curves"]
    assert curves["steps"] == [0, 1, 2, 3, 4] and curves["tokens"] == [0, 88, 176, 264, 352]
    assert curves["series"]["eval/pass@1"] == [0.625, None, None, None, 0.875]
    assert curves["series"]["reward/mean"] == [None, 0.1, 0.2, 0.3, 0.4]
    assert "replay/added" not in curves["series"], "what was not recorded is no curve of zeros"


@pytest.mark.parametrize(("lag", "shown"), [(0, [None, 0.5, 0.0, None]), (1, [None, None, 0.0, 0.25])])
def test_reflected_answers_that_nobody_asked_for_are_no_curve_of_zeros(lag, shown, tmp_path):
    run = make_run(tmp_path, training__max_off_policy_steps=lag)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # With a lag a step answers the prompts that the step before has built.
    correct = [0.0, 0.5, 0.0, 0.0] if lag == 0 else [0.0, 0.0, 0.0, 0.25]
    for line, prompts, share in zip(lines, (0, 2, 1, 0), correct, strict=True):
        line |= {"reflection/prompts": prompts, "reflection/correct": share}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, data = report(run, out=tmp_path / "r.html")
    assert data["curves"][0]["series"]["reflection/correct"][1:] == shown


def test_evaluations_are_tables_with_intervals_and_levels(tmp_path):
    _, data = report(make_run(tmp_path), out=tmp_path / "r.html")
    sides, levels = data["tables"]
    shares = ["truncated", "no answer"]
    assert sides["head"] == ["run", "", "pass@1", "pass@4", "mean tokens", *shares, "problems × samples"]
    before, after, change = sides["rows"]
    assert before[-2] == "25.0 %" and data["curves"][0]["series"]["response/no_answer"][-1] == 0.1
    assert before[:2] == ["a", "before"] and before[2].startswith("62.5 % [") and before[-1] == "12 × 4"
    assert after[1] == "after step 4" and change[2].startswith("+25.0 % [+")
    assert levels["head"] == ["run", "", "level 2", "level 10"]
    assert [cells[2:] for cells in levels["rows"]] == [["100.0 %", "25.0 %"], ["100.0 %", "75.0 %"]]


def test_many_levels_are_rows_and_answers_stand_beside_each_other(tmp_path):
    run = make_run(tmp_path)
    stored = json.loads((run / "evaluation.json").read_text())
    for side, text in (("before", "I am [1"), ("after", "Bees fly.")):
        stored[side]["levels"] = {uid: f"kind-{uid}" for uid in stored[side]["correct"]}
        stored[side]["examples"] = [{"problem": "About bees.", "response": text, "correct": side == "after"}]
    RunDirectory(run).write_evaluation(stored)
    _, data = report(run, out=tmp_path / "r.html")
    _, levels, examples = data["tables"]
    assert levels["head"] == ["level", "a before", "a after"] and len(levels["rows"]) == 12
    assert examples["head"] == ["problem", "before", "after"] and examples["prose"]
    assert examples["rows"] == [["About bees.", "✗ I am [1", "✓ Bees fly."]]


def test_an_answer_never_stands_beside_another_problem(tmp_path):
    """As where the file of problems was edited, and the run resumed."""
    run = make_run(tmp_path)
    stored = json.loads((run / "evaluation.json").read_text())
    for side, problems in (("before", ["Bees?", "Ants?"]), ("after", ["Ants?", "Wasps?", "Flies?"])):
        stored[side]["examples"] = [{"problem": one, "response": one[:3], "correct": True} for one in problems]
    RunDirectory(run).write_evaluation(stored)
    _, data = report(run, out=tmp_path / "r.html")
    rows = data["tables"][-1]["rows"]
    assert rows == [
        ["Bees?", "✓ Bee", "–"],
        ["Ants?", "✓ Ant", "✓ Ant"],
        ["Wasps?", "–", "✓ Was"],
        ["Flies?", "–", "✓ Fli"],
    ]


def test_evaluations_by_the_command_are_found_in_the_run(tmp_path):
    run = make_run(tmp_path)
    score = {"mean": 0.5, "low": 0.4, "high": 0.6}
    scores = {"math": {"problems": 12, "samples": 4, "scores": {"pass@1": score}, "levels": {}, "by_problem": {}}}
    (run / "eval").mkdir()
    (run / "eval" / "scores.json").write_text(json.dumps(scores))
    (run / "eval" / "evaluation.yaml").write_text("rl_module: {model: embedded:tiny}\n")
    _, data = report(run, out=tmp_path / "r.html")
    assert data["tables"][-1]["rows"] == [["a, eval", "50.0 % [40.0 %, 60.0 %]", "12 × 4"]]


def test_two_evaluations_of_one_checkpoint_are_told_apart(tmp_path):
    run = make_run(tmp_path)
    model = run / "checkpoints" / "step_000003" / "model"
    model.mkdir(parents=True)
    score = {"mean": 0.5, "low": None, "high": None}
    for name, samples in (("first", 4), ("second", 16)):
        folder = tmp_path / "evaluations" / name
        folder.mkdir(parents=True)
        one = {"problems": 12, "samples": samples, "scores": {"pass@1": score}, "levels": {}, "by_problem": {}}
        (folder / "scores.json").write_text(json.dumps({"math": one}))
        (folder / "evaluation.yaml").write_text(f"rl_module: {{model: {model}}}\n")
    _, data = report(run, out=tmp_path / "r.html")
    labels = [cells[0] for cells in data["tables"][-1]["rows"]]
    assert labels == ["a, step_000003 (first, 12 × 4)", "a, step_000003 (second, 12 × 16)"]


def test_evaluations_of_checkpoints_that_are_gone_are_found_and_those_of_hub_models_are_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path)
    scores = {"problems": 12, "samples": 4, "scores": {"pass@1": {"mean": 0.5, "low": None, "high": None}}}
    for name, model in (
        ("gone", "a/checkpoints/step_000002/model"),
        ("whole-path", run / "checkpoints" / "step_000001" / "model"),
        ("hub", "a/model"),
        ("other-run", "b/checkpoints/step_000002/model"),
    ):
        folder = tmp_path / "evaluations" / name
        folder.mkdir(parents=True)
        (folder / "scores.json").write_text(json.dumps({"math": {**scores, "levels": {}, "by_problem": {}}}))
        (folder / "evaluation.yaml").write_text(f"rl_module: {{model: {model}}}\n")
    _, data = report(run, out=tmp_path / "r.html")
    assert [cells[0] for cells in data["tables"][-1]["rows"]] == ["a, step_000002", "a, step_000001"]


def test_tokens_are_whole_thousandths_and_every_piece_is_stored_once(tmp_path):
    _, data = report(make_run(tmp_path, steps=1), out=tmp_path / "r.html")
    packed = data["trajectories"]
    first = packed["rows"][0]
    assert [packed["pieces"][piece] for piece in first["pieces"]][:3] == ["1", "+", "1"]
    assert (first["logprobs"][-1], first["entropies"][-1]) == (-2000, 1500)
    assert len(set(packed["pieces"])) == len(packed["pieces"])
    assert [one["outcome"] for one in packed["rows"][:4]] == ["correct", "incorrect", "truncated", "correct"]
    assert "entropies" not in packed["rows"][3], "a replayed sample has none"
    assert [packed["texts"][row["answer"]] for row in packed["rows"][:4]] == ["2"] * 4
    assert [row["verdict"] for row in packed["rows"][:4]] == ["accepted", "not accepted", "no answer was found", ""]


def test_a_page_says_what_it_leaves_out(tmp_path):
    run = make_run(tmp_path)
    _, data = report(run, out=tmp_path / "r.html", options=["--trajectories", "8"])
    shown = data["trajectories"]
    assert len(shown["rows"]) <= 8 and {one["step"] for one in shown["rows"]} >= {1, 4}
    assert (
        f"{len(shown['rows'])} of 32 trajectories, of {len({r['step'] for r in shown['rows']})} of 4"
        in shown["left_out"][0]
    )
    assert not report(run, out=tmp_path / "r.html")[1]["trajectories"]["left_out"]


def test_a_run_that_still_trains_is_shown_as_far_as_it_is(tmp_path):
    run = make_run(tmp_path, steps=2, finished=False, run__steps=9)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    _, data = report(run, out=tmp_path / "r.html")
    (shown,) = data["runs"]
    assert (shown["steps"], shown["planned_steps"], shown["finished"]) == (2, 9, False)


@pytest.mark.parametrize("steps", [None, 7])
def test_a_supervised_start_has_steps_of_its_own(tmp_path, steps):
    run = make_run(tmp_path, steps=2, finished=False)
    RunDirectory(run).write_config(yaml.safe_dump({**config(), "algorithm": "sft", "sft": {"steps": steps}}))
    _, data = report(run, out=tmp_path / "r.html")
    assert data["runs"][0]["planned_steps"] == steps


def test_a_run_without_rollouts_has_curves_and_says_so(tmp_path):
    _, data = report(make_run(tmp_path, rollouts=None), out=tmp_path / "r.html")
    assert data["trajectories"]["left_out"] == ["a: no rollouts were stored (run.save_rollouts)."]


def test_without_a_name_the_page_lies_in_the_first_run(tmp_path, capsys):
    run = make_run(tmp_path)
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.startswith(str(run / "report.html"))


def test_what_no_page_can_be_made_of_is_refused_in_one_line(tmp_path, capsys):
    run = make_run(tmp_path)
    assert "no such run folder" in refusal(capsys, tmp_path / "missing")
    assert "no config.yaml" in refusal(capsys, tmp_path)
    assert "named twice" in refusal(capsys, run, run)
    assert "no step has been recorded yet" in refusal(capsys, make_run(tmp_path, "empty", steps=0))
    (run / "summary.json").write_text('{"steps": ')
    assert "summary.json: has 10 bytes instead of" in refusal(capsys, run)
    (run / MANIFEST).unlink()
    assert "summary.json: cannot be read" in refusal(capsys, run)


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda _: b""])
def test_a_torn_rollout_file_is_refused_by_name(tmp_path, capsys, damage):
    run = make_run(tmp_path)
    file = run / "rollouts" / "step-000002.parquet"
    file.write_bytes(damage(file.read_bytes()))
    line = refusal(capsys, run)
    assert line.startswith(f"error: {file}: cannot be read") and "fix: move it away" in line


def test_the_same_run_makes_the_same_page_but_for_its_time(tmp_path):
    run = make_run(tmp_path, rollouts=step_rows)
    _, first = report(run, out=tmp_path / "1.html")
    _, second = report(run, out=tmp_path / "2.html")
    assert first | {"made": ""} == second | {"made": ""}
