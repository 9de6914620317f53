"""A driver of Spark of its own that logs all it can, and what it shows to whoever looks, written to files.

    python -m tests.spark.with_secrets DIRECTORY BOOTSTRAP APPLICATION

The cluster at BOOTSTRAP takes the login of `KAFKA` alone, and has the topics `APPLICATION-in` and `APPLICATION-out`.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import urllib.request
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from harness.worlds.local import session
from store.spark import SparkStreams, exactly_once_kafka_sink
from store.streams.topology import Context, Topology
from store.types import Record
from tests.spark.hosts import lasting

SECRETS = ("OpenSesame-1001", "OpenTheKey-1002", "OpenTheStore-1003")

KAFKA = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ali",
    "sasl.password": SECRETS[0],
    # Of a keystore that the protocol does not use; both clients are told of them as of any other.
    "ssl.keystore.password": SECRETS[2],
    "ssl.keystore.location": "/nowhere/keystore.p12",
}
SPARK_KAFKA = {"ssl.key.password": SECRETS[1]}

_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n%ex
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
logger.kafka.name = org.apache.spark.sql.kafka010
logger.kafka.level = trace
logger.streaming.name = org.apache.spark.sql.execution.streaming
logger.streaming.level = trace
"""


class Fail:
    """Forwards, and fails at the record `bad`."""

    def __init__(self, sink: str) -> None:
        self.sink = sink

    def __call__(self, context: Context, record: Record) -> None:
        if record.value == b"bad":
            raise ArithmeticError("no such account")
        context.forward(self.sink, record.key, record.value)


def _wanted(directory: Path) -> session.Wanted:
    (directory / "conf" / "log4j2.properties").write_text(_LOGGING)
    (directory / "events").mkdir()
    made = session._wanted(directory)
    settings = {
        **made.settings,
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{directory / 'events'}",
        "spark.master": "local[2,2]",
    }
    return made._replace(settings=settings)


def _pages(spark: SparkSession, into: Path) -> None:
    """What Spark's own pages, and its REST interface, say."""
    base = spark.sparkContext.uiWebUrl
    assert base is not None
    application = spark.sparkContext.applicationId
    paths = ["jobs", "stages", "environment", "executors", "SQL", "StreamingQuery"]
    rest = ["environment", "sql?details=true&planDescription=true", "jobs", "stages?details=true"]
    for path in [
        *(f"{one}/" for one in paths),
        *(f"api/v1/applications/{application}/{one}" for one in rest),
    ]:
        with urllib.request.urlopen(f"{base}/{path}") as answer:
            (into / f"page-{path.replace('/', '_').replace('?', '_')}.html").write_bytes(answer.read())


def main(directory: Path, bootstrap: str, name: str) -> None:
    logging.basicConfig(level=logging.INFO, filename=directory / "driver.log")
    started = session.start(directory, _wanted)
    spark = SparkSession(started.context)
    said: list[str] = []
    topology = Topology(name, (f"{name}-in",), (f"{name}-out",), (), Fail(f"{name}-out"))

    def streams(**options: object) -> SparkStreams:
        return SparkStreams(
            topology,
            bootstrap=bootstrap,
            state_dir=directory / "state",
            checkpoint=directory / "checkpoint",
            host=lasting,
            **{"kafka": KAFKA, "spark_kafka": SPARK_KAFKA, **options},  # type: ignore[arg-type]
        )

    made = streams()
    said += [repr(made), str(made), repr(made.deployment), repr(made.deployment.log())]
    query = made.start(spark)
    said += [repr(query), str(query.status)]
    query.process_all_available()
    query.query.explain(True)
    said += [json.dumps(query.last_progress), str(query.query.lastProgress)]
    _pages(spark, directory)
    for slot in (directory / "state" / name / ".hosts").iterdir():
        shutil.copy(slot, directory / f"copy-{slot.name}")

    log = made.deployment.log()
    producer = log.plain_producer()
    producer.produce(f"{name}-in", b"k", b"bad", partition=0)
    producer.flush()
    producer.close()
    try:
        query.await_termination()
    except Exception as error:  # noqa: BLE001 - what it says is what is looked at
        said.append(str(error))

    for wrong in (
        {"kafka": {**KAFKA, "sasl.mechanism": "GSSAPI"}},
        {
            "kafka": {**KAFKA, "ssl.key.password": SECRETS[1], "ssl.key.location": "/nowhere"},
            "spark_kafka": {},
        },
        {"kafka": {**KAFKA, "ssl.key.passwort": SECRETS[1]}},
        {"kafka": {**KAFKA, "sasl.password": SECRETS[0] + "x"}},
    ):
        try:
            streams(**wrong).start(spark)
        except Exception as error:  # noqa: BLE001 - what it says is what is looked at
            said.append(repr(error))

    write = exactly_once_kafka_sink(bootstrap, f"{name}-out", application_id=f"{name}-sink", kafka=KAFKA)
    said.append(repr(write))

    def failing(batch: DataFrame, number: int) -> None:
        write(batch, number)
        raise ArithmeticError("after it")

    def once(how: object) -> None:
        rows = spark.readStream.format("rate").load().select(f.col("value").cast("string"))
        sunk = rows.writeStream.foreachBatch(how).option(  # type: ignore[arg-type]
            "checkpointLocation", str(directory / "sink-checkpoint")
        )
        sunk.trigger(once=True).start().awaitTermination()

    for how in (failing, write):
        try:
            once(how)
        except Exception as error:  # noqa: BLE001 - what it says is what is looked at
            said.append(str(error))
    (directory / "said.txt").write_text("\n".join(said))
    query.stop()
    shutil.copy(started.directory / "spark.log", directory / "spark.log")
    spark.stop()
    shutil.copytree(started.directory / "events", directory / "events")
    session.end(started)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
