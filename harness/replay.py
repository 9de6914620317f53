"""One schedule, one world, one verdict: what replays, generated tests and reports are made of."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from harness import schedule as schedules
from harness.faults import possible
from harness.generate.vocabulary import EXTRACTOR, accepts, parts_of, takes_key
from harness.history import (
    Ended,
    Event,
    Final,
    History,
    Injected,
    Queried,
    Skipped,
    Started,
    StateObserved,
)
from harness.history import Moment as State
from harness.oracles import judge
from harness.oracles.evidence import Evidence
from harness.oracles.state import plain
from harness.places import located
from harness.schedule import Schedule, ScheduleError
from harness.verdict import Anomaly, Finding, Moment, Outcome, Verdict
from harness.worlds import SIMULATION, WORLDS, Options
from harness.worlds.actors import named
from harness.worlds.sim.world import SimWorld
from scenarios import EMPTY, KEYLESS, Scenario, ScenarioError, load, place_of
from store.streams.timestamps import extractor_of

WATCHDOG_SECONDS = 10.0
"""How long a simulated run may take, of the processor, from one protocol point to the next; most take milliseconds in
all. Its judging may for each `RECORDS_JUDGED`."""

RECORDS_JUDGED = 100


def scenario_of(schedule: Schedule, source: str = "the schedule") -> Scenario:
    """The scenario that a schedule names; `ScheduleError` lists those that exist."""
    try:
        return load(schedule.scenario)
    except ScenarioError as error:
        raise ScheduleError(f"{source}: {error}") from None


def check_input(scenario: Scenario, schedule: Schedule, source: str = "the schedule") -> None:
    """`ScheduleError` names the first thing that the scenario's pipeline does not have or take: the runtime, an input
    record, a store that a query asks. `ConfigError` names an extractor that there is not; it may lie beside the
    scenario, so that it is found no earlier."""
    parts = parts_of(scenario)
    topics = parts.inputs
    if schedule.runtime not in scenario.runtimes:
        raise ScheduleError(
            f"{source}: runtime is {schedule.runtime}, scenario {scenario.name} runs on {', '.join(scenario.runtimes)}"
        )
    if schedule.partitions < scenario.least_partitions:
        raise ScheduleError(
            f"{source}: partitions is {schedule.partitions}, scenario {scenario.name} needs {scenario.least_partitions}"
        )
    for settings in (schedule.settings, *(step.settings for step in schedule.steps)):
        extractor_of(EXTRACTOR, settings.get(EXTRACTOR))
    for index, step in enumerate(schedule.steps):
        ordinal = int(step.task.partition("_")[0])
        if ordinal not in parts.ordinals:
            there = ", ".join(f"{number}_…" for number in parts.ordinals)
            raise ScheduleError(
                f"{source}: steps[{index}].task is {step.task}, scenario {scenario.name} has tasks {there}"
            )
        if step.query is not None and (ordinal, step.query.store) not in parts.stores:
            there = ", ".join(f"{store} in tasks {number}_…" for number, store in parts.stores) or "none"
            raise ScheduleError(
                f"{source}: steps[{index}].query.store is {step.query.store!r} of task {step.task}, scenario "
                f"{scenario.name} has {there}"
            )
    for index, item in enumerate(schedule.input):
        if item.topic not in topics:
            raise ScheduleError(
                f"{source}: input[{index}].topic is {item.topic!r}, scenario {scenario.name} reads {', '.join(topics)}"
            )
        if not takes_key(scenario, item.key):
            key = {KEYLESS: "a record without a key", EMPTY: "the key of no bytes"}.get(
                item.key, f"the key {item.key!r}"
            )
            raise ScheduleError(
                f"{source}: input[{index}]: scenario {scenario.name} does not take {key}: all keys of its input have "
                f"to match {scenario.keys!r}"
            )
        if not accepts(scenario, item, index):
            value = msgspec.json.encode(item.value).decode()
            raise ScheduleError(
                f"{source}: input[{index}]: scenario {scenario.name} does not take the value {value} "
                f"for key {item.key!r}: {scenario.summary}"
            )


def simulate(scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> tuple[History, Verdict]:
    """Run in the simulation and judge."""
    with _collected_afterwards():
        history = _SIMULATION.run(scenario, schedule, mutant)
        return history, judge(scenario, schedule, history)


_SIMULATION = SimWorld()


_MANY_OBJECTS = 100_000


@contextmanager
def _heard() -> Iterator[None]:
    """Have an interrupt in the block end it, wherever that comes. Only in the main thread, where signals arrive.

    One that comes while garbage is freed is raised in what the interpreter calls then, which says that it is ignored
    and goes on; one that comes while something is closed may give place to an error of that. So it is raised at the end
    of the block again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False
    before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        try:
            before[number](number, frame)
        except KeyboardInterrupt:
            interrupted = True
            raise

    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if callable(handler):
            before[number] = handler
            signal.signal(number, handle)
    try:
        yield
    finally:
        for replaced, earlier in before.items():
            signal.signal(replaced, earlier)
        if interrupted:
            raise KeyboardInterrupt


@contextmanager
def _collected_afterwards() -> Iterator[None]:
    """Collect garbage at the end of the block, and only what came up in it; before that only when there is very much.

    Nearly all objects of a run are freed without the collector. Left to itself it would look through them again and
    again, and from time to time through everything that the process has loaded.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_MANY_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
        gc.unfreeze()


_LEAST_ALARMS = 10
_AGAIN_S = 1.0


class DidNotEndError(BaseException):
    """The watchdog's alarm. Not an `Exception`, so that production code does not take it for one of its own."""


@contextmanager
def watchdog(seconds: float, done: Callable[[], int] = lambda: 0) -> Iterator[Callable[[], None]]:
    """Raise `DidNotEndError` inside the block when it takes longer without getting on: the time begins anew where an
    alarm finds that `done` gives another number than it did before. Only in the main thread, where signals arrive.

    That is time of the processor, so that a busy machine makes no difference; and who takes none, for it waits for
    something, has ten times as long by the clock, and ten alarms, of which a process that is stopped hears one. Gives a
    function that lets the time begin anew. A timer that runs already goes on afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    worked = time.process_time()
    waited = time.monotonic()
    alarms = 0
    before = done()

    def bark(_signal: int, _frame: FrameType | None) -> None:
        nonlocal alarms
        if done() != before:
            begin()
            signal.setitimer(signal.ITIMER_REAL, seconds)
            return
        alarms += 1
        left = worked + seconds - time.process_time()
        waits = alarms >= _LEAST_ALARMS and time.monotonic() >= waited + _LEAST_ALARMS * seconds
        if left <= 0 or waits:
            # Again, should the interpreter ignore what is raised here, as it does while it frees garbage.
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            raise DidNotEndError
        signal.setitimer(signal.ITIMER_REAL, max(0.001, left))

    def begin() -> None:
        nonlocal worked, waited, alarms, before
        worked, waited, alarms, before = time.process_time(), time.monotonic(), 0, done()

    handler = signal.signal(signal.SIGALRM, bark)
    started = time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield begin
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - started)), interval)


@contextmanager
def bounded(scenario: Scenario, what: str, seconds: float = WATCHDOG_SECONDS) -> Iterator[None]:
    """Raise `ScenarioError` inside the block when what the scenario has to say takes longer; see `watchdog`."""
    try:
        with watchdog(seconds):
            yield
    except DidNotEndError:
        raise ScenarioError(
            f"scenario {scenario.name} did not end: after {seconds:g} s {what} was still going on"
        ) from None


def simulate_within(
    seconds: float, scenario: Scenario, schedule: Schedule, mutant: str | None = None
) -> tuple[History, Verdict]:
    """`simulate`; a run that does not end, as when production code loops between two protocol points, is violated.

    Its history is empty: nothing can be said of a run that was broken off anywhere. Raises `ScenarioError` when it is
    the judging that does not end.
    """
    return simulate_all(seconds, scenario, [schedule], mutant)[0]


def simulate_all(
    seconds: float, scenario: Scenario, schedules: Sequence[Schedule], mutant: str | None = None
) -> list[tuple[History, Verdict]]:
    """`simulate_within` of several schedules, in their order: all are run first and then judged, which a processor's
    caches like better than taking turns."""
    with _heard(), _collected_afterwards():
        histories = _run_all(seconds, scenario, schedules, mutant)
        found: list[tuple[History, Verdict]] = []
        for schedule, history in zip(schedules, histories, strict=True):
            if isinstance(history, str):
                found.append((History(SIMULATION, []), _endless(history)))
                continue
            longest = seconds * (1 + len(schedule.input) / RECORDS_JUDGED)
            with bounded(scenario, "what its reference function says of one run", longest):
                found.append((history, judge(scenario, schedule, history)))
        return found


def _run_all(
    seconds: float, scenario: Scenario, schedules: Sequence[Schedule], mutant: str | None
) -> list[History | str]:
    """The histories of these schedules; of one that does not end, where code of its scenario was then, see `place_of`.
    Where one does not, most others do not either, and are not waited for as long."""
    found: list[History | str] = []
    while len(found) < len(schedules):
        endless = any(isinstance(one, str) for one in found)
        with watchdog(seconds / 10 if endless else seconds, lambda: _SIMULATION.points) as begin:
            for schedule in schedules[len(found) :]:
                begin()
                try:
                    found.append(_SIMULATION.run(scenario, schedule, mutant))
                except DidNotEndError as error:
                    found.append(place_of(error))
                    break
    return found


def _endless(place: str) -> Verdict:
    sentence = (
        f"The run did not end: it was broken off between two protocol points{place}, which are "
        "milliseconds apart elsewhere."
    )
    return Verdict(Outcome.VIOLATED, (Finding("errors", sentence, Anomaly.STUCK),))


Replayed = tuple[Verdict, tuple[str, ...]]
"""The verdict, and which settings are other than the scenario pins, and of each step that did not apply, why."""


def replay(
    schedule: Schedule,
    world: str,
    mutant: str | None = None,
    source: str = "the schedule",
    options: Options | None = None,
) -> Replayed:
    """Run in `world` and judge.

    Where the schedule does not say otherwise, settings are as the scenario pins them. A run that shows nothing is
    inconclusive: without input, with no step that applied, or with a fault that this world cannot make.
    """
    # A world is dear: what is wrong with the schedule is said before it is opened.
    _check(schedule, source)
    with replaying(world, options) as play:
        return play(schedule, mutant, source)


class Replay(Protocol):
    """`replay` in a world that is open."""

    def __call__(
        self, schedule: Schedule, mutant: str | None = None, source: str = "the schedule"
    ) -> Replayed: ...


@contextmanager
def replaying(world: str, options: Options | None = None) -> Iterator[Replay]:
    """Open `world` for several replays."""
    if WORLDS[world].spreads:

        def simulated(
            schedule: Schedule, mutant: str | None = None, source: str = "the schedule"
        ) -> Replayed:
            scenario, pinned = _check(schedule, source)
            return _replayed(world, scenario, pinned, *_simulate_often(scenario, pinned, mutant))

        yield simulated
        return
    with WORLDS[world].open(options or Options()) as running:

        def real(schedule: Schedule, mutant: str | None = None, source: str = "the schedule") -> Replayed:
            scenario, pinned = _check(schedule, source)
            history = running.run(scenario, pinned, mutant)
            return _replayed(world, scenario, pinned, history, judge(scenario, pinned, history))

        yield real


_REPEATS = 10
"""One in a thousand pipelines that toss a coin gets away with that."""


def _simulate_often(scenario: Scenario, schedule: Schedule, mutant: str | None) -> tuple[History, Verdict]:
    """`simulate_within`; a schedule that holds now and may not hold the next time is not said to hold."""
    history, verdict = simulate_within(WATCHDOG_SECONDS, scenario, schedule, mutant)
    # When RocksDB flushes and compacts is its own affair: what is in real files may differ from run to run.
    if verdict.outcome is not Outcome.HOLDS or schedule.files:
        return history, verdict
    differs = False
    for again, other in simulate_all(WATCHDOG_SECONDS, scenario, [schedule] * (_REPEATS - 1), mutant):
        if other.outcome is Outcome.VIOLATED:
            return again, replace(other, reason=f"it failed when it was run again, {NOT_ALIKE}")
        differs = differs or again.events != history.events or other != verdict
    if differs:
        return history, Verdict(Outcome.INCONCLUSIVE, (), f"it held each time, {NOT_ALIKE}")
    return history, verdict


NOT_ALIKE = (
    "but not all runs of it were alike: is the pipeline deterministic? (random numbers, the clock, an object of the "
    "module that outlives a run)"
)


def _check(schedule: Schedule, source: str) -> tuple[Scenario, Schedule]:
    """The scenario, and the schedule with what that pins."""
    scenario = scenario_of(schedule, source)
    with bounded(scenario, "its pipeline or what it takes"):
        check_input(scenario, schedule, source)
    return scenario, as_pinned(scenario, schedule)


def as_pinned(scenario: Scenario, schedule: Schedule) -> Schedule:
    """The schedule with the settings that its scenario pins, but for those that it has itself."""
    return replace(schedule, settings={**scenario.settings, **schedule.settings})


def unmakeable(schedule: Schedule, world: str) -> list[str]:
    """The faults of a schedule that a world cannot make."""
    can = possible(WORLDS[world].capabilities)
    return [step.fault for step in schedule.steps if step.fault and step.fault not in can]


def _replayed(
    world: str, scenario: Scenario, schedule: Schedule, history: History, verdict: Verdict
) -> Replayed:
    skips = {event.step: event.reason for event in history.events if isinstance(event, Skipped)}
    skipped = [f"step {step} ({schedule.steps[step]}) was skipped: {why}" for step, why in skips.items()]
    others = [
        f"{name} is {schedule.settings[name]!r} in the schedule, and scenario {scenario.name} pins it to {pinned!r}"
        for name, pinned in scenario.settings.items()
        if schedule.settings[name] != pinned
    ]
    reason = ""
    unreal = unmakeable(schedule, world)
    if not schedule.input:
        reason = "the schedule has no input, so this shows nothing"
    elif unreal:
        able = [name for name in WORLDS if not unmakeable(schedule, name)]
        reason = f"the world {world} cannot do {', '.join(unreal)}, so this shows nothing; " + (
            f"replay it with --world {able[0]}" if able else "no world can do all that its steps name"
        )
    elif schedule.steps and len(skipped) == len(schedule.steps):
        reason = "none of its steps applied, so this shows nothing"
    if verdict.outcome is Outcome.HOLDS and reason:
        verdict = Verdict(Outcome.INCONCLUSIVE, (), reason)
    return verdict, (*others, *skipped)


def check(schedule: str | Path, world: str = SIMULATION) -> None:
    """For tests: run a schedule and raise AssertionError with the findings, if any.

    It is given as its text, or as the path of its file, from where it names its scenario. Raises `ValueError` for a
    world that there is not, and `ScheduleError` for what is no schedule.
    """
    if world not in WORLDS:
        raise ValueError(f"no world is named {world!r}; there are {', '.join(WORLDS)}")
    if isinstance(schedule, Path):
        found = located(schedules.load(schedule), schedule, None)
    elif not isinstance(schedule, str):
        raise ScheduleError(f"{schedule!r} is no schedule: give its text, or the Path of its file")
    else:
        found = schedules.decode(schedule.encode())
    verdict, _ = replay(found, world)
    if verdict.outcome is not Outcome.HOLDS:
        raise AssertionError(
            "\n".join([verdict.reason, *(finding.sentence for finding in verdict.findings)]).strip()
        )


def tell(schedule: Schedule, history: History, findings: Sequence[Finding] = ()) -> tuple[Moment, ...]:
    """The run step by step, with the expected and the actual state at every look, and the outputs where `findings` have
    something about them."""
    scenario = scenario_of(schedule)
    final = next((event for event in reversed(history.events) if isinstance(event, Final)), None)
    evidence = (
        None
        if final is None
        else Evidence(scenario, schedule, history.events, final, uncaused=history.uncaused)
    )
    moments: list[Moment] = []
    for index, event in enumerate(history.events):
        found = [finding for finding in findings if finding.event == index and finding.place is not None]
        moment = _moment(event, schedule, evidence, found)
        if moment is not None and not (moment.kind == "injected" and moments and moments[-1] == moment):
            if moment.kind == "opened" and moments and _is_look_of(moments[-1], moment):
                # It looks whenever another one of its stores is open.
                moments.pop()
            moments.append(moment)
        # They are observed before the look that they belong to.
        moments += _outputs(findings, index - 1, "then")
    return (*moments, *_outputs(findings, len(history.events), "at the end"))


def _is_look_of(before: Moment, moment: Moment) -> bool:
    return (before.kind, before.task, before.incarnation) == (moment.kind, moment.task, moment.incarnation)


def _outputs(findings: Sequence[Finding], event: int, when: str) -> list[Moment]:
    """What differs in the topics that are written to, if anything was found at an event."""
    expected: dict[str, dict[str, Any]] = {}
    actual: dict[str, dict[str, Any]] = {}
    tasks = set()
    for finding in findings:
        if finding.event != event or finding.oracle != "output" or finding.place is None:
            continue
        tasks.add(finding.task)
        for side, values in ((expected, finding.expected), (actual, finding.actual)):
            rows = side.setdefault(finding.place, {})
            if values is not None:
                rows["all keys" if finding.key is None else finding.key] = values
    if not tasks:
        return []
    task = tasks.pop() if len(tasks) == 1 else None
    what = f"what could be read of the outputs {when}"
    return [Moment(what, "output", task, None, None, expected, actual, True)]


_LOOKS = {
    State.OPENED: "has opened its stores, and not restored them yet",
    State.RESTORED: "has restored its stores",
    State.COMMITTED: "has committed",
    State.FOLLOWED: "has followed",
    State.FINAL: "at the end",
}


def _moment(
    event: Event, schedule: Schedule, evidence: Evidence | None, found: Sequence[Finding]
) -> Moment | None:
    match event:
        case Started():
            what = f"{named(event.task)} starts on host {event.host}"
            if event.settings:
                what += " with " + ", ".join(f"{name}={value}" for name, value in event.settings.items())
            return _plain(what, "started", event.task, event.incarnation)
        case Injected():
            what = f"step {event.step}: {schedule.steps[event.step]}"
            return _plain(what, "injected", event.task, event.incarnation, event.step)
        case Skipped():
            what = f"step {event.step} is skipped: {event.reason}"
            return _plain(what, "skipped", None, None, event.step)
        case Queried():
            what = f"step {event.step}: {schedule.steps[event.step]}: "
            what += event.error if event.rows is None else f"{len(event.rows)} rows"
            return _plain(what, "queried", event.task, event.incarnation, event.step)
        case StateObserved():
            return _look(event, evidence, found)
        case Ended():
            error = f": {event.error}" if event.error else ""
            what = f"task {event.task} ends, {event.reason}{error}"
            return _plain(what, "ended", event.task, event.incarnation)
    return None


def _look(event: StateObserved, evidence: Evidence | None, found: Sequence[Finding]) -> Moment:
    """What a look saw. Only stores that stand where some order of the input leads have an expectation; where records
    may count twice, only those that are wrong all the same, by `found`."""
    model = None if evidence is None else evidence.tasks.get(event.task)
    expected: dict[str, dict[str, Any]] = {}
    differs = False
    for store, image in event.stores.items():
        ways = [] if model is None else model.at(image.positions)
        states = [line.prefixes[number].rows(store) for line, number in ways]
        if states:
            right = next((rows for rows in states if rows == image.rows), None)
            differs |= right is None
            expected[store] = {key: plain(value) for key, value in (right or states[0]).items()}
    judged = evidence is not None
    if evidence is not None and not evidence.exact:
        judged = differs = any(finding.place in event.stores for finding in found)
        expected = {store: dict(image.rows) for store, image in event.stores.items()}
        for finding in found:
            if finding.place in expected and finding.key is not None:
                expected[finding.place][finding.key] = finding.expected
    positions: dict[str, int] = {}
    for image in event.stores.values():
        for topic, offset in (image.positions if model is None else model.read(image.positions)).items():
            positions[topic] = min(offset + 1, positions.get(topic, offset + 1))
    where = f" on host {event.host}" if event.moment is State.FINAL or event.standby else ""
    what = "a standby's copies" if event.standby else _LOOKS[event.moment]
    return Moment(
        f"task {event.task} {what}{where}",
        "standby" if event.standby else str(event.moment),
        event.task,
        event.incarnation,
        positions,
        expected if judged else None,
        {store: image.rows for store, image in event.stores.items()},
        # What was only opened, or lies on the disk of some host, may be behind or between two commits.
        differs and event.moment in (State.RESTORED, State.COMMITTED) and not event.standby,
    )


def _plain(
    what: str, kind: str, task: str | None, incarnation: int | None, step: int | None = None
) -> Moment:
    return Moment(what, kind, task, incarnation, None, None, None, False, step)
