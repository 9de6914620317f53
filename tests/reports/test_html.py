"""The page: right, whole, and safe whatever stands in the result."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from harness.faults import FAULTS
from harness.oracles import PROPERTIES
from harness.result import Cell, Pair, Result, Value
from harness.schedule import Input, QueryKind, decode
from harness.verdict import Outcome
from reports import html, summary
from store.points import Point
from tests.reports import samples

VOID = {"meta", "input", "br", "link", "img"}
ALLOWED = set(
    re.findall(
        r"\w+",
        """
        html head meta title style body a main header p h1 h2 h3 h4 span b i strong section ul ol li details
        summary div pre button table thead tbody tr th td code br article dl dt dd script label input output
        """,
    )
)


class Page(HTMLParser):
    """Every tag with its attributes, and the text, of a page whose tags must be balanced."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.raw: dict[str, str] = {}
        self.parts: dict[str, list[str]] = {}
        self.ids: list[tuple[int, str]] = []
        self.feed(source)
        self.close()
        assert self.open == []
        self.by_id = {name: "".join(parts) for name, parts in self.parts.items()}

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag in ("th", "td", "dt", "dd", "li", "p", "h1", "h2", "h3", "h4"):
            self.texts.append(" ")
        if tag not in VOID:
            self.open.append(tag)
            found = dict(attrs).get("id")
            if found is not None:
                assert found not in self.parts, f"two elements are called {found}"
                self.parts[found] = []
                self.ids.append((len(self.open), found))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.ids = [(depth, name) for depth, name in self.ids if depth <= len(self.open)]

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.raw[self.open[-1]] = self.raw.get(self.open[-1], "") + data
            return
        self.texts.append(data)
        for _, name in self.ids:
            self.parts[name].append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data!r}")


def shape(page: Page) -> set[tuple[str, str]]:
    return {(tag, name) for tag, attributes in page.tags for name in attributes}


RESULTS = {
    "holds": samples.holds,
    "violated": samples.violated,
    "inconclusive": samples.inconclusive,
    "hostile": samples.hostile,
}


@pytest.fixture(scope="module", params=RESULTS)
def source(request: pytest.FixtureRequest) -> str:
    return html.render(RESULTS[request.param]())


def test_no_tag_attribute_or_handler_comes_from_the_data(source: str) -> None:
    page = Page(source)
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 1
    names = {name for _, name in shape(page)}
    assert not {name for name in names if name.startswith("on")}
    assert names.isdisjoint({"src", "style", "srcdoc", "action", "formaction", "autofocus"})
    assert all(
        (attributes["href"] or "").startswith("#") for _, attributes in page.tags if "href" in attributes
    )


def test_hostile_texts_add_no_kind_of_tag_or_attribute_to_the_page() -> None:
    friendly = set().union(
        *(shape(Page(html.render(make()))) for name, make in RESULTS.items() if name != "hostile")
    )
    assert shape(Page(html.render(samples.hostile()))) <= friendly


def test_nothing_on_the_page_is_fetched(source: str) -> None:
    page = Page(source)
    assert {tag for tag, _ in page.tags}.isdisjoint(
        {"link", "img", "iframe", "object", "embed", "base", "form"}
    )
    assert "url(" not in page.raw["style"]
    assert "@import" not in page.raw["style"]


def test_the_content_policy_names_exactly_the_script_and_style_that_stand_in_the_page(source: str) -> None:
    page = Page(source)
    (policy,) = [
        a["content"] or "" for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'")
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.raw[tag].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy


def test_the_page_holds_no_character_that_acts_on_a_reader(source: str) -> None:
    source.encode("utf-8")
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", source
    )


def test_every_link_leads_to_something_on_the_page(source: str) -> None:
    page = Page(source)
    targets = {(a["href"] or "")[1:] for tag, a in page.tags if tag == "a"}
    targets |= {a["data-copy"] or "" for tag, a in page.tags if "data-copy" in a}
    targets |= {a["data-story"] or "" for tag, a in page.tags if "data-story" in a}
    assert targets <= set(page.by_id)


@pytest.mark.parametrize("name", RESULTS)
def test_the_verdict_is_the_headline(name: str) -> None:
    result = RESULTS[name]()
    page = html.render(result)
    headline = re.search(r"<h1>(.*?)</h1>", page, re.DOTALL)
    assert headline is not None
    assert headline[1].lower().startswith(result.verdict.value)


def test_why_a_run_is_inconclusive_stands_on_the_page() -> None:
    result = samples.inconclusive()
    text = Page(html.render(result)).text
    assert "Why it is inconclusive" in text
    assert result.reasons[0] in text
    for missing in samples.MISSING:
        assert f"{missing} had to be met and was not" in text


def test_all_counts_of_a_world_stand_on_the_page() -> None:
    result = samples.holds()
    text = Page(html.render(result)).text
    for world in result.worlds.values():
        for numbers in (world.scenarios, world.runtimes, world.kills):
            for name, number in numbers.items():
                assert f"{name} {number:,}" in text
        assert (
            f"{world.schedules:,} in {world.seconds:,.1f} s, {summary.rate(world.schedules_per_second)}"
            in text
        )
        assert f"Steps skipped {world.skipped:,}" in text
        assert f"Run twice {world.repeated:,}" in text


def rows(page: str, section: str = "places") -> dict[str, list[str]]:
    """First cell of a row of a section's table → the texts of the others."""
    table = page[page.index(f'<h2 id="{section}">') :]
    table = table[: table.index("</section>")]
    found = {}
    for row in re.findall(r"<tr><th scope=\"row\".*?</tr>", table, re.DOTALL):
        cells = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
        point = re.search(r"<th[^>]*>(?:<code>(.*?)</code>|([^<]*))", row)
        assert point is not None
        found[point[1] or point[2]] = [" ".join(re.sub("<[^>]*>", " ", cell).split()) for cell in cells]
    return found


def test_the_places_are_every_point_in_protocol_order_with_its_meaning_and_then_the_calls() -> None:
    page = html.render(samples.holds())
    assert list(rows(page)) == [*Point, "before flush", "on commit_transaction"]
    text = Page(page).text
    assert set(summary.meanings(Point)) == set(Point)
    assert set(summary.meanings(QueryKind)) == set(QueryKind)
    assert all(meaning in text for meaning in summary.meanings(Point).values())


def test_the_places_say_how_often_processes_died_there_in_each_world_and_runtime() -> None:
    result = samples.holds()
    sim, local = result.worlds["sim"], result.worlds["local"]
    found = rows(html.render(result))
    for point in Point:
        crashes = [
            sum(
                cell.count
                for cell in world.cells
                if (cell.runtime, cell.point, cell.fault) == (runtime, point, "kill")
            )
            for world in (sim, local)
            for runtime in ("worker", "spark")
        ]
        numbers = [*crashes, sim.reached[point], local.reached[point]]
        expected = [f"{number:,}" if number else "·" for number in numbers]
        if point is Point.FLUSHED:
            expected[0] += " + 230"
        assert found[point] == expected
    assert found["on commit_transaction"][0] == "+ 198"
    assert found["before flush"][0] == "541"


def test_a_place_that_had_to_be_met_and_was_not_is_marked_and_no_other() -> None:
    found = rows(html.render(samples.inconclusive()))
    marked = {
        (point, column)
        for point, cells in found.items()
        for column, cell in enumerate(cells)
        if "missing" in cell
    }
    assert marked == {("restore_batch", 2), ("batch_applied", 3)}


def test_a_missing_fault_where_another_one_struck_shows_both() -> None:
    result = samples.holds()
    result.worlds["local"].missing = [Cell("worker", "wipe", "flushed")]
    assert rows(html.render(result))["flushed"][2] == "2 missing wipe"


def test_a_place_that_this_release_does_not_know_is_not_dropped() -> None:
    result = samples.inconclusive()
    result.worlds["local"].missing = [Cell("worker", "kill", "a_new_point")]
    result.worlds["local"].faults["a_new_fault"] = 7
    page = html.render(result)
    assert rows(page)["a_new_point"][2] == "missing kill"
    assert rows(page, "faults")["a_new_fault"] == ["·", "7"]


def test_every_fault_is_listed_with_its_sentence_and_how_often_it_happened_where_it_is_possible() -> None:
    page = html.render(samples.holds())
    found = rows(page, "faults")
    assert list(found) == list(FAULTS)
    text = Page(page).text
    assert all(fault.sentence in text for fault in FAULTS.values())
    assert (found["wipe"], found["power_loss"]) == (["512", "5"], ["541", "impossible"])
    assert found["resume"] == ["·", "·"]


def test_deaths_are_counted_by_mechanism_and_type_of_store() -> None:
    result = samples.holds()
    result.worlds["sim"].pairs = [Pair("none", "window", "kill", 1_234)]
    result.worlds["sim"].missing = [Pair("rocksdb_secondary", "window", "wipe")]
    found = rows(html.render(result), "pairs")
    assert found == {"none": ["window", "1,234", "·"], "rocksdb_secondary": ["window", "·", "missing"]}


def test_settings_are_listed_with_the_schedules_that_ran_with_each_value() -> None:
    result = samples.holds()
    result.varied = {"commit.records": {"1": 1_500, "3": 526}}
    result.worlds["sim"].missing = [Value("commit.records", "5")]
    text = Page(html.render(result)).text
    assert "commit.records 1 1,500 3 526 5 missing" in text.replace(
        "1 1,5003 5265 missing", "1 1,500 3 526 5 missing"
    )


def test_a_failure_tells_what_differs_how_it_came_and_how_to_run_it_again() -> None:
    result = samples.violated()
    failure = result.details[0]
    page = Page(html.render(result))
    for finding in failure.findings:
        assert finding.sentence in page.text
    for moment in failure.moments:
        assert moment.what in page.text
    assert page.by_id["failure-1-replay"] == failure.replay
    assert "input records 24 4" in page.text
    assert "steps 4 2" in page.text
    assert "commit.records 2 num.standby.replicas 1" in page.text
    assert FAULTS["kill"].sentence in page.text
    assert "Another thread of the task's process asks. One row" in page.text
    assert "after input offset 4" in page.text
    assert "147 executions" in page.text
    assert "1 input 0 ann 5 60000 committed 2 input 0 bob 7 0 trace=17 committed" in page.text
    assert "3 input 0 cy 1 0 aborted 4 closed 0 ann null 0 committed" in page.text


def test_only_the_keys_that_differ_are_highlighted() -> None:
    result = samples.violated()
    source = html.render(result)
    restored = source[source.index('<tbody id="f1-m6"') :]
    restored = restored[: restored.index("</tbody>")]
    cells = re.findall(r"<td data-label=\"(\w+)\"( class=\"[^\"]*diff\")?[^>]*>(.*?)</td>", restored)
    plain = [(label, bool(marked), re.sub("<[^>]*>", "", body).strip()) for label, marked, body in cells]
    assert plain == [
        ("Key", True, "ann accounts"),
        ("Expected", True, "absent"),
        ("Actual", True, "5 ≠"),
        ("Key", False, "bob accounts"),
        ("Expected", False, "7"),
        ("Actual", False, "7"),
    ]


@pytest.mark.parametrize(
    ("expected", "actual"), [(1, True), (0, False), (None, "null"), (1, "1"), ([1], [1, None]), ("", None)]
)
def test_values_that_look_alike_are_told_apart(expected: Any, actual: Any) -> None:
    result = samples.violated()
    moment = samples.moment("x", "final", 1, 1, {"s": {"k": expected}}, {"s": {"k": actual}})
    result.details = [msgspec.structs.replace(result.details[0], moments=(moment,))]
    assert html.render(result).count('data-label="Expected" class="diff"') == 1


def test_a_null_value_is_not_shown_as_an_absent_key() -> None:
    result = samples.violated()
    moment = samples.moment("x", "final", 1, 1, {"s": {"k": None}}, {"s": {}})
    result.details = [msgspec.structs.replace(result.details[0], moments=(moment,))]
    page = Page(html.render(result))
    assert "k s null absent ≠" in page.text


def test_a_state_of_which_nothing_is_asked_differs_from_nothing_and_lacks_nothing() -> None:
    result = samples.violated()
    moment = samples.moment("x", "restored", 1, 1, None, {"s": {"k": 5}})
    moment = msgspec.structs.replace(moment, differs=False)
    result.details = [msgspec.structs.replace(result.details[0], moments=(moment,))]
    page = Page(html.render(result))
    assert "k s not judged 5" in page.text
    assert "≠" not in page.text


def test_outputs_that_differ_are_marked_with_both_sides_of_each_topic() -> None:
    result = samples.violated()
    moment = samples.moment("the outputs", "output", 1, None, {"totals": {"k": [1]}}, {"totals": {"k": [2]}})
    result.details = [msgspec.structs.replace(result.details[0], moments=(moment,))]
    page = Page(html.render(result))
    assert "⇥ the outputs" in page.text
    assert "k totals [1] [2] ≠" in page.text


def test_the_json_on_the_page_is_the_schedule() -> None:
    result = samples.violated()
    text = Page(html.render(result)).by_id["failure-1-json"]
    assert decode(text.encode()) == result.details[0].minimal


@pytest.mark.parametrize("key", [text for text in samples.HOSTILE if "surrogate" not in text])
def test_the_json_on_the_page_is_the_schedule_also_with_a_hostile_key(key: str) -> None:
    result = samples.violated()
    minimal = msgspec.structs.replace(result.details[0].minimal, input=(Input(0, key, {key: key}),))
    result.details = [msgspec.structs.replace(result.details[0], minimal=minimal)]
    text = Page(html.render(result)).by_id["failure-1-json"]
    assert decode(text.encode()) == minimal


@pytest.mark.parametrize("text", samples.HOSTILE)
def test_the_pytest_file_hands_the_schedule_to_check_and_nothing_else(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = samples.lost_deletion()
    minimal = msgspec.structs.replace(failure.minimal, scenario=text, input=(Input(0, text, [text]),))
    findings = (msgspec.structs.replace(failure.findings[0], sentence=text + "\nimport nothing_of_the_kind"),)
    failure = msgspec.structs.replace(failure, minimal=minimal, findings=findings, world="local")
    calls: list[tuple[str, str]] = []
    replay = ModuleType("harness.replay")
    monkeypatch.setattr(replay, "check", lambda json, world: calls.append((json, world)), raising=False)
    monkeypatch.setitem(sys.modules, "harness.replay", replay)
    source = html.pytest_file(failure)
    names: dict[str, Any] = {}
    exec(compile(source.encode(), "test_reproduction.py", "exec"), names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    test()
    ((schedule, world),) = calls
    assert world == "local"
    assert json.loads(schedule)["input"] == [{"partition": 0, "key": text, "value": [text]}]


def test_the_pytest_file_says_when_it_needs_a_planted_bug_to_fail() -> None:
    failure = samples.lost_deletion()
    assert "# Found with the planted bug restore_forgets_deletions;" in html.pytest_file(failure)
    clean = msgspec.structs.replace(failure, minimal=msgspec.structs.replace(failure.minimal, mutant=None))
    assert "planted bug" not in html.pytest_file(clean)


def test_steps_are_numbered_from_0_as_findings_number_them() -> None:
    page = Page(html.render(samples.violated()))
    assert [a["start"] for tag, a in page.tags if tag == "ol"] == ["0"]


def test_a_failure_without_moments_steps_records_or_findings_is_shown() -> None:
    result = samples.violated()
    minimal = msgspec.structs.replace(result.details[0].minimal, input=(), steps=())
    result.details = [msgspec.structs.replace(result.details[0], minimal=minimal, moments=(), findings=())]
    text = Page(html.render(result)).text
    assert "No finding was recorded." in text
    assert "None: it fails without any fault." in text
    assert "No records." in text


def test_many_failures_are_capped_with_a_sentence_and_stay_closed() -> None:
    result = samples.violated()
    result.details = result.details * 450
    page = Page(html.render(result))
    failures = [a for tag, a in page.tags if tag == "details" and a.get("class") == "failure"]
    assert len(failures) == html.MOST_FAILURES
    assert not any("open" in a for a in failures)
    assert "The first 200 of 450 failures are shown." in page.text


def test_failing_schedules_without_details_are_listed() -> None:
    result = samples.violated()
    result.failures = [*result.failures, "failures/other.json"]
    assert "failures/other.json" in Page(html.render(result)).text


def test_a_long_key_is_cut_and_its_length_is_said() -> None:
    page = Page(html.render(samples.hostile()))
    assert "(10,000 characters)" in page.text
    assert "k" * 10_000 not in page.by_id["f1-m1"]


def test_a_big_state_is_cut_and_its_differing_keys_stay() -> None:
    expected = {"s": {f"key{number:05}": number for number in range(5_000)}}
    actual = {"s": {**expected["s"], "key04999": -1}}
    result = samples.violated()
    moment = samples.moment("x", "final", 1, 1, expected, actual)
    result.details = [msgspec.structs.replace(result.details[0], moments=(moment,))]
    page = Page(html.render(result))
    assert "key04999 s 4999 -1 ≠" in page.text
    assert "4,960 more keys not shown" in page.text


def test_without_scripts_every_moment_is_there_and_no_dead_control() -> None:
    page = Page(html.render(samples.violated()))
    assert all("hidden" not in a for tag, a in page.tags if tag in ("tbody", "tr", "td"))
    assert all("hidden" in a for tag, a in page.tags if tag == "button" and a.get("class") == "copy")
    assert all("hidden" in a for tag, a in page.tags if a.get("class") == "stepper")


def test_what_it_shows_says_what_is_unknown() -> None:
    text = Page(html.render(samples.holds())).text
    shows = text[text.index("What this shows") :]
    assert "Demonstrated In the world sim" in shows
    assert "38 real processes ended by SIGKILL" in shows
    assert "drawn from seed 20417" in shows
    assert "Power loss of a real disk." in shows


def test_a_run_of_the_simulation_alone_claims_nothing_about_real_processes() -> None:
    result = samples.holds()
    result.worlds = {"sim": result.worlds["sim"]}
    text = Page(html.render(result)).text
    assert "SIGKILL, on a real broker" not in text
    assert "only simulations ran" in text


def test_a_violated_or_inconclusive_run_does_not_claim_that_the_specification_held() -> None:
    claim = "In every one of the runs counted here"
    assert claim in html.render(samples.holds())
    assert claim not in html.render(samples.violated())
    assert claim not in html.render(samples.inconclusive())


def test_a_run_that_holds_lists_every_property_that_was_judged() -> None:
    text = Page(html.render(samples.holds())).text
    assert all(each.sentence in text for each in PROPERTIES)


def test_an_empty_result_gives_a_page() -> None:
    result = Result(Outcome.INCONCLUSIVE, 0, 0.0, {}, [], "", {}, 0, 0.0)
    text = Page(html.render(result)).text
    assert "no world took part" in text
    assert "No reason was recorded." in text


def test_the_same_result_gives_the_same_bytes() -> None:
    assert html.render(samples.hostile()) == html.render(samples.hostile())


def test_rendering_leaves_the_result_as_it_was() -> None:
    result = samples.violated()
    html.render(result)
    assert result == samples.violated()


def test_a_report_that_cannot_be_made_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "report.html"
    html.write(samples.holds(), path)
    before = path.read_bytes()

    def full(self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        html.write(samples.violated(), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
