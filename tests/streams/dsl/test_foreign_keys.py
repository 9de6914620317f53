"""Joins of tables by a foreign key: what they answer, by hand from Kafka Streams' processors, and what races leave.

Values of the left table are [foreign key, number], where the foreign key may be null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.config import StreamsConfig
from store.errors import ConfigError, SerdeError
from store.serdes import JsonSerde, LongSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.dsl.foreign import Answer, AnswerSerde, Instruction, Subscription, SubscriptionSerde
from store.testing.driver import TestDriver
from tests.streams.dsl.crashing import Process, run_at_random
from tests.streams.dsl.running import CACHED, UNCACHED, driver, output, pipe

Build = Callable[[StreamsBuilder], None]
EACH = pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["uncached", "cached"])


def foreign_key(value: list[Any]) -> str | None:
    found: str | None = value[0]
    return found


def both(value: list[Any], other: Any) -> list[Any]:
    return [value[1], other]


def joined(*, left: bool = False, materialized: str | None = None) -> Build:
    def build(made: StreamsBuilder) -> None:
        orders, people = made.table("orders"), made.table("people")
        join = orders.left_join if left else orders.join
        join(people, foreign_key, both, materialized=materialized).to_stream().to("out")

    return build


def steps(build: Build, records: Sequence[tuple[str, Any, Any, int]], config: Any = UNCACHED) -> list[Any]:
    """What comes out after each record: key, value and time."""
    with driver(build, config) as running:
        found = []
        for record in records:
            pipe(running, [record])
            found.append(output(running))
        return found


@EACH
def test_an_inner_join_has_the_rows_that_have_a_partner(config: dict[str, object]) -> None:
    assert steps(
        joined(),
        [
            ("people", "ann", "Ann", 10),
            ("orders", "1", ["ann", 1], 20),  # A partner that is there: the later of both times.
            ("orders", "2", ["ann", 2], 5),
            ("people", "ann", "Anna", 8),  # The time of the update alone.
            ("orders", "1", ["ann", 3], 30),
            ("people", "ann", None, 40),
            ("people", "ann", "Ann", 41),
            ("orders", "2", None, 50),
        ],
        config,
    ) == [
        [],
        [("1", [1, "Ann"], 20)],
        [("2", [2, "Ann"], 10)],
        [("1", [1, "Anna"], 8), ("2", [2, "Anna"], 8)],
        [("1", [3, "Anna"], 30)],
        [("1", None, 40), ("2", None, 40)],
        [("1", [3, "Ann"], 41), ("2", [2, "Ann"], 41)],
        [("2", None, 50)],
    ]


@EACH
def test_a_left_join_has_all_rows(config: dict[str, object]) -> None:
    assert steps(
        joined(left=True),
        [
            ("orders", "1", ["ann", 1], 20),
            ("people", "ann", "Ann", 30),
            ("people", "ann", None, 31),
            ("orders", "2", [None, 2], 32),
            ("orders", "2", None, 33),
            ("orders", "1", None, 34),
        ],
        config,
    ) == [
        [("1", [1, None], 20)],
        [("1", [1, "Ann"], 30)],
        [("1", [1, None], 31)],
        [("2", [2, None], 32)],
        [("2", None, 33)],
        [("1", None, 34)],
    ]


@pytest.mark.parametrize("left", [False, True])
def test_a_foreign_key_may_be_in_the_key_of_a_row(left: bool) -> None:
    def build(made: StreamsBuilder) -> None:
        orders, people = made.table("orders"), made.table("people")
        join = orders.left_join if left else orders.join
        joined = join(people, lambda key, value: key[:3] + value[0], both, with_key=True)
        joined.to_stream().to("out")

    assert steps(
        build,
        [
            ("people", "anna", "Ann", 1),
            ("orders", "ann-1", ["a", 1], 2),
            ("people", "anna", "Anna", 3),
            ("orders", "ann-1", None, 4),
        ],
    ) == [[], [("ann-1", [1, "Ann"], 2)], [("ann-1", [1, "Anna"], 3)], [("ann-1", None, 4)]]


def test_a_join_on_the_key_has_no_foreign_key_that_would_take_the_key() -> None:
    made = StreamsBuilder("app")
    with pytest.raises(ConfigError, match="with_key"):
        made.table("a").join(made.table("b"), both, with_key=True)  # type: ignore[call-overload]


@EACH
@pytest.mark.parametrize("left", [False, True])
def test_a_row_goes_where_its_foreign_key_goes(config: dict[str, object], left: bool) -> None:
    missing = [2, None] if left else None
    assert steps(
        joined(left=left),
        [
            ("people", "ann", "Ann", 1),
            ("people", "bob", "Bob", 2),
            ("orders", "1", ["ann", 1], 3),
            ("orders", "1", ["bob", 1], 4),
            ("people", "ann", "Anna", 5),  # It is subscribed there no longer.
            ("people", "bob", "Bobby", 6),
            ("orders", "1", ["carl", 2], 7),  # Nobody.
            ("people", "bob", "Bob", 8),
            ("people", "carl", "Carl", 9),
        ],
        config,
    ) == [
        [],
        [],
        [("1", [1, "Ann"], 3)],
        [("1", [1, "Bob"], 4)],
        [],
        [("1", [1, "Bobby"], 6)],
        [("1", missing, 7)],
        [],
        [("1", [2, "Carl"], 9)],
    ]


@dataclass
class Order:
    buyer: str
    amount: int


def test_a_table_of_objects_is_joined_whatever_the_order_of_their_fields() -> None:
    def build(made: StreamsBuilder) -> None:
        kept = Materialized("objects", value_serde=JsonSerde())
        orders = made.table("orders").map_values(lambda value: Order(*value), materialized=kept)
        joined = orders.join(made.table("people"), lambda order: of(order, "buyer"), lambda _, name: name)
        joined.to_stream().to("out")

    def of(order: Any, name: str) -> Any:
        return order[name] if isinstance(order, dict) else getattr(order, name)

    with driver(build) as running:
        pipe(running, [("people", "ann", "Ann", 1), ("orders", "1", ["ann", 3], 2)])
        assert output(running) == [("1", "Ann", 2)]


@EACH
def test_a_foreign_key_that_becomes_null_takes_the_row_out_and_one_that_was_brings_it_back(
    config: dict[str, object],
) -> None:
    records = [
        ("people", "ann", "Ann", 1),
        ("orders", "1", ["ann", 1], 2),
        ("orders", "1", [None, 2], 3),
        ("people", "ann", "Anna", 4),
        ("orders", "1", ["ann", 3], 5),
    ]
    assert steps(joined(), records, config) == [
        [],
        [("1", [1, "Ann"], 2)],
        [("1", None, 3)],
        [],
        [("1", [3, "Anna"], 5)],
    ]
    assert steps(joined(left=True), records, config)[2] == [("1", [2, None], 3)]


@EACH
def test_a_row_that_a_foreign_key_of_null_takes_out_is_no_older_than_it_was(
    config: dict[str, object],
) -> None:
    records = [("people", "ann", "Ann", 30), ("orders", "1", ["ann", 1], 3), ("orders", "1", [None, 2], 5)]
    assert steps(joined(), records, config) == [[], [("1", [1, "Ann"], 30)], [("1", None, 30)]]


def test_a_row_without_a_partner_is_deleted_from_a_result_only_where_it_is_or_may_be() -> None:
    records = [("orders", "1", ["ann", 1], 2), ("orders", "2", [None, 1], 3), ("orders", "2", None, 3)]
    assert steps(joined(materialized="kept"), records) == [[], [], []]
    assert steps(joined(), records) == [[("1", None, 2)], [("2", None, 3)], [("2", None, 3)]]


@pytest.mark.parametrize("materialized", [None, "kept"])
def test_a_left_join_deletes_a_row_of_which_its_joiner_makes_nothing(materialized: str | None) -> None:
    def build(made: StreamsBuilder) -> None:
        result = made.table("orders").left_join(
            made.table("people"), foreign_key, lambda _row, other: other, materialized=materialized
        )
        result.to_stream().to("out")

    records = [("orders", "1", ["ann", 1], 2), ("people", "ann", "Ann", 3), ("people", "ann", None, 4)]
    assert steps(build, records) == [[("1", None, 2)], [("1", "Ann", 3)], [("1", None, 4)]]


def test_a_deletion_of_nothing_is_nothing() -> None:
    assert steps(joined(), [("orders", "1", None, 1), ("people", "ann", None, 2)]) == [[], []]


def test_keys_that_begin_alike_are_told_apart() -> None:
    found = steps(
        joined(), [("orders", "1", ["a", 1], 1), ("orders", "b", ["ab", 2], 2), ("people", "a", "A", 3)]
    )
    assert found[-1] == [("1", [1, "A"], 3)]


def test_an_answer_about_a_value_of_before_is_dropped_and_counted() -> None:
    with driver(joined(), auto_commit=False) as running:
        pipe(
            running,
            [("people", "ann", "Ann", 1), ("orders", "1", ["ann", 1], 2), ("orders", "1", ["ann", 2], 3)],
        )
        running.commit()
        assert output(running) == [("1", [2, "Ann"], 3)]
        assert running.metrics.tasks_as_dict()["0_0"]["dropped-records-total"] == 1


def test_headers_are_those_of_the_update_that_led_to_a_result() -> None:
    with driver(joined()) as running:
        running.pipe_input("people", "ann", b'"Ann"', 1, (("from", b"people"),))
        running.pipe_input("orders", "1", b'["ann", 1]', 1, (("from", b"orders"),))
        running.pipe_input("people", "ann", b'"Anna"', 1, (("from", b"people"),))
        assert [record.headers[0][1] for record in running.read_output("out")] == [b"orders", b"people"]


def test_a_deletion_whose_answer_comes_while_the_row_is_back_in_the_cache_is_not_lost() -> None:
    """The row is there again, held back, when it is told that it has no partner; and then it is gone once more."""
    with driver(joined(), CACHED, auto_commit=False) as running:
        orders, people = running._tasks
        pipe(running, [("people", "ann", "Ann", 1), ("orders", "1", ["ann", 1], 2)])
        running.commit()
        assert output(running) == [("1", [1, "Ann"], 2)]
        pipe(running, [("orders", "1", None, 3)])
        orders.commit()
        pipe(running, [("orders", "1", ["bob", 5], 4)])
        people.commit()
        pipe(running, [("orders", "1", None, 5)])
        running.commit()
        assert output(running)[-1][1] is None


def test_a_partner_that_is_held_back_and_taken_back_is_never_told_of() -> None:
    with driver(joined(left=True), CACHED, auto_commit=False) as running:
        orders, people = running._tasks
        pipe(running, [("people", "ann", "Ann", 1), ("orders", "1", ["ann", 1], 2)])
        orders.commit()
        running._step(people)
        pipe(running, [("people", "ann", None, 3)])
        running.commit()
        assert output(running) == [("1", [1, None], 2)]


# -- the graph ------------------------------------------------------------------------------------------------------


def test_names_are_those_of_kafka_streams() -> None:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    joined()(made)
    application = made.build()
    orders, people = application.sub_topologies
    registration = "app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic"
    response = "app-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic"
    assert orders.sources == ("orders", response)
    assert orders.sinks == (registration, "out")
    assert people.sources == ("people", registration)
    assert people.sinks == (response,)
    assert people.store_names == (
        "people-STATE-STORE-0000000003",
        "KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000010",
    )
    assert "Processor: KTABLE-FK-JOIN-OUTPUT-0000000018" in application.describe()


def test_with_a_name_they_are_called_after_it() -> None:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    made.table("orders").join(made.table("people"), foreign_key, both, name="fk").to_stream().to("out")
    application = made.build()
    assert application.repartition_topics == {
        "app-fk-subscription-registration-topic",
        "app-fk-subscription-response-topic",
    }
    text = application.describe()
    for suffix in (
        *["subscription-registration-processor", "subscription-registration-sink", "subscription-receive"],
        *["subscription-registration-source", "subscription-join-foreign", "foreign-join-subscription"],
        *["subscription-response-sink", "subscription-response-source", "subscription-response-resolver"],
        *["result", "subscription-store"],
    ):
        assert f"fk-{suffix}" in text
    assert "KTABLE-TOSTREAM-0000000020" in text


def test_the_topics_between_have_the_partitions_of_those_who_read_them() -> None:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    joined(materialized="kept")(made)
    specs = made.build().internal_topics({"orders": 2, "people": 5}.__getitem__)
    assert {spec.name.removeprefix("app-KTABLE-FK-JOIN-"): spec.partitions for spec in specs} == {
        "SUBSCRIPTION-REGISTRATION-0000000006-topic": 5,
        "SUBSCRIPTION-RESPONSE-0000000014-topic": 2,
        "app-orders-STATE-STORE-0000000000-changelog": 2,
        "app-kept-changelog": 2,
        "app-people-STATE-STORE-0000000003-changelog": 5,
        "SUBSCRIPTION-STATE-STORE-0000000010-changelog": 5,
    }


def test_partitioners_say_where_keys_are() -> None:
    def first(key: str, value: object) -> int:
        assert value is None
        return int(key[0])

    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    orders, people = made.table("orders"), made.table("people")
    orders.join(people, foreign_key, both, partitioner=first, other_partitioner=first).to_stream().to("out")
    with TestDriver(made.build(), UNCACHED, partitions=3) as running:
        for topic, key, value, partition in (("people", "2a", '"A"', 2), ("orders", "1b", '["2a", 1]', 1)):
            running.pipe_input(topic, key, value, 1, partition=partition)
        assert output(running) == [("1b", [1, "A"], 1)]
        (sent,) = running.log.records("app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic")
        assert sent.partition == 2
        running.pipe_input("orders", "1b", "[null, 1]", 1, partition=1)
        assert output(running) == [("1b", None, 1)]


def test_a_table_is_joined_with_itself() -> None:
    def build(made: StreamsBuilder) -> None:
        people = made.table("people")
        people.left_join(people, foreign_key, lambda one, boss: [one[1], boss and boss[1]]).to_stream().to(
            "out"
        )

    assert steps(
        build,
        [
            ("people", "ann", ["ann", "Ann"], 1),
            ("people", "bob", ["ann", "Bob"], 2),
            ("people", "ann", [None, "Anna"], 3),
        ],
    ) == [
        [("ann", ["Ann", "Ann"], 1)],
        [("bob", ["Bob", "Ann"], 2)],
        [("bob", ["Bob", "Anna"], 3), ("ann", ["Anna", None], 3)],
    ]


def test_two_tables_that_name_each_other_and_a_join_of_a_join() -> None:
    def build(made: StreamsBuilder) -> None:
        one, two = made.table("one"), made.table("two")
        there = one.join(two, foreign_key, lambda a, b: [b[0], f"{a[1]}{b[1]}"])
        two.join(one, foreign_key, lambda a, b: f"{a[1]}{b[1]}").to_stream().to("back")
        there.join(one, foreign_key, lambda ab, c: f"{ab[1]}{c[1]}").to_stream().to("out")

    with driver(build) as running:
        pipe(running, [("one", "x", ["y", "X"], 1), ("two", "y", ["x", "Y"], 2)])
        assert output(running)[-1] == ("x", "XYX", 2)
        assert output(running, "back") == [("y", "YX", 2)]


def test_the_result_is_a_table_like_others() -> None:
    def build(made: StreamsBuilder) -> None:
        orders, people = made.table("orders"), made.table("people")
        result = orders.join(people, foreign_key, lambda _, name: name)
        result.group_by(lambda key, name: (name, key)).count().to_stream().to("out", value_serde=LongSerde())

    with driver(build) as running:
        pipe(
            running,
            [("orders", "1", ["ann", 1], 1), ("orders", "2", ["ann", 1], 1), ("people", "ann", "A", 2)],
        )
        pipe(running, [("people", "ann", "B", 3)])
        rows = output(running, value_serde=LongSerde())
        assert {key: count for key, count, _ in rows} == {"A": 0, "B": 2}


def test_tables_that_are_made_of_others_are_joined_as_what_they_are() -> None:
    def build(made: StreamsBuilder) -> None:
        orders = made.table("orders").filter(lambda _, value: value[1] > 0)
        people = made.table("people").map_values(
            lambda name: name.upper(), materialized=Materialized(value_serde=JsonSerde())
        )
        orders.join(people, foreign_key, both).to_stream().to("out")

    assert steps(
        build, [("people", "ann", "Ann", 1), ("orders", "1", ["ann", 1], 2), ("orders", "1", ["ann", -1], 3)]
    ) == [[], [("1", [1, "ANN"], 2)], [("1", None, 3)]]


def test_what_is_no_join_is_refused() -> None:
    made = StreamsBuilder("app")
    one, two = made.table("one"), made.table("two")
    for functions in ((), (both, both, both)):
        with pytest.raises(TypeError, match="a join takes a joiner"):
            one.join(two, *functions)
    with pytest.raises(ConfigError, match="joined by their keys"):
        one.left_join(two, both, partitioner=lambda *_: 0)  # type: ignore[call-overload]


def test_a_value_that_its_serde_does_not_know_is_named() -> None:
    def build(made: StreamsBuilder) -> None:
        orders = made.table("orders").map_values(lambda value: complex(value[1]))
        orders.join(made.table("people"), lambda _: "ann", both).to_stream().to("out")

    with (
        driver(build) as running,
        pytest.raises(SerdeError, match=r"JsonSerde cannot .* type complex: .*Materialized"),
    ):
        pipe(running, [("orders", "1", ["ann", 1], 1)])


def test_messages_survive_the_way() -> None:
    subscriptions = SubscriptionSerde(StrSerde())
    for digest in (None, bytes(16)):
        for instruction in Instruction:
            said = Subscription(digest, instruction, "key", 7)
            assert subscriptions.deserialize(subscriptions.serialize(said)) == said
    answers = AnswerSerde(StrSerde())
    for answer in (
        Answer(None, None),
        Answer(bytes(16), ""),
        Answer(bytes(16), "v"),
        Answer(bytes(16), None),
    ):
        assert answers.deserialize(answers.serialize(answer)) == answer
    with pytest.raises(ValueError, match="version 3"):
        answers.deserialize(b"\3")


# -- races and crashes -----------------------------------------------------------------------------------------------


ROWS = st.sampled_from(["1", "2", "3", "4"])
FOREIGN = st.sampled_from(["ann", "bob", "carl"])
UPDATES = st.lists(
    st.one_of(
        st.tuples(st.just("orders"), ROWS, st.none() | st.tuples(st.none() | FOREIGN, st.integers(0, 1))),
        st.tuples(st.just("people"), FOREIGN, st.none() | st.integers(0, 2)),
    ),
    max_size=25,
)


def expected(updates: Sequence[tuple[str, str, Any]], left: bool) -> dict[bytes, bytes]:
    orders: dict[str, Any] = {}
    people: dict[str, Any] = {}
    for topic, key, value in updates:
        (orders if topic == "orders" else people)[key] = value
    found = {}
    for key, order in orders.items():
        partner = None if order is None else people.get(order[0])
        if order is not None and (left or partner is not None):
            found[key.encode()] = msgspec.json.encode(both(order, partner))
    return found


@settings(deadline=None)
@given(UPDATES, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**32))
def test_whatever_is_overtaken_and_killed_the_result_is_the_join_of_the_tables(
    updates: list[tuple[str, str, Any]], left: bool, kept: bool, cached: bool, seed: int
) -> None:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    joined(left=left, materialized="kept" if kept else None)(made)
    config = StreamsConfig(statestore_cache_max_bytes=1 << 20 if cached else 0, commit_records=1_000_000)
    process = Process(made.build(), 3, config)
    records = [
        (topic, key.encode(), None if value is None else msgspec.json.encode(value), at)
        for at, (topic, key, value) in enumerate(updates, 1)
    ]
    run_at_random(process, records, seed)
    assert process.latest("out") == expected(updates, left)


@pytest.mark.parametrize("left", [False, True])
def test_a_row_without_a_foreign_key_counts_as_dropped_by_an_inner_join_alone(left: bool) -> None:
    with driver(joined(left=left)) as running:
        pipe(running, [("orders", "1", [None, 1], 2)])
        assert running.metrics.tasks_as_dict()["0_0"]["dropped-records-total"] == (not left)
