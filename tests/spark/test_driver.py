"""Questions to a driver, over real connections."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from store.spark import driver as module
from store.spark import process
from store.spark.driver import Driver, DriverAddress
from store.spark.host import Orders
from store.spark.process import Lease

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either side may wait for a processor for as long as it takes."""
    monkeypatch.setattr(module, "_LIMIT_S", 900.0)


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver(HERE, HERE)
    yield made
    made.close()


def address_of(driver: Driver) -> DriverAddress:
    assert driver.address is not None
    return driver.address


def test_a_query_goes_on_for_the_host_that_had_the_last_orders_of_its_slot(driver: Driver) -> None:
    address = address_of(driver)
    assert address.says_it_goes_on(0, 1)
    driver.is_done(1, [0, 1])
    assert address.says_it_goes_on(0, 1)
    driver.is_done(2, [1])
    assert address.says_it_goes_on(0, 1)
    assert address.says_it_goes_on(1, 2)


def test_a_driver_answers_at_the_port_that_it_was_given() -> None:
    with closing(Driver(HERE, HERE)) as before:
        port = address_of(before).port
    with closing(Driver(HERE, HERE, port)) as driver:
        assert address_of(driver).port == port
        assert address_of(driver).says_it_goes_on(0, 1)


def test_a_driver_whose_port_is_taken_says_so_and_has_no_address(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with closing(Driver(HERE, HERE, port)) as driver:
            assert driver.address is None
    assert f"port {port}" in caplog.text


def test_a_host_whose_slot_was_brought_orders_elsewhere_is_not_told_that_the_query_goes_on(
    driver: Driver,
) -> None:
    driver.is_done(2, [1])
    assert not address_of(driver).says_it_goes_on(1, 1)


def test_who_does_not_have_the_key_is_answered_nothing(driver: Driver) -> None:
    with pytest.raises(OSError, match="went away"):
        replace(address_of(driver), key=os.urandom(32)).says_it_goes_on(0, 1)


def test_an_answer_to_another_question_is_none(driver: Driver) -> None:
    address = address_of(driver)
    question = module._QUESTION.pack(os.urandom(16), 0, 1)
    with socket.create_connection((HERE, address.port)) as asking:
        asking.sendall(question + module._digest(address.key, b"asked", question))
        heard = module._read(asking, 32)
    with socket.create_server((HERE, 0)) as stranger:

        def say_it_again() -> None:
            with stranger.accept()[0] as connection:
                module._read(connection, len(question) + 32)
                connection.sendall(heard)

        saying = threading.Thread(target=say_it_again)
        saying.start()
        assert not replace(address, port=stranger.getsockname()[1]).says_it_goes_on(0, 1)
        saying.join()


def test_a_stranger_who_says_nothing_keeps_nobody_waiting(driver: Driver) -> None:
    address = address_of(driver)
    with socket.create_connection((HERE, address.port)):
        assert address.says_it_goes_on(0, 1)


def test_a_driver_whose_query_has_ended_answers_nobody(driver: Driver) -> None:
    address = address_of(driver)
    driver.close()
    with pytest.raises(OSError):
        address.says_it_goes_on(0, 1)


class Clock:
    """A time that is set, in the place of the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """That of the leases."""
    made = Clock()
    monkeypatch.setattr(process, "time", made)
    return made


def test_a_lease_is_renewed_by_asking_until_the_query_has_ended(driver: Driver, clock: Clock) -> None:
    lease = Lease("run")
    lease.brought(Orders("run", [], 1, slot=1, job=3))
    for _ in range(5):
        clock.now += process.ASK_AFTER_S
        lease.ask(address_of(driver))
    assert clock.now > process.LEASE_S
    assert not lease.is_over
    driver.close()
    clock.now += process.LEASE_S
    with pytest.raises(OSError):
        lease.ask(address_of(driver))
    assert lease.is_over


def test_a_lease_of_a_slot_that_has_moved_on_is_not_renewed_by_asking(driver: Driver, clock: Clock) -> None:
    lease = Lease("run")
    lease.brought(Orders("run", [], 1, slot=1, job=3))
    # By an attempt that Spark has given up.
    lease.brought(Orders("run", [], 1, slot=1, job=2))
    driver.is_done(3, [1])
    clock.now += process.LEASE_S
    lease.ask(address_of(driver))
    assert not lease.is_over
    driver.is_done(4, [1])
    clock.now += process.LEASE_S
    lease.ask(address_of(driver))
    assert lease.is_over


def test_a_host_that_hears_of_its_query_anyway_does_not_ask(driver: Driver) -> None:
    driver.close()
    Lease("run").ask(address_of(driver))
