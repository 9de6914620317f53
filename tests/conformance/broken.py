"""Stores with one defect each, made from sound ones, and the test of the suite whose name says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Event

from store.state import metadata
from store.state.keyvalue import KeyValueStore
from store.state.metadata import Kind
from store.state.protocol import Offsets, StateStore, StoreContext
from store.types import Record, TopicPartition
from tests.conformance.stores import FileStore, SqliteStore

Position = Mapping[TopicPartition, int] | None


class OffsetAfterTheData(SqliteStore):
    def commit(self, changelog_offsets: Offsets = None, position: Position = None) -> None:
        super().commit({})
        super().commit(changelog_offsets, position)


class OffsetBeforeTheData(FileStore):
    """No transactions, but it keeps offsets: written first, in a file of their own."""

    def __init__(self, context: StoreContext) -> None:
        super().__init__(context)
        assert context.directory is not None
        self._offset = context.directory / "offset"

    def manages_offsets(self) -> bool:
        return True

    def commit(self, changelog_offsets: Offsets = None, position: Position = None) -> None:
        for offset in (changelog_offsets or {}).values() if isinstance(changelog_offsets, Mapping) else ():
            self._offset.write_text(str(offset))
        super().commit(changelog_offsets, position)

    def get_committed_offset(self, tp: TopicPartition) -> int | None:  # noqa: ARG002
        return int(self._offset.read_text()) if self._offset.exists() else None


class PositionBeforeTheData(KeyValueStore):
    def commit(self, changelog_offsets: Offsets = None, position: Position = None) -> None:
        self._require_open()
        self._engine.write(metadata.rows(Kind.POSITION, position or {}))
        super().commit(changelog_offsets)


class OffsetsInMemory(SqliteStore):
    def __init__(self, context: StoreContext) -> None:
        self._offsets: dict[TopicPartition, int | None] = {}
        super().__init__(context)

    def write_offset(self, tp: TopicPartition, offset: int | None) -> None:
        self._offsets[tp] = offset

    def get_committed_offset(self, tp: TopicPartition) -> int | None:
        return self._offsets.get(tp)


class FirstOffsetOnly(SqliteStore):
    def commit(self, changelog_offsets: Offsets = None, position: Position = None) -> None:
        if isinstance(changelog_offsets, Mapping):
            changelog_offsets = dict(list(changelog_offsets.items())[:1])
        super().commit(changelog_offsets, position)


class EmptyMapForgetsOffsets(SqliteStore):
    def commit(self, changelog_offsets: Offsets = None, position: Position = None) -> None:
        self.execute("DELETE FROM committed")
        super().commit(changelog_offsets, position)


class NoneKeepsTheOffset(SqliteStore):
    def write_offset(self, tp: TopicPartition, offset: int | None) -> None:
        if offset is not None:
            super().write_offset(tp, offset)


class ZeroIsNoOffset(SqliteStore):
    def get_committed_offset(self, tp: TopicPartition) -> int | None:
        return super().get_committed_offset(tp) or None


class WritesPastTheTransaction(SqliteStore):
    def write(self, key: bytes, value: bytes | None) -> None:
        super().write(key, value)
        self.execute("COMMIT")
        self.execute("BEGIN")


class DiscardDoesNothing(SqliteStore):
    def discard(self) -> None:
        self._bytes = 0


class RecoverBelievesItIsFurther(SqliteStore):
    def recover(self, changelog_offset: int) -> bool:
        super().recover(changelog_offset)
        return True


class BytesAreNeverFreed(SqliteStore):
    def begin(self) -> None:
        kept = self._bytes
        super().begin()
        self._bytes = kept


class CommitStaysInTheProcess(FileStore):
    def flush(self) -> None:
        pass


class RestoreKeepsDeletedKeys(FileStore):
    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        super().restore_batch([record for record in records if record.value is not None], changelog_offsets)


class RestoreInTwoSteps(SqliteStore):
    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        self.commit(changelog_offsets)
        super().restore_batch(records, {})


class RestoreIsLogged(FileStore):
    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        for record in records:
            assert record.key is not None
            self.put(record.key, record.value)
        self.commit(changelog_offsets)


class DeletionsAreNotLogged(FileStore):
    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.write(self.rows, key, None)
        else:
            super().put(key, value)


class LogsInTheCommit(FileStore):
    def __init__(self, context: StoreContext) -> None:
        super().__init__(context)
        self._late: dict[bytes, bytes | None] = {}

    def put(self, key: bytes, value: bytes | None) -> None:
        self.write(self.rows, key, value)
        self._late[key] = value

    def commit(self, changelog_offsets: Offsets = None, position: Position = None) -> None:
        assert self._context.log_change is not None
        while self._late:
            self._context.log_change(*self._late.popitem(), None)
        super().commit(changelog_offsets, position)


class LogsWithoutATime(FileStore):
    def put(self, key: bytes, value: bytes | None) -> None:
        assert self._context.log_change is not None
        self._context.log_change(key, value, 0)
        self.write(self.rows, key, value)


class KeepsWhatTheChangelogRefused(FileStore):
    def put(self, key: bytes, value: bytes | None) -> None:
        self.write(self.rows, key, value)
        super().put(key, value)


class ReadersSeeAHole(FileStore):
    def write(self, rows: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
        rows.pop(key, None)
        Event().wait(0.001)
        super().write(rows, key, value)


class KeepsTwoBytesOfAKey(FileStore):
    def write(self, rows: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
        super().write(rows, key[:2], value)

    def get(self, key: bytes) -> bytes | None:
        return super().get(key[:2])


class KeepsOneLineOfAValue(FileStore):
    def write(self, rows: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
        super().write(rows, key, value and value.split(b"\n")[0])


class ShorterKeysComeFirst(FileStore):
    def range(self, lower: bytes | None, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(super().range(lower, upper), key=lambda pair: (len(pair[0]), pair)))


class RangeWithoutItsUpperBound(FileStore):
    def range(self, lower: bytes | None, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return (pair for pair in super().range(lower, upper) if pair[0] != upper)


class RangeIsNotAView(FileStore):
    def range(self, lower: bytes | None, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        keys = [key for key, _ in super().range(lower, upper)]
        return ((key, self.rows[key]) for key in keys if key in self.rows)


class LivesOnAfterClose(FileStore):
    def close(self) -> None:
        self._closed = True

    def is_open(self) -> bool:
        return not hasattr(self, "_closed")


class CannotBeClosedTwice(FileStore):
    def close(self) -> None:
        assert self.is_open()
        super().close()


class UncommittedIsNotEmpty(SqliteStore):
    def is_empty(self) -> bool:
        return not self.execute("SELECT key, value FROM row LIMIT 1")


DEFECTS: Mapping[type[StateStore], str] = {
    OffsetAfterTheData: "test_a_kill_before_any_line_of_a_commit_leaves_all_of_it_or_nothing",
    OffsetBeforeTheData: "test_a_kill_before_any_line_of_a_commit_leaves_no_offset_ahead_of_the_data",
    PositionBeforeTheData: "test_a_kill_before_any_line_of_a_commit_leaves_no_position_ahead_of_the_data",
    OffsetsInMemory: "test_offsets_are_there_after_a_kill",
    FirstOffsetOnly: "test_all_offsets_of_a_commit_are_kept",
    EmptyMapForgetsOffsets: "test_an_empty_map_of_offsets_leaves_all_as_they_are",
    NoneKeepsTheOffset: "test_an_offset_of_none_removes_the_one_of_its_partition",
    ZeroIsNoOffset: "test_all_offsets_of_a_commit_are_kept",
    WritesPastTheTransaction: "test_what_was_not_committed_is_gone_after_a_kill",
    DiscardDoesNothing: "test_discard_brings_back_what_was_committed",
    RecoverBelievesItIsFurther: "test_recover_discards_and_tells_whether_the_store_has_come_that_far",
    BytesAreNeverFreed: "test_uncommitted_bytes_are_0_when_fresh_and_after_a_commit_or_discard",
    CommitStaysInTheProcess: "test_what_was_committed_is_there_after_a_kill",
    RestoreKeepsDeletedKeys: "test_a_restore_deletes_what_is_there",
    RestoreInTwoSteps: "test_a_kill_before_any_line_of_a_restore_leaves_no_offset_ahead_of_the_data",
    RestoreIsLogged: "test_what_is_restored_is_not_logged_again",
    DeletionsAreNotLogged: "test_the_changelog_brings_back_all_that_was_written",
    LogsInTheCommit: "test_all_that_was_written_is_logged_when_flush_cache_returns",
    LogsWithoutATime: "test_a_change_is_logged_with_the_time_of_the_record_that_made_it",
    KeepsWhatTheChangelogRefused: "test_a_write_that_the_changelog_refused_is_not_kept",
    ReadersSeeAHole: "test_other_threads_read_while_one_writes",
    KeepsTwoBytesOfAKey: "test_keys_and_values_are_any_bytes",
    KeepsOneLineOfAValue: "test_keys_and_values_are_any_bytes",
    ShorterKeysComeFirst: "test_ranges_are_in_the_order_of_bytes_whatever_the_length_of_a_key",
    RangeWithoutItsUpperBound: "test_a_range_has_both_its_bounds",
    RangeIsNotAView: "test_an_open_range_keeps_what_it_saw",
    LivesOnAfterClose: "test_a_closed_store_refuses_reads_and_writes",
    CannotBeClosedTwice: "test_closing_twice_is_as_closing_once",
    UncommittedIsNotEmpty: "test_a_store_is_empty_until_something_is_committed",
}
