"""Questions with options: how they are posed, and which letter a response chooses."""

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3env.core import Reason
from r3env.data.loading import load_queries
from r3env.data.questions import gpqa
from r3env.data.sources import DataError
from r3env.envs.choice import ChoiceEnv, chosen_letter

SAMPLES = Path(__file__).parent / "samples"


def env(name, **arguments):
    return ChoiceEnv(str(SAMPLES / f"{name}.jsonl"), preset=name, **arguments)


def test_the_instruction_stands_before_the_question_and_its_lettered_options():
    prompt, _ = env("mmlu-pro").reset(options={"uid": "9001"})
    before, question, options = prompt.split("\n\n")
    assert "LETTER is one of ABCDE." in before and question == "How many sides has a heptagon?"
    assert options.split("\n") == ["A) 5", "B) 6", "C) 7", "D) 8", "E) 9"]
    assert env("mmlu-pro", instruction="").reset(options={"uid": "9001"})[0] == f"{question}\n\n{options}"


def test_options_of_gpqa_are_shuffled_by_the_question_and_the_letter_follows():
    queries = load_queries(str(SAMPLES / "gpqa.jsonl"), preset="gpqa")
    assert [(query.uid, query.level) for query in queries] == [("rec9001", "Physics"), ("rec9002", "Chemistry")]
    for query, right in zip(queries, ("1 m/s", "C4H10"), strict=True):
        assert f"\n{query.answer}) {right}" in query.problem


@given(st.text(min_size=1))
def test_the_right_option_stands_behind_its_letter(question):
    row = {
        "Question": question,
        "Correct Answer": "right",
        **{f"Incorrect Answer {i}": f"wrong {i}" for i in (1, 2, 3)},
    }
    posed = gpqa(row)
    assert f"\n{posed['answer']}) right" in posed["Question"] and gpqa(row) == posed


def test_a_missing_column_is_named(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"Question": "?", "Correct Answer": "a", "Incorrect Answer 1": "b"}\n')
    with pytest.raises(DataError, match="row 1: no column 'Incorrect Answer 2'"):
        load_queries(str(file), preset="gpqa")


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("It floats.\nAnswer: B", "B"),
        ("Answer: A\nNo, wait.\nAnswer: C", "A"),
        ("**Answer: D**", "D"),
        ("**Answer**: $E$", "E"),
        ("Answer: (B)", "B"),
        ("answer: B) because it floats", "B"),
        ("Answer: A because it floats", "A"),
        ("Answer: \\boxed{C}", "C"),
        ("Answer: $\\boxed{\\text{J}}$", "J"),
        ("**Answer:**\n\nC", "C"),
        ("**Answer:**\n\nA heptagon has seven sides.", None),
        ("The answer is (C).", "C"),
        ("The answer is B", "B"),
        ("the correct answer is: **D**", "D"),
        ("The answer is (A). No, the answer is (B).", "A"),
        ("The answer is (A).\nAnswer: B", "B"),
        ("The answer is not B", None),
        ("The answer is C, in \\boxed{D}", "C"),
        ("so \\boxed{B}", "B"),
        ("so \\boxed{\\text{(B)}}", "B"),
        ("<think>Answer: A</think>Answer: B", "B"),
        ("<think>Answer: A", None),
        ("<think>Answer: A</think>so it is so", None),
        ("Answer: Both are right", None),
        ("Answer: A's", None),
        ("Answer: $LETTER", None),
        ("so \\boxed{12}", None),
        ("", None),
    ],
)
def test_the_letter_that_a_response_chooses(response, letter):
    assert chosen_letter(response, "ABCDEFGHIJ") == letter


@pytest.mark.parametrize(
    ("response", "of_four", "of_ten"),
    [
        ("Answer: I think B", None, None),
        ("Answer: I'd say B", None, None),
        ("The answer is I guess B", None, None),
        ("Answer: I think so.\nAnswer: B", "B", "B"),
        ("Answer: I", None, "I"),
        ("**Answer: (I)**.", None, "I"),
        ("Answer: I) 13", None, "I"),
        ("Answer: E", None, "E"),
        ("so \\boxed{E}", None, "E"),
    ],
)
def test_only_letters_of_the_question_count_and_the_pronoun_is_none(response, of_four, of_ten):
    assert (chosen_letter(response, "ABCD"), chosen_letter(response, "ABCDEFGHIJ")) == (of_four, of_ten)


@given(
    st.lists(
        st.sampled_from(["Answer: A", "answer : $B$", "ANSWER:C.", "Answer:\tD then", "The answer is (B)", "It floats"])
    )
)
def test_a_letter_that_simple_evals_finds_is_the_one_that_counts(lines):
    response = "\n".join(lines)
    if found := re.search(r"(?i)Answer[ \t]*:[ \t]*\$?([A-D])\$?", response):
        assert chosen_letter(response, "ABCD") == found[1]


def test_an_option_that_the_question_does_not_have_is_no_answer():
    one = env("mmlu-pro")
    assert one.verify(one.queries["9001"], "Answer: I think it is the third.\nThe answer is (C).").correct
    assert one.verify(one.queries["9001"], "Answer: F").reason is Reason.NO_ANSWER


def test_options_that_are_marked_otherwise_leave_every_letter(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"uid": "a", "problem": "Which?\\n\\nA. one\\nB. two", "answer": "B"}\n')
    one = ChoiceEnv(str(file))
    assert one.verify(one.queries["a"], "Answer: B").correct


@pytest.mark.parametrize(
    ("options", "letters"),
    [
        (["A) one", "B) two", "C) three"], "ABC."),
        (["A. one", "B. two", "C. three"], "ABC."),
        ([" (A) one", " (B) two"], "AB."),
        ([f"{letter}: {letter * 3}" for letter in "ABCDEFGHIJ"], "ABCDEFGHIJ."),
        (["one", "two"], "the options' letters."),
        (["B. two", "C. three"], "the options' letters."),
        (["A. Smith wrote of it"], "the options' letters."),
        (["A\uff0eone", "B\uff0etwo"], "AB."),
        (["A) x is even", "B) y is odd", "Which?", "A) one", "B) two", "C) both"], "ABC."),
        (["(A) a clause", "(B) another", "Which?", "A. one", "B. two", "C. both"], "ABC."),
        (["A: Hello.", "B: Hi.", "A: Who?", "C) one"], "the options' letters."),
    ],
)
def test_the_instruction_names_the_letters_of_the_question(tmp_path, options, letters):
    problem = "\n".join(["Which?", "", *options])
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": problem, "answer": "B"}))
    prompt, _ = ChoiceEnv(str(tmp_path / "a.jsonl")).reset(seed=0)
    assert f"where LETTER is one of {letters} " in prompt


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("Answer: A star", "B"),
        ("Answer: **A planet**", "C"),
        ("The answer is A planet.", "C"),
        ("Answer: A", "A"),
        ("Answer: A) The sun", "A"),
        ("Answer: A because it shines", "A"),
        ("Answer: A star or a planet", None),
        ("Answer: A starfish", "A"),
    ],
)
def test_a_letter_that_begins_the_text_of_another_option_names_that_one(response, letter):
    assert chosen_letter(response, "ABC", {"A": "The sun", "B": "A star", "C": "A planet"}) == letter


def test_marked_lines_that_the_reference_is_not_among_are_no_options(tmp_path):
    problem = "A. x is even.\nB. y is odd.\nWhich? (A) both (B) only A (C) only B (D) neither"
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": problem, "answer": "D"}))
    one = ChoiceEnv(str(tmp_path / "a.jsonl"))
    assert one.verify(one.query(one.uids[0]), "Answer: D").correct


def test_a_letter_before_its_own_text_is_that_letter():
    assert chosen_letter("Answer: A star", "AB", {"A": "star", "B": "The sun"}) == "A"
    own = {"A": "A star", "B": "B cells"}
    for response in ("Answer: A star", "Answer: A star, which shines", "Answer: A star (the first option)"):
        assert chosen_letter(response, "AB", own) == "A"
    assert chosen_letter("Answer: B cells, which make antibodies", "AB", own) == "B"
    both = {"A": "The sun", "B": "A star", "C": "A star cluster"}
    assert [chosen_letter(f"Answer: A {text}", "ABC", both) for text in ("star", "star cluster")] == ["B", "C"]


def one_question(tmp_path, answer):
    problem = "Which?\n\nA) 1\nB) 2\nC) B and two\nD) Two"
    (tmp_path / "a.jsonl").write_text(json.dumps({"uid": "a", "problem": problem, "answer": answer}))
    return ChoiceEnv(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    ("reference", "letter"),
    [
        *(
            (spelled, "B")
            for spelled in ("B", "(B)", "B.", "b", "(b)", "B) 2", r"\boxed{B}", "$B$", r"\text{B}", "2", 2)
        ),
        ("two", "D"),
        ("B and two", "C"),
        ("Answer: A", "A"),
    ],
)
def test_a_reference_is_the_letter_that_it_means(tmp_path, reference, letter):
    one = one_question(tmp_path, reference)
    query = one.queries["a"]
    assert query.answer == letter and one.verify(query, one.reference_response(query)).correct


@pytest.mark.parametrize("reference", ["E", "7", "A or B", "1, 2", "Both"])
def test_a_reference_that_means_no_option_is_named_with_its_row(tmp_path, reference):
    line = f"row 1: 'answer' is {reference!r}, which names no single one of the 4 options; fix: make it the letter"
    with pytest.raises(DataError, match=re.escape(line)):
        one_question(tmp_path, reference).queries["a"]


@pytest.mark.parametrize(
    ("response", "reason"), [("Answer: C", Reason.EQUAL), ("Answer: B", Reason.DIFFERENT), ("7", Reason.NO_ANSWER)]
)
def test_a_response_is_judged_by_its_letter(response, reason):
    one = env("mmlu-pro")
    verdict = one.verify(one.queries["9001"], response)
    assert (verdict.reason, verdict.correct) == (reason, reason is Reason.EQUAL)


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        (r"\boxed{E: \text{seven}}", "E"),
        (r"\boxed{\text{I: seven}}", "I"),
        (r"\boxed{(C) 12 cm}", "C"),
        ("**B.** text", "B"),
        (r"\boxed{\textbf{(B)}\ 12}", "B"),
        (r"\boxed{B. 12}", "B"),
        (r"\boxed{B) 12}", "B"),
        (r"\boxed{\text{B) twelve}}", "B"),
        (r"\boxed{\mathrm{D}}", "D"),
        (r"\boxed{\text{(D) } \frac{1}{2}}", "D"),
        ("(C) 12 cm", "C"),
        ("B", "B"),
        ("B.", "B"),
        ("**Answer: (C) 12 cm**", "C"),
        ("Answer: **B.** text", "B"),
        ("Answer: C) seven", "C"),
        ("The answer is (C): seven", "C"),
        (r"\boxed{C:}", "C"),
        ("Answer: B because C is not valid", "B"),
        ("Answer: A (not B)", "A"),
        ("Answer: A, not B", "A"),
        ("Answer: B, because A and C are wrong", "B"),
        ("Answer: B, C is invalid", "B"),
        ("Answer: B. A and C fail.", "B"),
        ("Answer: C, I think", "C"),
        ("Answer: C and I am sure", "C"),
        ("Answer: B (A and C are wrong)", "B"),
        ("Answer: B\nA or C are wrong", "B"),
        ("Answer: B since (A) and (C) are wrong", "B"),
        ("Answer: D and that is it", "D"),
        ("Answer: A rather than B", "A"),
        ("Answer: A instead of B", "A"),
        ("Answer: A - it floats", "A"),
        ("Answer: B) and so on", "B"),
        ("Answer: C, as A does not float", "C"),
        ("Answer: A is better than B or C", "A"),
        ("I", "I"),
        ("Answer: E: seven", "E"),
        ("Answer: A, a heptagon", "A"),
        (r"The final answer is $\boxed{C}$.", "C"),
        ("Answer: B (vitamin A)", "B"),
        ("Answer: C/", "C"),
        ("Answer: 'B'", "B"),
        ('Answer: "B"', "B"),
        ("Answer: A) 5, as (B) is wrong", "A"),
        ("Answer: A) 5, (B) is wrong", "A"),
        ("Answer: E) red to blue", "E"),
    ],
)
def test_the_option_text_and_remarks_leave_the_letter(response, letter):
    assert chosen_letter(response, "ABCDEFGHIJ") == letter


@pytest.mark.parametrize(
    "response",
    [
        "Answer: A or B",
        "Answer: A and B",
        "Answer: A, B",
        "Answer: A/B/C",
        "Answer: A / B",
        "The answer is A or B.",
        "The answer is either A or C.",
        "Answer: either A or C",
        "Answer: A & B",
        "Answer: A, B, or C",
        "Answer: (A) or (B)",
        "Answer: **A** or **B**",
        "Answer: $A$ or $B$",
        r"Answer: \boxed{A} or \boxed{B}",
        r"Answer: \text{A or B}",
        r"Answer: A \text{ or } B",
        r"\boxed{A or B}",
        r"\boxed{A} or \boxed{B}",
        r"\boxed{A, B}",
        r"\boxed{A: five or B: six}",
        r"\boxed{(A) 5 \text{ or } (B) 6}",
        "Answer: A (or B)",
        "Answer: A (maybe B)",
        "Answer: A, possibly B",
        "Answer: A or maybe B",
        "Answer: A) 5 cm or B) 6 cm",
        "Answer: A B",
        "Answer: A B C",
        "Answer: A|B",
        "Answer: A; B",
        "Answer: A-B",
        "Answer: A and/or B",
        "Answer: both A and B",
        "Answer: A + B",
        "A or B",
        "Answer: A or B is right",
        "A) 5 B) 6",
        "The answer is (A) or (B)",
        "Answer: A, or B",
        "Answer: A OR B",
        "Answer: A to D",
        "Answer: A through C",
        "Answer: A as well as B",
        "Answer: A plus B",
        "Answer: A vs. B",
        "Answer: A > B",
        "Answer: A = B",
        "Answer: A? B?",
        "Answer: A oder B",
        "Answer: A (could be B)",
        "Answer: A) 5, B) 6",
        "Answer: (A) 5 (B) 6",
        "Answer: A. 5 or B. 6",
        "Answer: A: 5 or B: 6",
        r"\boxed{\text{A and B}}",
        r"\boxed{\text{A}, \text{B}}",
    ],
)
def test_a_hedge_is_no_answer_boxed_or_not(response):
    assert chosen_letter(response, "ABCDEFGHIJ") is None


@pytest.mark.parametrize(
    "response",
    [
        "Answer: D",
        "Answer: D) Both (A) and (B)",
        "Answer: D (both (A) and (B))",
        "The answer is D, both (A) and (B) are true.",
        r"\boxed{D) \text{Both (A) and (B)}}",
    ],
)
def test_letters_in_the_text_of_an_option_are_no_hedge(tmp_path, response):
    problem = "Which?\n\nA) B\nB) two\nC) None\nD) Both (A) and (B)"
    (tmp_path / "a.jsonl").write_text(json.dumps({"uid": "a", "problem": problem, "answer": "D"}))
    one = ChoiceEnv(str(tmp_path / "a.jsonl"))
    assert one.verify(one.queries["a"], response).correct
    for hedge in ("D or A", "D) Both (A) and (B) or (A) B", "A, B", "A or B", "D, A"):
        assert one.verify(one.queries["a"], f"Answer: {hedge}").reason is Reason.NO_ANSWER


@pytest.mark.parametrize(
    "response",
    [
        "A) 5\nB) 6",
        r"\boxed{A heptagon}",
        "A heptagon has seven sides.",
        "I think so",
        "Both",
    ],
)
def test_a_letter_that_begins_a_sentence_or_a_list_is_no_answer(response):
    assert chosen_letter(response, "ABCDEFGHIJ") is None


def test_a_hedge_of_every_letter_is_paid_for_none():
    one = env("mmlu-pro")
    query = one.queries["9001"]
    for hedge in ("Answer: C or D", "Answer: C, D", "The answer is C or D.", "\\boxed{C or D}", "C/D"):
        assert one.verify(query, hedge).reason is Reason.NO_ANSWER


@pytest.mark.parametrize("unit", ["Answer: A or ", " A", "Answer: A,", "(A) and ", "\\boxed{A", "\\text{", "A"])
def test_long_rubbish_is_read_in_linear_time(unit):
    started = time.process_time()
    chosen_letter(unit * (200_000 // len(unit)), "ABCDEFGHIJ")
    assert time.process_time() - started < 20, "linear takes a second, quadratic hours"
