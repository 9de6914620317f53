"""JUnit XML: one suite per world, one case per scenario and property, and one case `verdict`.

Must survive: characters that XML forbids, in any text; results that contradict themselves. No case is
green unless the run shows it: a finding is a `failure`; a run or world that is inconclusive makes its
`verdict` case an `error` (it says neither right nor wrong, and a continuous build must stop on it) and
the other cases without a finding `skipped`, so that there is one red mark per world, and none that claims
a violation which nobody saw.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from harness.oracles import PROPERTIES
from harness.result import Failure, Result, WorldResult
from harness.verdict import Outcome
from reports.summary import reasons, sentence, worlds
from reports.text import count, shorten, visible, write_atomically

_LONGEST = 1_000
_MOST = 200


def write(result: Result, path: Path) -> None:
    """Write `result`, whole or not at all. Raises OSError."""
    root = ElementTree.Element("testsuites", name="crashproof", time=_seconds(result.seconds))
    for name, world in worlds(result).items() or {"run": WorldResult()}.items():
        root.append(_suite(result, name, world))
    for number in ("tests", "failures", "errors", "skipped"):
        root.set(number, str(sum(int(suite.get(number, "0")) for suite in root)))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    write_atomically(path, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n')


def _suite(result: Result, name: str, world: WorldResult) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_text(name), time=_seconds(world.seconds))
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _properties(result, world):
        ElementTree.SubElement(properties, "property", name=_text(key), value=_text(str(value)))

    failures = [failure for failure in result.details if failure.world == name]
    # Of a run that holds, the reasons say what it was not asked.
    unknown = bool(result.reasons) and result.verdict is not Outcome.HOLDS
    inconclusive = unknown or bool(world.missing) or result.verdict is Outcome.INCONCLUSIVE
    scenarios = dict.fromkeys([*result.scenarios, *(failure.minimal.scenario for failure in failures)])
    extra = (finding.oracle for failure in failures for finding in failure.findings)
    oracles = dict.fromkeys([*(each.name for each in PROPERTIES), *extra])
    for scenario in scenarios:
        for oracle in oracles:
            case = _case(suite, name, scenario, oracle)
            broken = [
                failure
                for failure in failures
                if failure.minimal.scenario == scenario
                and any(finding.oracle == oracle for finding in failure.findings)
            ]
            if broken:
                _failure(case, broken, oracle)
            elif inconclusive or not world.scenarios.get(scenario):
                why = "the run is inconclusive" if inconclusive else "no schedule ran here"
                ElementTree.SubElement(case, "skipped", message=f"No finding, but {why}.")

    case = _case(suite, name, "", "verdict")
    silent = [failure for failure in failures if not failure.findings]
    if silent or (result.verdict is Outcome.VIOLATED and not result.details):
        message = _text(sentence(result))
        files = [failure.file for failure in silent] or result.failures
        ElementTree.SubElement(case, "failure", message=message).text = _block(files)
    elif inconclusive:
        texts = reasons(result)
        ElementTree.SubElement(
            case, "error", type="inconclusive", message=_text(sentence(result))
        ).text = _block(texts)
    elif not world.schedules and not failures:
        ElementTree.SubElement(case, "skipped", message="No schedule ran here.")

    suite.set("tests", str(len(suite.findall("testcase"))))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
    return suite


def _case(suite: ElementTree.Element, world: str, scenario: str, oracle: str) -> ElementTree.Element:
    parts = ["crashproof", world, scenario] if scenario else ["crashproof", world]
    classname = ".".join(_text(part) for part in parts)
    return ElementTree.SubElement(suite, "testcase", classname=classname, name=_text(oracle), time="0.000")


def _failure(case: ElementTree.Element, failures: list[Failure], oracle: str) -> None:
    lines: list[str] = []
    for failure in failures[:_MOST]:
        lines += [finding.sentence for finding in failure.findings if finding.oracle == oracle]
        lines += [f"  {failure.note}"] if failure.note else []
        lines += [f"  schedule: {failure.file}", f"  replay:   {failure.replay}"]
    if len(failures) > _MOST:
        lines.append(f"{count(len(failures) - _MOST, 'more schedule')}: see the JSON report.")
    texts = [_text(line) for line in lines]
    ElementTree.SubElement(case, "failure", type=_text(oracle), message=texts[0]).text = "\n".join(texts)


def _properties(result: Result, world: WorldResult) -> list[tuple[str, object]]:
    counts: list[tuple[str, object]] = [
        ("verdict", result.verdict.value),
        ("seed", result.seed),
        ("mutant", result.mutant or ""),
        ("schedules", world.schedules),
        ("schedules_per_second", f"{world.schedules_per_second:.1f}"),
        ("skipped_steps", world.skipped),
        ("repeated", world.repeated),
        ("queries", world.queries),
        ("missing", len(world.missing)),
    ]
    for group, numbers in (
        ("scenarios", world.scenarios),
        ("runtimes", world.runtimes),
        ("kills", world.kills),
        ("faults", world.faults),
        ("reached", world.reached),
        *((f"varied.{setting}", values) for setting, values in world.varied.items()),
    ):
        counts += [(f"{group}.{key}", number) for key, number in numbers.items()]
    counts += [(f"cells.{cell.runtime}.{cell.fault}.{cell.point}", cell.count) for cell in world.cells]
    counts += [(f"pairs.{pair.mechanism}.{pair.store}.{pair.fault}", pair.count) for pair in world.pairs]
    return counts + [(f"environment.{key}", value) for key, value in result.environment.items()]


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _text(text: str) -> str:
    return shorten(visible(text), _LONGEST)


def _block(texts: list[str]) -> str:
    more = [count(len(texts) - _MOST, "more line")] if len(texts) > _MOST else []
    return "\n".join([*map(_text, texts[:_MOST]), *more])
