"""Settings of Spark that would break exactly-once processing, and those of Kafka in the words of its Java client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from store.errors import ConfigError

if TYPE_CHECKING:
    from store.spark.streams import SparkStreams

_LOCAL_MASTER = re.compile(r"local(?:\[[^,\]]*(?:,\s*(\d+)\s*)?\])?")

_VERIFIES = "ssl.endpoint.identification.algorithm"

_SAME = ("security.protocol", _VERIFIES, "client.id")
"""Properties that both clients name alike."""

_OF_A_CLIENT = frozenset(
    {
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
    }
)
"""What identifies a client to librdkafka, and has no translation."""

_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def check_task_failures(master: str, setting: str) -> None:
    """Raise `ConfigError` when Spark would give a query up at the first death of a task's process."""
    local = _LOCAL_MASTER.fullmatch(master)
    # A local master ignores the setting; it has a second number instead.
    failures = int((local[1] or 1) if local else setting)
    if failures < 2:
        raise ConfigError(
            "spark.task.maxFailures",
            failures,
            "a task must be tried again when its process dies, so at least 2"
            + (f"; with a local master that is its second number: local[2,4], not {master}" if local else ""),
        )


def check_settings(spark: SparkSession, streams: SparkStreams) -> None:
    """Raise `ConfigError` for what would break the guarantees of `SparkStreams`, or end it at its first fault."""
    if is_remote():
        raise ConfigError(
            "spark.remote",
            "a Spark Connect session",
            "micro-batches are planned in the driver's process; use a classic session",
        )
    context = spark.sparkContext
    check_task_failures(context.master or "", context.getConf().get("spark.task.maxFailures", "4") or "")
    numbers = (
        ("max_offsets_per_trigger", streams.max_offsets_per_trigger),
        ("slots", streams.slots),
    )
    for key, number in numbers:
        if number is not None and (type(number) is not int or number < 1):
            raise ConfigError(key, number, "a whole number of at least 1, or None")
    if type(streams.driver_port) is not int or not 0 <= streams.driver_port <= 65_535:
        raise ConfigError("driver_port", streams.driver_port, "a port, or 0 for one that is free")


def security_of_spark(kafka: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """TLS and SASL properties of librdkafka as Kafka's Java client names them, which Spark's planner uses.

    `given` are those that the user has named in its words already. Raises `ConfigError` for a SASL mechanism, or for
    keys of a client, that have no such translation and are not among them.
    """
    found = {key: str(kafka[key]) for key in _SAME if key in kafka}
    if found.get(_VERIFIES) == "none":
        # Java's client takes it for the name of an algorithm that it does not know, and trusts no broker.
        found[_VERIFIES] = ""
    if "ssl.ca.location" in kafka:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(kafka["ssl.ca.location"])}
    elif "ssl.ca.pem" in kafka and "ssl.truststore.location" not in given:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": str(kafka["ssl.ca.pem"])}
    if "ssl.keystore.location" in kafka:
        found |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(kafka["ssl.keystore.location"])}
        if "ssl.keystore.password" in kafka:
            found["ssl.keystore.password"] = str(kafka["ssl.keystore.password"])
    mine = sorted(key for key in kafka if key in _OF_A_CLIENT)
    if mine and "ssl.keystore.location" not in given:
        raise ConfigError(
            mine[0],
            "given",
            "of librdkafka alone: Kafka's Java client, by which Spark plans, takes a certificate and its key from one "
            "keystore; give that as spark_kafka: ssl.keystore.location, ssl.keystore.type and ssl.keystore.password",
        )
    mechanism = kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms"))
    if mechanism is None or "sasl.jaas.config" in given:
        return found
    module = _LOGIN.get(str(mechanism))
    if module is None:
        raise ConfigError(
            "sasl.mechanism",
            mechanism,
            f"one of {', '.join(_LOGIN)}; for another one, give spark_kafka as well",
        )
    user, password = (
        str(kafka.get(key, "")).replace("\\", "\\\\").replace('"', '\\"')
        for key in ("sasl.username", "sasl.password")
    )
    return found | {
        "sasl.mechanism": str(mechanism),
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
    }
