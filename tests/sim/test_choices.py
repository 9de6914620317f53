"""What the simulated broker asks its chooser, and what the answers change."""

from __future__ import annotations

from random import Random

import pytest

from harness.choices import Choice, FirstChoice, RecordedChoices
from harness.worlds.sim import broker as sim
from harness.worlds.sim.broker import Phase, SimBroker, SimLog, SimProducer
from store.log.protocol import Fetch
from store.types import IsolationLevel, TopicPartition
from tests.sim.differential import Answer, Op, Recording, compare
from tests.sim.sequences import FACTS, of_seeds

OUT = TopicPartition("out", 0)
OTHER = TopicPartition("out", 1)
RU = IsolationLevel.READ_UNCOMMITTED


class Answers:
    """Answers some questions as told, all others with the first option."""

    def __init__(self, **answers: int) -> None:
        self.answers = {getattr(sim, name): answer for name, answer in answers.items()}

    def choose(self, what: str, options: int, /) -> int:
        answer = self.answers.get(what, 0)
        assert answer < options
        return answer


def broker_with(chooser: Answers | RecordedChoices, **settings: int) -> SimBroker:
    broker = SimBroker(chooser=chooser, **settings)  # type: ignore[arg-type]
    broker.create_topic("out", 2)
    return broker


def begun(broker: SimBroker, transactional_id: str = "a") -> SimProducer:
    producer = SimLog(broker).producer(transactional_id, 60_000)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def there(broker: SimBroker, tp: TopicPartition = OUT) -> list[bytes | None]:
    return [record.value for record in broker.visible(tp, RU)]


def test_a_queue_is_sent_before_anybody_waits_for_it() -> None:
    broker = broker_with(Answers(SEND_NOW=1))
    begun(broker).produce("out", b"k", b"1", partition=0)
    assert there(broker) == [b"1"]


def test_a_queue_is_kept_although_it_is_as_long_as_linger_allows() -> None:
    broker = broker_with(Answers(SEND_NOW=1), linger_records=1)
    producer = begun(broker)
    producer.produce("out", b"k", b"1", partition=0)
    assert there(broker) == []
    producer.flush()
    assert there(broker) == [b"1"]


def test_the_markers_of_an_acknowledged_commit_come_late() -> None:
    broker = broker_with(Answers(MARK_NOW=1))
    producer = begun(broker)
    producer.produce("out", b"k", b"1", partition=0)
    producer.commit_transaction()
    assert [txn.phase for txn in broker.transactions()] == [Phase.PREPARE_COMMIT]
    assert broker.last_stable_offset(OUT) == 0
    broker.settle()
    assert broker.last_stable_offset(OUT) == 2


@pytest.mark.parametrize(("answer", "first", "last"), [(0, OUT, OTHER), (1, OTHER, OUT)])
def test_any_partition_of_a_transaction_is_marked_first(
    answer: int, first: TopicPartition, last: TopicPartition
) -> None:
    broker = broker_with(Answers(MARK_NOW=1, MARKED_PLACE=answer))
    producer = begun(broker)
    for partition in (0, 1):
        producer.produce("out", b"k", b"1", partition=partition)
    producer.commit_transaction()
    broker.settle(1)
    assert (broker.last_stable_offset(first), broker.last_stable_offset(last)) == (2, 0)


@pytest.mark.parametrize("answer", [0, 1])
def test_any_of_the_held_transactions_is_marked_first(answer: int) -> None:
    broker = broker_with(Answers(MARK_NOW=1, MARKED_TRANSACTION=answer))
    for name, partition in (("a", 0), ("b", 1)):
        producer = begun(broker, name)
        producer.produce("out", b"k", b"1", partition=partition)
        producer.commit_transaction()
    broker.settle(1)
    assert [txn.phase is Phase.COMPLETE_COMMIT for txn in broker.transactions()] == [answer == 0, answer == 1]


@pytest.mark.parametrize(("answer", "taken"), [(0, OTHER), (1, OUT)])
def test_a_record_without_a_key_takes_any_partition(answer: int, taken: TopicPartition) -> None:
    broker = broker_with(Answers(KEYLESS_PARTITION=answer))
    broker.append("out", b"k", b"0", partition=0)
    broker.append("out", None, b"1")
    assert there(broker, taken)[-1:] == [b"1"]


def test_only_listed_questions_are_asked_and_only_with_more_than_one_option() -> None:
    chooser = RecordedChoices()
    broker = SimBroker(chooser=chooser)
    broker.create_topic("log", 3, {"cleanup.policy": "compact,delete", "retention.ms": "1"})
    for number in range(9):
        broker.append("log", b"k", b"1", partition=number % 3)
    broker.compact(TopicPartition("log", 0))
    broker.advance(10)
    broker.retain(TopicPartition("log", 0))
    for ops in [*FACTS.values(), *of_seeds(range(20))]:
        compare(ops, Agreeing(), SimBroker(chooser=chooser))
    assert {choice.what for choice in chooser.asked} <= set(sim.QUESTIONS)
    assert all(choice.options > 1 for choice in chooser.asked)


class Agreeing(Recording):
    """A real side that answers what the simulated one does."""

    def __init__(self) -> None:
        super().__init__([])

    def answer(self, _step: int, _op: Op, expected: Answer, *_rest: object) -> Answer:
        return expected


def test_the_same_answers_give_the_same_logs_and_the_same_questions() -> None:
    def run(answers: list[int]) -> tuple[list[Choice], Fetch, list[object]]:
        chooser = RecordedChoices(answers)
        broker = broker_with(chooser)
        first, second = begun(broker, "a"), begun(broker, "b")
        for number in range(6):
            for producer in (first, second):
                producer.produce("out", None, b"%d" % number)
        first.commit_transaction()
        second.abort_transaction()
        broker.settle()
        fetch = SimLog(broker).reader().read(OUT, 0, 100, RU)
        return chooser.asked, fetch, [broker.entries(OUT), broker.entries(OTHER)]

    random = Random(1)
    runs = [[random.randint(0, 1) for _ in range(40)] for _ in range(20)]
    results = [run(answers) for answers in runs]
    assert results == [run(answers) for answers in runs]
    assert len({str(entries) for _, _, entries in results}) > 10


def test_without_a_chooser_the_first_option_is_taken_everywhere() -> None:
    for ops in FACTS.values():
        with_chooser = compare(ops, Agreeing(), SimBroker(chooser=FirstChoice()))
        assert compare(ops, Agreeing(), SimBroker()) == with_chooser
