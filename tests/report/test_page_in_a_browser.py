"""The page as a reader sees it, in a real Chromium."""

import pytest

from algorithms.report import main
from r3env.printable import printable
from website.browser import NAMES, Browser, find_browser

from .runs import HOSTILE, make_run

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason=f"no Chromium: neither $CHROMIUM nor any of {', '.join(NAMES)}; `make browser` installs one",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(find_browser(), tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [make_run(folder, "one"), make_run(folder, "two", steps=3, finished=False, training__lr=3e-4)]
    assert main([*map(str, runs), "--out", str(folder / "report.html")]) == 0
    return folder / "report.html"


@pytest.fixture
def page(browser, file):
    browser.open(file)
    yield browser
    assert browser.errors == []


def test_runs_curves_evaluations_and_settings_are_drawn(page):
    assert page.texts("#facts-table tbody th") == [" one", " two"]
    assert "3 of 4, not finished" in page.texts("#facts-table td")
    assert page.value("document.querySelectorAll('[data-tag=\"reward/mean\"] path.curve').length") == 2
    assert page.value("document.querySelectorAll('.panel').length") == 8
    assert page.texts("#differing tbody tr") == ["training.lr0.00010.0003"]
    assert any(cell.startswith("+25.0 % [") for cell in page.texts("#evaluation td"))


def test_curves_smooth_change_their_axis_and_tell_values(page):
    path = "document.querySelector('[data-tag=\"policy/entropy\"] path.curve:not(.raw)').getAttribute('d')"
    raw = page.value(path)
    page.value("""(() => { const slider = document.getElementById('smoothing'); slider.value = 0.9;
        slider.dispatchEvent(new Event('input')); })()""")
    page.wait("document.querySelector('[data-tag=\"policy/entropy\"] path.raw')")
    assert page.value(path) != raw
    page.point(".choice button:nth-child(2)", press=True)
    page.wait("[...document.querySelectorAll('.panel .tick')].some((tick) => tick.textContent === '300')")
    page.point('[data-tag="reward/mean"] svg', across=0.99)
    assert "step 4, 352 tokens" in page.texts("#tip")[0] and "0.4" in page.texts("#tip b")[0]


def test_trajectories_are_filtered(page):
    count = "document.getElementById('count').textContent"
    assert page.value(count).startswith("56 of 56")
    for name, value, expected in (
        ("context", "replayed", 7),
        ("context", "reflection", 14),
        ("outcome", "truncated", 7),
        ("step", "4", 8),
        ("run", "1", 24),
    ):
        change = f"""(() => {{ const select = document.getElementById('filter-{name}');
            const choose = (value) => {{ select.value = value; select.dispatchEvent(new Event('change')); }};
            choose('{value}'); const shown = {count}; choose(''); return shown; }})()"""
        assert page.value(change).startswith(f"{expected} of 56"), name
    page.value("""(() => { const uid = document.getElementById('filter-uid'); uid.value = 'q-2';
        uid.dispatchEvent(new Event('input')); })()""")
    assert page.value(count).startswith("14 of 56")


def test_a_group_opens_side_by_side_with_its_numbers(page):
    page.point("#list tbody tr", press=True)
    assert page.texts(".card .badge") == ["correct", "incorrect", "truncated", "correct", "replayed"]
    assert page.texts(".card .badge ~ .soft") == ["accepted", "not accepted", "no answer was found"]
    numbers = page.texts(".card:nth-child(3) .numbers > *")
    assert numbers == ["reward", "0", "ranking reward", "−0.05", "advantage", "−0.7", "tokens", "11"]
    assert page.value("location.hash") == "#group=0.1.0"
    assert page.texts(".group > .turn > span") == ["user", "reference answer"]
    assert page.texts(".group > .turn > .words")[-1] == "2"
    page.value("[...document.querySelectorAll('button')].find((b) => b.textContent.startsWith('next group')).click()")
    assert page.texts(".group > .turn > span") == ["user", "quoted attempt", "user", "reference answer"]


def test_turns_that_the_policy_wrote_are_told_from_those_it_was_given(page, file):
    page.open(file, fragment="#group=0.1.2")
    first = ".card:nth-child(1) .turn"
    assert page.texts(f"{first} > span") == ["policy", "reward 0", "user", "policy", "reward 1"]
    assert page.texts(f"{first} .words") == ["5<|end|>", "No.", "4<|end|>"], "the next turn is the feedback"


def test_feedback_and_baseline_are_shown_as_text(page, file):
    page.open(file, fragment="#group=0.1.2")
    judged = ".card:nth-child(2) .judged"
    assert page.texts(f"{judged} > *") == ["reward −0.25", HOSTILE[1]]
    assert page.value("document.title") == "one, two"
    assert page.texts(".group h3 .soft") == [" baseline pair"]


def test_tokens_have_their_own_advantages_where_they_differ(page, file):
    page.open(file, fragment="#group=0.1.2")
    page.point(".group .choice button:nth-child(2)", press=True)
    tokens = "[...document.querySelectorAll('.card:nth-child(1) .token')]"
    assert page.value(f"{tokens}.map((token) => token.classList[1])") == ["down", "down", "up", "up"]
    assert page.value(f"{tokens}.map((t) => t.style.getPropertyValue('--strength'))") == ["38%", "38%", "75%", "75%"]
    assert page.texts("#color-key") == ["negativepositive"]
    page.point(".card:nth-child(1) .token")
    assert page.texts("#tip b")[-1] == "−0.5"


def test_tokens_are_colored_and_tell_their_numbers(page, file):
    page.open(file, fragment="#group=0.1.0")
    strength = (
        "[...document.querySelectorAll('.card:nth-child(1) .token')].map((t) => t.style.getPropertyValue('--strength'))"
    )
    by_entropy = page.value(strength)
    assert by_entropy[0] == "0%" and by_entropy[-1] == "75%" and len(by_entropy) == 11
    assert "1 of 4 have no entropies and show −log-prob" in page.texts("#color-key")[0]
    page.point(".card:nth-child(1) .token:nth-child(3)")
    assert page.texts("#tip b") == ['"1"', "−0.400  (67.0 %)", "0.300 nats", "+0.7"]
    page.point(".group .choice button:nth-child(2)", press=True)
    assert set(page.value(strength)) == {"75%"}
    assert page.value("document.querySelector('.card:nth-child(2) .token').className") == "token down"


def test_what_a_policy_wrote_is_text(page, file):
    page.open(file, fragment="#group=0.1.2")
    assert "".join(page.texts(".card:nth-child(2) .token")) == printable("".join(HOSTILE).replace("\ud800", "?"))
    assert page.value("document.title") == "one, two"
    assert page.value("document.querySelectorAll('img, iframe').length") == 0


def test_a_script_that_got_in_would_not_run(browser, file, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(file.read_text().replace("</main>", "<script>document.title = 'owned'</script></main>"))
    browser.open(broken)
    assert browser.value("document.title") == "one, two"
    assert any("Content Security Policy" in error for error in browser.errors)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_phones_and_laptops_by_day_and_night(page, file, width, dark):
    page.open(file, width=width, dark=dark, fragment="#group=0.1.0")
    assert page.value("document.documentElement.scrollWidth") <= width
    paper = page.value("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
