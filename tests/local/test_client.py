"""The judge's client: it says what lies in a real cluster, and shares nothing with the adapter under test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError, KafkaException

from harness.cli.errors import exit_code
from harness.worlds.cluster import Bounds, Written
from harness.worlds.local.broker import LocalBroker
from harness.worlds.real import client
from harness.worlds.real.client import ClientError, PlainCluster
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.types import Record, TopicPartition

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def cluster(broker: LocalBroker) -> Iterator[PlainCluster]:
    with PlainCluster(broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def topic(cluster: PlainCluster, unique: Unique) -> str:
    """An empty topic with two partitions."""
    name = unique("topic")
    cluster.create([TopicSpec(name, 2)])
    return name


def written(topic: str, *keys: str, partition: int = 0, timestamp: int = 7) -> list[Written]:
    return [Written(topic, partition, key.encode(), b"value", timestamp, ()) for key in keys]


def keys(records: object) -> list[bytes | None]:
    assert isinstance(records, list)
    return [record.key for record in records]


def test_a_record_reads_back_with_all_that_it_had(cluster: PlainCluster, topic: str) -> None:
    headers = (("trace", b"\xff\x00"), ("trace", b""), ("", b"x"), ("none", None))
    cluster.write([Written(topic, 1, b"key", None, 86_400_000, headers)], abort=False)
    assert cluster.committed(topic, 1) == [Record(topic, 1, 0, b"key", None, 86_400_000, headers)]
    assert cluster.committed(topic, 0) == []


def test_an_empty_topic_reads_as_empty(cluster: PlainCluster, topic: str) -> None:
    assert (cluster.bounds(topic, 0), cluster.committed(topic, 0)) == (Bounds(0, 0, 0), [])


def test_what_is_written_plainly_has_no_marker_behind_it(cluster: PlainCluster, topic: str) -> None:
    cluster.write_plainly(written(topic, "a", "b"))
    assert cluster.bounds(topic, 0) == Bounds(0, 2, 2)
    assert keys(cluster.committed(topic, 0)) == [b"a", b"b"]


def test_records_keep_their_order_in_each_of_several_partitions(cluster: PlainCluster, topic: str) -> None:
    first, second = written(topic, *"abcd"), written(topic, *"efgh", partition=1)
    mixed = [record for pair in zip(first, second, strict=True) for record in pair]
    cluster.write(mixed, abort=False)
    assert keys(cluster.committed(topic, 0)) == [b"a", b"b", b"c", b"d"]
    assert keys(cluster.committed(topic, 1)) == [b"e", b"f", b"g", b"h"]


def test_what_was_aborted_takes_offsets_and_is_not_read(cluster: PlainCluster, topic: str) -> None:
    cluster.write(written(topic, "a", "b"), abort=False)
    cluster.write(written(topic, "c"), abort=True)
    cluster.write(written(topic, "d"), abort=False)
    cluster.write(written(topic, "e"), abort=True)
    # Four records, a marker behind each transaction.
    assert cluster.bounds(topic, 0) == Bounds(0, 9, 9)
    read = cluster.committed(topic, 0)
    assert [(record.key, record.offset) for record in read] == [(b"a", 0), (b"b", 1), (b"d", 5)]


def test_a_partition_of_nothing_but_what_was_aborted_reads_as_empty(
    cluster: PlainCluster, topic: str
) -> None:
    cluster.write(written(topic, "a"), abort=True)
    assert (cluster.bounds(topic, 0), cluster.committed(topic, 0)) == (Bounds(0, 2, 2), [])


def test_the_least_timestamp_is_what_it_says_and_never_the_clock(cluster: PlainCluster, topic: str) -> None:
    cluster.write(written(topic, "a", timestamp=0) + written(topic, "b", timestamp=1), abort=False)
    assert [record.timestamp for record in cluster.committed(topic, 0)] == [cluster.earliest, 1]


def test_topics_keep_records_of_any_time_whatever_the_pipeline_wants(
    cluster: PlainCluster, log: KafkaLog, unique: Unique
) -> None:
    name = unique("windows-changelog")
    cluster.create([TopicSpec(name, 1, {"cleanup.policy": "compact,delete", "retention.ms": "1"})])
    admin = log.admin()
    found = admin.topic_config(name)
    admin.close()
    assert (found["retention.ms"], found["cleanup.policy"]) == ("-1", "compact,delete")


def test_a_marker_of_today_closes_no_segment_of_records_of_long_ago(
    broker: LocalBroker, cluster: PlainCluster, topic: str
) -> None:
    """A closed segment is what a broker may compact."""
    for _ in range(3):
        cluster.write(written(topic, "a"), abort=False)
    (segment,) = broker.directory.glob(f"data/{topic}-0/*.log")
    assert segment.stem == "0" * 20


def test_while_a_transaction_is_open_it_is_told_from_what_is_stable(
    cluster: PlainCluster, log: KafkaLog, topic: str, unique: Unique
) -> None:
    group, place = unique("group"), TopicPartition(topic, 0)
    producer = log.producer(unique("id"), 600_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"a", b"value", partition=0)
    producer.flush()
    assert cluster.bounds(topic, 0) == Bounds(0, 0, 1)
    assert cluster.committed(topic, 0) == []
    assert cluster.undecided([(topic, 0), (topic, 1)], 0) == [(topic, 0)]
    producer.send_offsets(group, {place: 5})
    producer.commit_transaction()
    producer.close()
    assert cluster.undecided([(topic, 0), (topic, 1)]) == []
    assert cluster.bounds(topic, 0) == Bounds(0, 2, 2)
    assert cluster.position(group, topic, 0) == 5
    assert cluster.position(group, topic, 1) is None


def test_a_position_that_a_transaction_holds_is_waited_for(
    broker: LocalBroker, cluster: PlainCluster, log: KafkaLog, topic: str, unique: Unique
) -> None:
    group, place = unique("group"), TopicPartition(topic, 0)
    producer = log.producer(unique("id"), 600_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets(group, {place: 5})
    with PlainCluster(broker.bootstrap, patience_s=1.0) as impatient:
        assert impatient.position(group, topic, 0) is None
    with ThreadPoolExecutor() as asking:
        position = asking.submit(cluster.position, group, topic, 0)
        producer.commit_transaction()
        producer.close()
        assert position.result() == 5


def test_the_coordinator_of_a_group_is_confirmed_without_a_word_to_that_group(
    cluster: PlainCluster, topic: str, unique: Unique
) -> None:
    group = unique("group")
    cluster.confirm_coordinator(group, topic)
    assert cluster.position(group, topic, 0) is None


def test_a_group_that_never_committed_has_no_position(
    cluster: PlainCluster, topic: str, unique: Unique
) -> None:
    assert cluster.position(unique("group"), topic, 0) is None


def test_it_imports_nothing_of_the_adapter_under_test() -> None:
    adapter = {name for name in sys.modules if name.startswith("store.log.kafka")}
    assert adapter
    of_the_adapter = {
        name
        for name, value in vars(client).items()
        if getattr(value, "__module__", getattr(value, "__name__", "")) in adapter
    }
    assert of_the_adapter == set()


def test_it_says_the_truth_while_the_adapter_says_nothing_but_rubbish(
    cluster: PlainCluster, topic: str, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rubbish(*_: object, **__: object) -> object:
        raise AssertionError("the judge asked the adapter under test")

    for name, module in list(sys.modules.items()):
        if name.startswith("store.log.kafka"):
            for kind in [value for value in vars(module).values() if isinstance(value, type)]:
                for call in [call for call, value in vars(kind).items() if callable(value)]:
                    if kind.__module__.startswith("store.log.kafka") and not call.startswith("__"):
                        monkeypatch.setattr(kind, call, rubbish)
    with pytest.raises(AssertionError):
        KafkaLog("127.0.0.1:1").reader().offsets(TopicPartition(topic, 0), None)  # type: ignore[arg-type]
    other = unique("other")
    cluster.create([TopicSpec(other, 1)])
    cluster.write(written(other, "a", "b"), abort=False)
    assert keys(cluster.committed(other, 0)) == [b"a", b"b"]
    assert cluster.bounds(other, 0) == Bounds(0, 3, 3)
    assert cluster.position(unique("group"), other, 0) is None


@pytest.mark.parametrize(
    "ask",
    [
        lambda cluster: cluster.create([TopicSpec("topic", 1)]),
        lambda cluster: cluster.write(written("topic", "a"), abort=False),
        lambda cluster: cluster.bounds("topic", 0),
        lambda cluster: cluster.committed("topic", 0),
        lambda cluster: cluster.position("group", "topic", 0),
        lambda cluster: cluster.confirm_coordinator("group", "topic"),
    ],
)
def test_a_cluster_that_is_gone_is_one_sentence_and_says_nothing_about_the_pipeline(
    ask: Callable[[PlainCluster], object],
) -> None:
    with (
        PlainCluster("127.0.0.1:1", patience_s=0.5) as nowhere,
        pytest.raises(ClientError, match=r"^The judge could not [^\n]*\.$") as caught,
    ):
        ask(nowhere)
    assert exit_code(caught.value) == 3


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError._DESTROY_BROKER,
        KafkaError._NODE_UPDATE,
    ],
)
def test_what_passes_when_leaders_have_moved_is_asked_again(
    cluster: PlainCluster, topic: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [KafkaException(KafkaError(code)), KafkaException(KafkaError(code))]
    reader = cluster._reader("read_committed")

    class Moving:
        """A consumer whose broker knows the high watermark only when it is asked again."""

        def get_watermark_offsets(self, tp: object, seconds: float) -> object:
            if answers:
                raise answers.pop()
            return reader.get_watermark_offsets(tp, seconds)  # type: ignore[arg-type]

    monkeypatch.setitem(cluster._readers, "read_committed", Moving())
    assert cluster.bounds(topic, 0) == Bounds(0, 0, 0)
    assert not answers
