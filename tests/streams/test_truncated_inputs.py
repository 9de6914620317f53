"""An input whose leader has lost what was processed is not read on at that position, and how to go on is said."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from harness.worlds.sim.broker import SimLog, SimReader
from store.config import Guarantee
from store.errors import InputChangedError, LogTruncatedError
from store.log import Fetch
from store.streams import positions
from store.streams.topology import Topology
from store.types import IsolationLevel, TopicPartition
from tests.clusters import SINK, SOURCE, Cluster, pipeline
from tests.streams.test_positions import GUARANTEES, POSITIONS, Relay, relay

RC = IsolationLevel.READ_COMMITTED


class Parted(SimReader):
    """A reader to which a leader answers that `at` is where the log of the input parts from what was read."""

    at: int | None = 2

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        if tp == SOURCE:
            raise LogTruncatedError(f"read of {tp} at {offset}", tp, offset, self.at)
        return super().read(tp, offset, max_records, isolation)

    def poll(
        self,
        starts: Mapping[TopicPartition, int],
        max_records: int,
        isolation: IsolationLevel,
        seconds: float,
    ) -> Mapping[TopicPartition, Fetch]:
        for tp, offset in starts.items():
            self.read(tp, offset, 0, isolation) if tp == SOURCE else None
        return super().poll(starts, max_records, isolation, seconds)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("at", [2, None])
@pytest.mark.parametrize("made", [pipeline(), Topology("app", ("in",), ("out",), (), relay)])
def test_an_input_that_parts_from_what_was_processed_ends_the_worker(
    made: Topology, at: int | None, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(made, [b"a", b"b", b"c"])
    worker = cluster.worker()
    while worker.poll():
        pass
    worker.close()
    cluster.feed(b"d")
    monkeypatch.setattr(Parted, "at", at)
    monkeypatch.setattr(SimLog, "reader", lambda log, _wait_s=None: Parted(log.broker))
    worker = cluster.worker(streaming=Parted(cluster.broker) if streaming else None)

    def run() -> None:
        while True:
            worker.poll()

    with pytest.raises(InputChangedError, match=r"has processed in-0 up to 3, and .* parts") as found:
        run()
    worker.close()
    said = str(found.value)
    assert f"--topic in:0 --reset-offsets --to-offset {'N' if at is None else at} --execute" in said
    assert "to pass it over, --to-offset 3" in said
    assert ("move the state directories away" in said) == bool(made.changelogs)
    assert cluster.position() == 3
    assert len(cluster.broker.visible(SINK, RC)) == 3


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_topic_of_positions_says_by_which_leaders_the_input_was_written(
    guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: dict[tuple[str, int], str] = {}
    monkeypatch.setattr(
        SimReader, "lineage", lambda _, tp, offset: f"7@{offset}" if tp.topic == "left" else ""
    )
    monkeypatch.setattr(
        SimReader, "expect", lambda _, tp, offset, said: expected.update({(tp.topic, offset): said})
    )
    made = Relay(guarantee)
    made.run()
    assert expected == {}
    made.broker.forget_group("app")
    made.run()
    assert expected == {("left", 3): "7@3", ("right", 1): ""}


def test_what_a_version_before_has_left_of_positions_says_nothing_of_leaders() -> None:
    made = Relay()
    made.run()
    with_epoch = positions.headers("an id", "7@3")
    assert positions.headers("an id") == with_epoch[:1]
    # Those versions look for the id by its name, and at the value.
    assert dict(with_epoch)["topic-id"] == b"an id"
    found = positions.read(made.log.reader(), POSITIONS)
    assert {topic: one.lineage for topic, one in found.items()} == {"left": "", "right": ""}
