"""A reference written differently, and the report of `r3env.check` on it."""

import json
from pathlib import Path

import pytest

from r3env.check import form_line
from r3env.check import main as check
from r3env.core import Query
from r3env.data.other_forms import is_prose, other_forms
from r3env.grading import grade

FORMS = [
    ("18", {"with a unit": "18 \\text{ units}", "in another format": "18.0"}),
    ("-7", {"with a unit": "-7 \\text{ units}", "in another format": "-7.0"}),
    ("1,234", {"bare": "1234", "with a unit": "1234 \\text{ units}"}),
    ("12345", {"with a unit": "12345 \\text{ units}", "in another format": "12,345"}),
    ("0.5", {"with a unit": "0.5 \\text{ units}", "in another format": "\\frac{1}{2}"}),
    ("-1.25", {"with a unit": "-1.25 \\text{ units}", "in another format": "-\\frac{5}{4}"}),
    ("\\frac{3}{4}", {"with a unit": "\\frac{3}{4} \\text{ units}", "in another format": "3/4"}),
    ("$\\dfrac{3}{4}$", {"bare": "\\frac{3}{4}", "with a unit": "\\frac{3}{4} \\text{ units}"}),
    ("3/4", {"with a unit": "3/4 \\text{ units}", "in another format": "\\frac{3}{4}"}),
    ("True", {"in another format": "\\text{True}"}),
    ("\\left( 1, 2 \\right)", {"bare": "( 1, 2 )", "in another format": "$( 1, 2 )$"}),
    ("x = 5", {"bare": "5", "with a unit": "5 \\text{ units}", "in another format": "5.0"}),
    ("5 cm", {"bare": "5", "in another format": "5.0"}),
    ("\\text{East}", {"bare": "East"}),
    ("2, 3", {"in another format": "$2, 3$"}),
]


@pytest.mark.parametrize(("answer", "forms"), FORMS)
def test_other_forms_differ_from_the_reference_and_are_paid(answer: str, forms: dict[str, str]) -> None:
    written = other_forms(answer)
    assert forms.items() <= written.items() and answer not in written.values() and len(written) <= 3
    assert all(grade(f"\\boxed{{{form}}}", answer).correct for form in written.values())


PROSE = "There are 9 boxes with 2 pens each, and so Tim has 18 pens in his bag by the end of the day."


@pytest.mark.parametrize("answer", ["7", "x^2 + \\frac{1}{2}", "f(x)=cx \\text{ for any constant } c", "\\boxed{7}"])
def test_a_short_answer_is_no_prose(answer: str) -> None:
    assert not is_prose(answer) and is_prose(PROSE)


def test_the_check_says_what_nobody_could_be_paid_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = ["18", "\\frac{1}{2", PROSE, "proof", "yes", None]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"uid": n, "problem": "p", "answer": a}) + "\n" for n, a in enumerate(answers)))
    assert check(["--data", str(path)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith("4 queries from 6 rows (2 without a reference: 1 'proof', 1 null left out)")
    assert out[1].startswith("  1 references are whole texts or objects, which no response repeats word for word; ")
    assert out[2] == "  1 of 4 references (25.0%) are yes or no, true or false: a guess is paid half the time"
    assert any(line.startswith("  whole text: uid 2: answer 'There are 9") for line in out)
    assert "written with a unit: 1 of 1 are paid" in out
    assert "written in another format: 2 of 2 are paid" in out
    assert out[-2].startswith("nobody could be paid for 2: ") and "1 whole text" in out[-2]
    assert out[-1] == "2 of 4 reference answers pass their own grader, 2 fail"


def test_the_first_references_that_are_not_paid_in_a_form_are_named() -> None:
    refused = [Query(f"u{number}", "p", f"{number} (apples)") for number in range(4)]
    assert form_line("bare", 9, refused, 20) == (
        "written bare: 5 of 9 are paid; not u0 ('0 (apples)'), u1 ('1 (apples)'), u2 ('2 (apples)'), …"
    )
    assert form_line("bare", 9, refused[:1], 20) == "written bare: 8 of 9 are paid; not u0 ('0 (apples)')"
    assert form_line("bare", 9, [], 20) == "written bare: 9 of 9 are paid"
