from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.engine.protocol import Checkpointed
from store.errors import ProtocolError, StoreCorruptedError, StoreIOError
from store.recovery import checkpoint
from store.recovery.directory import StateDirectory
from store.types import TopicPartition

topics = st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in {".", ".."})
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))
numbers = st.integers(0, 2**63 - 1)
entries = st.builds(Checkpointed, numbers, st.none() | numbers, st.booleans())
checkpoints = st.dictionaries(partitions, entries, max_size=4)

TWO = {
    TopicPartition("app-orders-changelog", 0): Checkpointed(4711, 1_700_000_000_000),
    TopicPartition("-", 12): Checkpointed(0, None, exact=False),
}


@given(checkpoints)
def test_what_is_written_is_read_again(written: Mapping[TopicPartition, Checkpointed]) -> None:
    assert checkpoint.decode(checkpoint.encode(written), "here") == written


@pytest.mark.parametrize("written", [{}, TWO], ids=["empty", "two"])
def test_every_change_of_one_byte_is_noticed(written: Mapping[TopicPartition, Checkpointed]) -> None:
    data = checkpoint.encode(written)
    for at in range(len(data)):
        for byte in range(256):
            if byte != data[at]:
                with pytest.raises(StoreCorruptedError):
                    checkpoint.decode(data[:at] + bytes([byte]) + data[at + 1 :], "here")


@given(checkpoints)
def test_every_truncation_is_noticed(written: Mapping[TopicPartition, Checkpointed]) -> None:
    data = checkpoint.encode(written)
    for length in range(len(data)):
        with pytest.raises(StoreCorruptedError, match="here"):
            checkpoint.decode(data[:length], "here")


@given(checkpoints, checkpoints, st.data())
def test_the_head_of_one_file_with_the_tail_of_another_is_noticed(
    one: Mapping[TopicPartition, Checkpointed],
    other: Mapping[TopicPartition, Checkpointed],
    data: st.DataObject,
) -> None:
    head, tail = checkpoint.encode(one), checkpoint.encode(other)
    torn = head[: data.draw(st.integers(0, len(head)))] + tail[data.draw(st.integers(0, len(tail))) :]
    try:
        read = checkpoint.decode(torn, "here")
    except StoreCorruptedError:
        return
    assert torn in (head, tail)
    assert read in (one, other)


@given(st.binary(max_size=200) | st.text(alphabet="01 -\n\ra.", max_size=60).map(str.encode))
def test_any_bytes_are_a_checkpoint_or_corrupted(data: bytes) -> None:
    try:
        read = checkpoint.decode(data, "here")
    except StoreCorruptedError:
        return
    assert all(at.offset >= 0 for at in read.values())


@pytest.mark.requirement("892.10")
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_file_of_kafka_streams_is_read_without_offsets_that_are_unknown(end: str) -> None:
    lines = ["0", "4", "a-changelog 0 17", "b_.- 3 -4", "b_.- 2147483647 0", "c 1 -1"]
    assert checkpoint.decode("".join(line + end for line in lines).encode(), "here") == {
        TopicPartition("a-changelog", 0): Checkpointed(17),
        TopicPartition("b_.-", 2147483647): Checkpointed(0),
    }


def test_every_truncation_of_the_file_of_kafka_streams_is_noticed() -> None:
    data = b"0\n2\na-changelog 0 1234\nb 3 17\n"
    for length in range(len(data)):
        with pytest.raises(StoreCorruptedError):
            checkpoint.decode(data[:length], "here")


@pytest.mark.parametrize(
    "lines",
    [
        "0\n1\n",
        "0\n0\na 0 1\n",
        "0\n2\na 0 1\na 0 2\n",
        "0\n1\na 0\n",
        "0\n1\na 0 1 2\n",
        "0\n1\na x 1\n",
        "0\n1\na -1 1\n",
        "0\n1\na 0 1_0\n",
        "0\n1\na 0 9223372036854775808\n",
        "0\n1\na 2147483648 1\n",
        "0\n1\na/b 0 1\n",
        "0\n1\n.. 0 1\n",
        "0\nx\n",
        "-1\n0\n",
        "x\n0\n",
        "\n",
    ],
)
def test_what_kafka_streams_could_not_have_written_is_corrupted(lines: str) -> None:
    with pytest.raises(StoreCorruptedError, match="checkpoint here cannot be trusted"):
        checkpoint.decode(lines.encode(), "here")


@pytest.mark.parametrize("version", ["2", "10", "999"])
def test_a_newer_version_is_named(version: str) -> None:
    with pytest.raises(StoreCorruptedError, match=f"here .* format {version}, .* up to 1"):
        checkpoint.decode(f"{version}\nanything\n".encode(), "here")


@pytest.mark.parametrize(
    ("tp", "at"),
    [
        (TopicPartition("a b", 0), Checkpointed(1)),
        (TopicPartition("", 0), Checkpointed(1)),
        (TopicPartition("a", -1), Checkpointed(1)),
        (TopicPartition("a", 0), Checkpointed(-4)),
        (TopicPartition("a", 0), Checkpointed(2**63)),
        (TopicPartition("a", 0), Checkpointed(1, -1)),
    ],
)
def test_what_could_not_be_read_again_is_not_written(
    tmp_path: Path, tp: TopicPartition, at: Checkpointed
) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        checkpoint.write(tmp_path / "file", {tp: at})
    assert list(tmp_path.iterdir()) == []


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert checkpoint.read(tmp_path / "file") == {}


def test_the_new_file_is_durable_before_it_takes_the_place_of_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done, fsync, replace = tmp_path / "file", list[str](), os.fsync, Path.replace

    def note_sync(descriptor: int) -> None:
        fsync(descriptor)
        done.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")

    def note_rename(source: Path, target: Path) -> Path:
        done.append(f"rename {source.name} {target.name} of {source.stat().st_size}")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_rename)
    checkpoint.write(path, TWO)
    size = len(checkpoint.encode(TWO))
    assert done == ["sync file.new", f"rename file.new file of {size}", f"sync {tmp_path.name}"]


@pytest.mark.parametrize("step", ["fsync", "replace", "open"])
def test_a_write_that_fails_leaves_the_old_file_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path, old = tmp_path / "file", {TopicPartition("a", 0): Checkpointed(1)}
    checkpoint.write(path, old)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr({"fsync": os, "replace": Path, "open": Path}[step], step, fail)
    with pytest.raises(StoreIOError, match=f"{path} cannot be written: .*No space left"):
        checkpoint.write(path, TWO)
    monkeypatch.undo()
    assert checkpoint.read(path) == old
    checkpoint.write(path, TWO)
    assert checkpoint.read(path) == TWO


def test_a_directory_in_the_place_of_the_file_is_an_io_error(tmp_path: Path) -> None:
    with pytest.raises(StoreIOError, match=str(tmp_path)):
        checkpoint.read(tmp_path)


def test_the_checkpoint_of_a_task_lies_in_its_directory_and_needs_its_lock(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    with directory.lock("0_1"):
        assert directory.read_checkpoint("0_1") == {}
        directory.write_checkpoint("0_1", TWO)
        assert directory.read_checkpoint("0_1") == TWO
    assert checkpoint.read(tmp_path / "app" / "0_1" / ".checkpoint") == TWO
    with pytest.raises(ProtocolError, match="0_1"):
        directory.read_checkpoint("0_1")
    with pytest.raises(ProtocolError, match="0_1"):
        directory.write_checkpoint("0_1", {})


def test_a_checkpoint_that_cannot_be_read_is_kept_when_another_takes_its_place(tmp_path: Path) -> None:
    directory, path = StateDirectory(tmp_path, "app"), tmp_path / "app" / "0_1" / ".checkpoint"
    with directory.lock("0_1"):
        path.write_bytes(b"2\nof the future\n")
        with pytest.raises(StoreCorruptedError, match=str(path)):
            directory.read_checkpoint("0_1")
        directory.write_checkpoint("0_1", TWO)
        assert directory.read_checkpoint("0_1") == TWO
    [kept] = (tmp_path / "app" / "0_1" / "set-aside").glob("*/.checkpoint")
    assert kept.read_bytes() == b"2\nof the future\n"


WRITER = """
import sys
from store.engine.protocol import Checkpointed
from store.types import TopicPartition
from store.recovery.directory import StateDirectory
directory = StateDirectory(sys.argv[1], "app")
with directory.lock("0_0"):
    for offset in range(1_000_000):
        directory.write_checkpoint(
            "0_0", {TopicPartition("topic" * 20, n): Checkpointed(offset) for n in range(offset % 50 + 1)}
        )
        print(offset, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 7, 40])
def test_a_killed_writer_leaves_its_last_checkpoint_or_the_next_one_whole(tmp_path: Path, lines: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(lines):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    said = process.stdout.read().split()
    process.stdout.close()
    process.wait()
    last = int(said[-1]) if said else lines - 1
    directory = StateDirectory(tmp_path, "app")
    with directory.lock("0_0"):
        found = directory.read_checkpoint("0_0")
    [offset] = {at.offset for at in found.values()}
    assert offset in {last, last + 1}
    assert len(found) == offset % 50 + 1
