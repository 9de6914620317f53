"""What producers, readers and admin clients have in common: configuration, deadlines, repeated calls.

Must survive: a broker that is down, restarted or slow at any moment. Every call has a deadline, and repeats what
the client says may be repeated.
"""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import Producer as ClientProducer

from store.clock import Sparingly
from store.errors import ConfigError, LogError, RetriableError, UnreachableError
from store.log.kafka.errors import FENCED, MISSING, cause_of, translate

Built = TypeVar("Built")
ConfigValue = str | int | float | bool
Config = Mapping[str, ConfigValue]

LOGGER = logging.getLogger("store.log.kafka")
# Without a handler Python prints warnings to standard error; a library leaves that to the application.
LOGGER.addHandler(logging.NullHandler())

_REPEATED = re.compile(r"(FAIL|METADATAUPDATE|ADDOFFSETS) ")
"""What a client says again and again while a broker is away, or has no leaders yet: of connections, of each partition
with each answer of the cluster, and of each try to add positions to a transaction."""

_CHANGES = re.compile(r" \(after .*| Partition \S+:")
"""What changes each time that a client says of one thing that it has failed, and why."""

_NO_CONNECTION = re.compile(r"code=_(TRANSPORT|ALL_BROKERS_DOWN|RESOLVE)\b")
"""In what it says of that to its owner, see `Client._on_error`."""

_MOST_TOLD = 1_000

_OTHER_KIND = re.compile(r"CONFWARN .* is a (producer|consumer) property and will be ignored by this ")
"""What each client says of properties of the other kind. A log has clients of both, and gives all the same ones: each
property is meant for some of them."""


class _Sparing(logging.Filter):
    """Has a client tell of what fails again and again once in `SAID_EVERY_S`, and of properties that are other
    clients' not at all.

    One that has lost all brokers begins with its addresses anew at each attempt, and has then said nothing of them
    (librdkafka#5546).
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self._told: OrderedDict[str, Sparingly] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if _REPEATED.match(text) is None and _NO_CONNECTION.search(text) is None:
            return _OTHER_KIND.match(text) is None
        what = _CHANGES.sub("", text)
        with self._lock:
            told = self._told.setdefault(what, Sparingly())
            self._told.move_to_end(what)
            if len(self._told) > _MOST_TOLD:
                self._told.popitem(last=False)
            since = told.count(time.monotonic)
        if since is None:
            return False
        record.msg, record.args = text + since, ()
        return True


LOGGER.addFilter(_Sparing())


def check_cluster(bootstrap: object, kafka: object) -> None:
    """Raise `ConfigError` for what is no address of a cluster, and for what maps no properties of its clients."""
    if not isinstance(bootstrap, str) or not bootstrap.strip(", "):
        # With none the client would wait for brokers until its time is up.
        raise ConfigError("bootstrap", bootstrap, '"host:port", several with commas')
    check_properties("kafka", kafka)


def check_properties(argument: str, given: object) -> None:
    """Raise `ConfigError` for properties of a client that are no mapping; None is none."""
    if not isinstance(given, Mapping | None):
        # Not what it is, which may hold a secret.
        raise ConfigError(argument, ..., "a mapping of properties to their values")


RESERVED: Mapping[str, str] = {
    "bootstrap.servers": "it is the first argument",
    "metadata.broker.list": "another name of bootstrap.servers, which is the first argument",
    "default.topic.config": "what it holds is given by itself",
    "transactional.id": "the task decides it",
    "transaction.timeout.ms": "the task decides it",
    "enable.idempotence": "without it repeats of the client double and reorder records",
    "partitioner": "simulation, restore and Java clients agree on murmur2",
    "metadata.recovery.strategy": "the log decides it",
    "isolation.level": "each call of the reader says it",
    "enable.auto.commit": "tasks commit their positions themselves",
    "enable.partition.eof": "the reader needs it to see the end of a partition",
    "auto.offset.reset": "an offset that is gone is an error, never a jump",
    "group.id": "each call says it",
    "group.instance.id": "members are static by `instance_id`; the broker refuses the positions of others of that id",
    "group.protocol": "members agree on the classic one",
    "partition.assignment.strategy": "members agree on one",
    "session.timeout.ms": "it is given as `session_timeout_ms`",
    "max.poll.interval.ms": "it is given as `rebalance_timeout_ms`",
    "delivery.report.only.error": "without reports nobody knows at which offset of its changelog a store is",
    "error_cb": "the log listens to it",
    "logger": "the messages of the client go to the logger store.log.kafka",
}

BASE: Config = {
    # A cluster may say for a moment that it has no broker, such as one of a single broker that stood still: the client
    # forgets all that it knew, and has to begin with the addresses that it was given.
    "metadata.recovery.strategy": "rebootstrap",
    "metadata.recovery.rebootstrap.trigger.ms": 10_000,
    # Who has lost all brokers begins anew each time, and so waits for no longer than the first time. What it says of
    # that, and of each failure, waits in memory until it is polled.
    "reconnect.backoff.ms": 500,
    "reconnect.backoff.max.ms": 500,
    # By default back-to-back transactions take 100 ms each, which is this pause.
    "retry.backoff.ms": 2,
    "retry.backoff.max.ms": 200,
}

PRODUCER: Config = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    # As long as a flush asks for nothing: fewer and larger requests are half of what a record costs on many partitions.
    "linger.ms": 20,
    "topic.metadata.propagation.max.ms": 5000,
    "queue.buffering.max.messages": 500_000,
    # As much as a broker takes by default: what could be written to an input can be passed on.
    "message.max.bytes": 1_048_588,
}

TRANSACTIONAL: Config = {
    # With others send_offsets may hang after a restart (librdkafka#5511). One that has forgotten its brokers is of no
    # further use: its calls end in time, and who owns it makes another one.
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.ms": 20,
}

LONGEST_IDLE_S = 10.0
"""How long a connection of a transactional producer may be idle.

send_offsets knows no time limit of its own (librdkafka#5456), and after a look for the group's coordinator has failed
three times, which takes milliseconds, only a connection that comes or goes has it look again. Where all stay up, as
those to other brokers do while one is restarted, it would wait for ever.
"""

CONSUMER: Config = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    # As Kafka's own consumers do: a bit that has flipped on a broker's disk would otherwise be a value like any other.
    # `kafka={"check.crcs": False}` does without.
    "check.crcs": True,
    # A broker answers one request of a connection after the other, so a fetch that waits delays what follows.
    "fetch.wait.max.ms": 20,
    "fetch.error.backoff.ms": 20,
    "fetch.message.max.bytes": 4 << 20,
    "queued.min.messages": 200_000,
}

UNSERVED: Config = {"statistics.interval.ms": 0}
"""Of clients that nobody polls: what they had to tell of themselves would gather there."""

STEP = 1.0
"""Seconds that one call into the client may take: it does not react to Ctrl-C before it returns."""

_PAUSE = 0.01
_PROPAGATION_S = 1.0
"""How long a topic may be unknown before it counts as missing, or have fewer partitions than are known before those
count as gone: not all brokers learn of new ones at once."""


class Client:
    """What producer, consumers and admin have in common: configuration, the client's errors, deadlines."""

    def __init__(self, bootstrap: str, timeout: float, settings: Config) -> None:
        self.bootstrap = bootstrap
        self.timeout = timeout
        self.settings = settings
        """Those of the owner, which come after all that is set here."""
        self.ping_seconds = min(STEP, timeout)
        self.lost_all = False
        """Whether the client has said that no broker is left, since its owner looked last."""
        self.fatal: KafkaError | None = None
        self.trouble: KafkaError | None = None
        """What the client said last of a broker: that its name does not resolve, that it refuses, or does not greet."""
        self.misses_topic = False
        """Whether the client has said that a topic or a partition is not there, since its owner looked last."""

    def config(self, *parts: Config) -> dict[str, object]:
        merged: dict[str, object] = {"bootstrap.servers": self.bootstrap, **BASE}
        for part in parts:
            merged.update(part)
        return {**merged, "error_cb": self._on_error, "logger": LOGGER}

    def idle_ms(self) -> int:
        """After how long a connection goes that nothing needs: within the time that a call may take."""
        return int(1_000 * min(LONGEST_IDLE_S, max(1.0, self.timeout / 3)))

    def _on_error(self, error: KafkaError) -> None:
        # An exception raised here would come out of whatever call serves the callback.
        LOGGER.info("%s: %s", self.bootstrap, error)
        if error.fatal() or error.code() in FENCED:
            self.fatal = error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.lost_all = True
        else:
            self.trouble = error
            self.misses_topic |= error.code() in MISSING

    def gave_up(
        self, doing: str, last: KafkaError | None, ping: Callable[[], object], waited_s: float | None = None
    ) -> LogError:
        """The deadline has passed: is nobody there, or does somebody there not answer?

        Whatever serves the client's callbacks until then has it said why.
        """
        seconds = f"{self.timeout if waited_s is None else waited_s:g} s"
        try:
            ping()
        except KafkaException as error:
            if self._finds_brokers():
                return RetriableError(
                    f"{doing}: the client has lost the cluster's brokers, and a new one finds them"
                )
            why = self.trouble or cause_of(error)
            return UnreachableError(
                f"{doing}: no Kafka broker answered at {self.bootstrap} within {seconds} "
                f"({why.str()}). Is it running, and is the address right?"
            )
        return RetriableError(
            f"{doing}: the broker at {self.bootstrap} did not finish within {seconds}"
            + (f" ({last.str()})" if last is not None else "")
        )

    def _finds_brokers(self) -> bool:
        """Whether another client, made for that, finds brokers at the address."""
        config: dict[str, object] = {"bootstrap.servers": self.bootstrap, **self.settings, "logger": LOGGER}
        try:
            return bool(
                build(Consumer, {**config, "group.id": "none"}).list_topics(timeout=self.ping_seconds).brokers
            )
        except KafkaException:
            return False


def build(make: Callable[[dict[str, object]], Built], config: dict[str, object]) -> Built:
    try:
        return make(config)
    except KafkaException as error:
        said = cause_of(error).str()
        # Not its value, which may be a secret.
        named = [key for key in config if f'"{key}"' in said]
        raise ConfigError("Kafka client", ", ".join(named) or "configuration", said) from error


def repeat(
    client: Client,
    doing: str,
    call: Callable[[float], Built],
    ping: Callable[[], object],
    wait_s: float | None = None,
) -> Built:
    """Call with a time limit in seconds, again as long as the client says that it may be repeated; for `wait_s` seconds
    in all, or for as long as the client waits.

    The limit grows where it was too short: an answer that comes behind it is lost, and a slow broker is so each time.
    """
    wait_s = client.timeout if wait_s is None else min(wait_s, client.timeout)
    deadline = time.monotonic() + wait_s
    last: KafkaError | None = None
    step = STEP
    while (left := deadline - time.monotonic()) > 0:
        try:
            return call(min(step, left))
        except KafkaException as exception:
            last = cause_of(exception)
            if last.code() == KafkaError._TIMED_OUT:
                step *= 2
            error = translate(last, doing)
            if not isinstance(error, RetriableError) or last.code() == KafkaError._CONFLICT:
                raise error from exception
            time.sleep(_PAUSE)
    raise client.gave_up(doing, last, ping, wait_s)


def settle_missing(
    client: Consumer | ClientProducer, topic: str, partition: int | None, call: Callable[[float], Built]
) -> Callable[[float], Built]:
    """`call`, where errors of `MISSING` are asked again while the cluster has the topic, or may soon have it.

    Asking also renews what `client` knows of the topic. Raises `LogError` for one that does not exist.
    """
    missing_since: float | None = None

    def settled(seconds: float) -> Built:
        nonlocal missing_since
        try:
            return call(seconds)
        except KafkaException as exception:
            error = cause_of(exception)
            if error.code() not in MISSING:
                raise
            found = client.list_topics(topic, seconds).topics[topic]
            if found.error is None or found.error.code() not in MISSING:
                if partition is None or found.error is not None or partition in found.partitions:
                    missing_since = None
                    raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)) from exception
                what = f"topic {topic} has no partition {partition}, but {len(found.partitions)} in all"
            else:
                what = f"topic {topic} does not exist"
            now = time.monotonic()
            missing_since = now if missing_since is None else missing_since
            if now - missing_since < _PROPAGATION_S:
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)) from exception
            raise LogError(f"{what} ({error.name()}). Create it, or check the name") from exception

    return settled


class Counts:
    """How many partitions topics have, by what the clients of one log were told last. Any thread."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def settle(self, topic: str, patience_s: float, call: Callable[[float], int]) -> Callable[[float], int]:
        """`call`, which asks for the number, where a lower one than is known is asked for again for that long.

        A broker that has not heard of new partitions yet says what it knows, and no error.
        """
        fewer_since: float | None = None

        def settled(seconds: float) -> int:
            nonlocal fewer_since
            count = call(seconds)
            if count < self._known.get(topic, 0):
                now = time.monotonic()
                fewer_since = now if fewer_since is None else fewer_since
                if now - fewer_since < min(_PROPAGATION_S, patience_s / 2):
                    raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            self._known[topic] = count
            return count

        return settled


def number(value: int | None) -> int:
    assert value is not None, "the client left out a field that every delivered message has"
    return value
