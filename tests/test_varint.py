"""Numbers of variable length, as Kafka's protocol has them."""

from __future__ import annotations

import pytest

from store import varint

ENCODED = {
    0: b"\x00",
    1: b"\x01",
    127: b"\x7f",
    128: b"\x80\x01",
    129: b"\x81\x01",
    300: b"\xac\x02",
    16_383: b"\xff\x7f",
    16_384: b"\x80\x80\x01",
    (1 << 63) - 1: b"\xff" * 8 + b"\x7f",
}


@pytest.mark.parametrize(("number", "data"), ENCODED.items())
def test_a_number_is_written_as_in_kafkas_protocol_and_read_wherever_it_begins(
    number: int, data: bytes
) -> None:
    assert varint.encode(number) == data
    assert varint.decode(b"\xff" + data + b"\x01", 1) == (number, 1 + len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff"])
def test_a_number_that_does_not_end_is_no_number(data: bytes) -> None:
    with pytest.raises(IndexError):
        varint.decode(data, 0)
