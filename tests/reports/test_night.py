"""A night's page and its summary: right for none, one and many nights, and safe whatever stands in them."""

from __future__ import annotations

import re

import msgspec
import pytest

from harness.night import Answer, Change, Commit, Night, NightResult, Standing
from harness.verdict import Outcome
from reports import html, night
from reports.trend import HEIGHT, MOST_CHANGES, MOST_NIGHTS, Chart, duration, trend
from tests.reports import sample_nights, samples
from tests.reports.test_html import ALLOWED, Page, shape

DRAWN = {"figure", "figcaption", "svg", "rect"}
MANY = sample_nights.many(43)


def hostile() -> list[Night]:
    """Nights in which every text came from an enemy."""
    nights = sample_nights.many(4)
    for number, each in enumerate(nights):
        text = samples.HOSTILE[number]
        each.version = each.machine = each.command = each.started = text
        each.commit = Commit(text, dirty=True)
        each.notes = list(samples.HOSTILE)
        for index, world in enumerate(each.worlds):
            world.world = samples.HOSTILE[index]
            world.standing = Standing.VIOLATED
            world.reasons = list(samples.HOSTILE)
            world.report = f"{samples.HOSTILE[index]}/report.html"
            world.faults = dict.fromkeys(samples.HOSTILE, 1)
            world.failures = [
                msgspec.structs.replace(
                    sample_nights.failing(kept=True),
                    file=text,
                    oracle=text,
                    scenario=text,
                    sentence=text,
                    replay=text,
                )
                for text in samples.HOSTILE
            ]
            world.answers = [
                Answer(text, (Outcome.HOLDS, Outcome.VIOLATED)[number % 2], (text,), text)
                for text in samples.HOSTILE
            ]
    return nights


def chart(title: str, world: str, nights: list[Night]) -> Chart:
    (found,) = [each for each in trend(nights).worlds if each.world == world]
    return next(each for each in found.charts if each.title == title)


def test_without_a_night_there_is_nothing_to_draw() -> None:
    found = trend([])
    assert (found.worlds, found.rows, found.changes) == ((), (), ())
    assert "No night yet." in Page(html.render(samples.holds(), found)).text


def test_one_night_is_one_bar_of_full_height() -> None:
    only = sample_nights.many(1)
    found = chart("Schedules", "sim", only)
    assert [bar.height for bar in found.bars] == [HEIGHT]
    assert found.summary == "12,037 in the only night"
    assert chart("Failing schedules", "sim", only).bars[0].height == 0
    page = Page(night.html(sample_nights.result(only), only))
    assert "1 night" in page.text


def test_of_many_nights_the_last_are_drawn_in_their_order() -> None:
    nights = sample_nights.many(MOST_NIGHTS + 20)
    found = trend(nights)
    assert found.nights == MOST_NIGHTS
    bars = chart("Schedules", "sim", nights).bars
    assert [bar.x for bar in bars] == sorted(bar.x for bar in bars)
    assert all(bar.x >= 0 and bar.x + bar.width <= found.width for bar in bars)
    assert all(bar.y >= 0 and bar.y + bar.height == pytest.approx(HEIGHT) for bar in bars)
    assert f"Night {nights[-1].number}," in bars[-1].title
    assert [row.night for row in found.rows] == sorted((row.night for row in found.rows), reverse=True)


def test_bars_stand_as_their_numbers_do() -> None:
    nights = [sample_nights.night(number, sample_nights.world("sim", 1)) for number in (1, 2, 3)]
    for each, schedules in zip(nights, (100, 50, 0), strict=True):
        each.worlds[0].schedules = schedules
    assert [bar.height for bar in chart("Schedules", "sim", nights).bars] == [HEIGHT, HEIGHT / 2, 0]
    assert chart("Schedules", "sim", nights).summary == "last 0, most 100, least 0"


def test_a_night_without_numbers_is_no_night_of_nothing() -> None:
    nights = [
        sample_nights.night(1, sample_nights.world("sim", 1)),
        sample_nights.night(2, finished=False),
        sample_nights.night(3, sample_nights.world("sim", 1, Standing.NOT_RUN)),
    ]
    bars = chart("Schedules", "sim", nights).bars
    assert [bar.style for bar in bars] == ["holds", "absent", "absent"]
    assert "did not finish" in bars[1].title
    assert "not run" in bars[2].title
    outcomes = {row.night: (row.standing, row.schedules) for row in trend(nights).rows}
    assert outcomes[2] == ("did not finish", "–")
    assert outcomes[3] == ("not run", "–")


def test_the_report_of_a_world_shows_that_world_alone() -> None:
    found = trend(MANY, "local")
    assert [each.world for each in found.worlds] == ["local"]
    assert {row.world for row in found.rows} == {"local", ""}
    assert {change.world for change in found.changes} == {"local"}


def test_a_report_without_a_history_has_no_trend() -> None:
    assert 'id="trend"' not in html.render(samples.holds())


def test_the_numbers_behind_the_bars_are_a_table() -> None:
    page = Page(night.html(sample_nights.result(MANY), MANY))
    for each in MANY:
        for world in each.worlds:
            if world.standing is not Standing.NOT_RUN:
                assert f"{world.schedules:,}" in page.text
    labels = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert labels
    assert all(each["role"] == "img" and each["aria-label"] for each in labels)


def test_the_page_says_which_kept_schedules_changed_their_answer_and_at_which_commits() -> None:
    text = Page(night.html(sample_nights.result(MANY), MANY)).text
    assert "a.json in sim: holds in night 42" in text
    assert f"violated by state in night 43 at {MANY[-1].commit}" in text


def test_changes_beyond_the_most_are_counted() -> None:
    nights = [
        sample_nights.night(number, sample_nights.world("sim", 10 - number % 2 * 7)) for number in range(60)
    ]
    found = trend(nights)
    assert len(found.changes) == MOST_CHANGES
    assert found.more_changes == 59 - MOST_CHANGES


@pytest.fixture(scope="module", params=["many", "hostile"])
def nights(request: pytest.FixtureRequest) -> list[Night]:
    return MANY if request.param == "many" else hostile()


def test_no_tag_attribute_or_handler_of_the_page_comes_from_the_data(nights: list[Night]) -> None:
    friendly = Page(night.html(sample_nights.result(MANY[:40]), MANY[:40]))
    page = Page(night.html(sample_nights.result(nights), nights))
    assert {tag for tag, _ in page.tags} <= ALLOWED | DRAWN
    names = {name for _, name in shape(page)}
    assert not {name for name in names if name.startswith("on")}
    assert names.isdisjoint({"src", "style", "srcdoc", "action", "formaction", "autofocus"})
    assert shape(page) <= shape(friendly) | {("li", "class"), ("strong", "class")}
    for tag, attributes in page.tags:
        if tag == "a":
            assert re.match(r"#|[^:]*/report\.html$", attributes["href"] or "")


def test_the_page_holds_no_character_that_acts_on_a_reader() -> None:
    source = night.html(sample_nights.result(hostile()), hostile())
    source.encode("utf-8")
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", source
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain kafka_committed, a-b 1.5 (x)", "plain kafka_committed, a-b 1.5 (x)"),
        ("**bold** _it_ `code` ~x~", r"\*\*bold\*\* \_it\_ \`code\` \~x\~"),
        ("[a](http://x) @all #7 a|b", r"\[a\](http&#58;//x) &#64;all \#7 a\|b"),
        ("<b>&amp;\\", r"&lt;b&gt;&amp;amp;\\"),
        ("two\nlines\t\x1b[31m", r"two lines \\u001b\[31m"),
        ("- item", r"\- item"),
        ("# head", r"\# head"),
    ],
)
def test_a_text_is_shown_and_not_obeyed_by_markdown(text: str, shown: str) -> None:
    assert night.escaped(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a", "`a`"), ("`a``b", "``` `a``b ```"), ("a|b", "`a\\|b`"), ("", "` `"), ("a\nb", "`a b`")],
)
def test_code_ends_where_it_has_to(text: str, shown: str) -> None:
    assert night.code(text) == shown


def test_a_command_cannot_end_its_block() -> None:
    assert night.block("a\n```\n# b") == ["````", "a\n```\n# b", "````"]


def test_hostile_texts_add_no_line_of_their_own_to_the_summary() -> None:
    summary = night.markdown(sample_nights.result(hostile()), hostile())
    outside = re.sub(r"^(`{3,})\n.*?\n\1$", "", summary, flags=re.DOTALL | re.MULTILINE)
    assert "\x1b" not in summary
    for line in outside.splitlines():
        assert not line or line.startswith(
            ("# ", "## ", "| ", "|---", "- ", "**", "Started ", "Violated", "Page ", "…")
        ), line
    assert not re.search(r"(?<!\\)<(?!$)|onerror=alert\(1\)>", re.sub(r"(`+)[^`].*?\1", "", outside))


def test_the_summary_names_each_world_and_each_failing_schedule_with_its_command() -> None:
    nights = [each for each in MANY if each.standing is Standing.VIOLATED]
    result = sample_nights.result(nights[:1])
    summary = night.markdown(result, nights[:1])
    assert summary.startswith(f"# Night {nights[0].number}: violated\n")
    for world in nights[0].worlds:
        assert f"| `{world.world}` | **{world.standing}** |" in summary
    assert "```\ncrashproof replay lost-deletion.json\n```" in summary


def test_hundreds_of_failures_are_counted() -> None:
    last = sample_nights.night(1, sample_nights.world("sim", 1, Standing.VIOLATED))
    last.worlds[0].failures = [sample_nights.failing(f"file-{number}") for number in range(300)]
    answered = sample_nights.result([last])
    summary = night.markdown(answered, [last])
    assert "… and 280 more failing schedules" in summary
    assert "300 failing schedules" in summary
    assert "100 more failing schedules" in Page(night.html(answered, [last])).text


def test_a_changed_answer_stands_in_the_summary() -> None:
    result: NightResult = sample_nights.result(MANY)
    (change,) = result.changed
    assert isinstance(change, Change)
    assert night.escaped(str(change)) in night.markdown(result, MANY)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (3_599, "1 h 00 min"), (3_900, "1 h 05 min")],
)
def test_a_duration_is_short(seconds: float, said: str) -> None:
    assert duration(seconds) == said
