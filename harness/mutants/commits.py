"""Mutants of the commit protocol, of fencing, of aborts and of attempts that Spark repeats."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_TASK = "store.streams.task:Task"
_WORKER = "store.streams.worker:Worker"

MUTANTS = (
    Mutant(
        "fenced-commit-ignored",
        "KAFKA-10631",
        "A task that was fenced while committing goes on to commit its store.",
        (
            Edit(
                f"{_TASK}._retry",
                "            except RetriableError as error:",
                "            except FencedError:\n"
                "                if not self.uncommitted_records:\n"
                "                    raise\n"
                "                return {}\n"
                "            except RetriableError as error:",
            ),
        ),
    ),
    Mutant(
        "fencing-after-restoring",
        "KAFKA-6634",
        "A new incarnation fences its predecessor after it has restored, so what that one commits meanwhile is missed.",
        (
            Edit(f"{_TASK}._make_producer", "self._retry(producer.init_transactions)", "pass"),
            Edit(
                f"{_TASK}.open",
                "            self._restore(context, reader)\n",
                "            self._restore(context, reader)\n"
                "            if self._producer is not None:\n"
                "                self._retry(self._producer.init_transactions)\n",
            ),
        ),
    ),
    Mutant(
        "stores-commit-before-kafka",
        "FLINK-23509",
        "Stores commit before Kafka has the transaction.",
        (
            Edit(
                f"{_TASK}._commit_exactly_once",
                "            yield partial(self._retry, producer.commit_transaction)\n",
                "            self._commit_stores(ends)\n"
                "            yield partial(self._retry, producer.commit_transaction)\n",
            ),
        ),
    ),
    Mutant(
        "stores-do-not-commit",
        "KAFKA-20489",
        "A commit reaches Kafka, and not the stores.",
        (Edit(f"{_TASK}._commit_exactly_once", "self._commit_stores(ends)", "pass"),),
    ),
    Mutant(
        "positions-not-in-the-transaction",
        OWN,
        "The input positions are not sent with the transaction.",
        (
            Edit(
                f"{_TASK}._commit_exactly_once",
                "        yield partial(self._retry, send)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "positions-of-one-input-alone",
        "faust#599",
        "Of several inputs only the position of the first one is committed.",
        (
            Edit(
                f"{_TASK}._commit_exactly_once",
                "partial(producer.send_offsets, group, self._positions, ",
                "partial(producer.send_offsets, group, dict([*self._positions.items()][:1]), ",
            ),
        ),
    ),
    Mutant(
        "unknown-outcome-taken-for-a-commit",
        "librdkafka#3575",
        "A commit whose outcome nobody knows is taken for one that happened.",
        (
            Edit(
                f"{_TASK}._commit_exactly_once",
                "        except BaseException:\n",
                "        except OutcomeUnknownError:\n            pass\n        except BaseException:\n",
            ),
        ),
    ),
    Mutant(
        "unknown-outcome-taken-for-an-abort",
        "FLINK-11743",
        "A commit whose outcome nobody knows is aborted, and its records are processed again.",
        (
            Edit(
                f"{_TASK}._commit_exactly_once",
                "        except BaseException:\n",
                "        except OutcomeUnknownError as error:\n"
                "            for store in self.stores.values():\n"
                "                store.discard()\n"
                "            self._positions = dict(self._committed)\n"
                "            self._state = _State.RUNNING\n"
                "            self._processed = 0\n"
                "            return\n"
                "        except BaseException:\n",
            ),
        ),
    ),
    Mutant(
        "abort-keeps-the-writes",
        OWN,
        "An abort does not drop the uncommitted writes of the stores.",
        (Edit(f"{_TASK}.abort", "store.discard()", "pass"),),
    ),
    Mutant(
        "abort-keeps-the-position",
        OWN,
        "An abort does not go back in the input.",
        (Edit(f"{_TASK}.abort", "self._positions = dict(self._committed)", "pass"),),
    ),
    Mutant(
        "abort-behind-a-single-record",
        OWN,
        "An abort does not wait for a commit whose first record is the last stable offset, nor for its positions, and "
        "takes it along.",
        (
            Edit(
                f"{_TASK}._check_last_commit",
                "elif stable <= first:",
                "elif stable < first:",
                also=(("if self._positions_acknowledged:", "if False:"),),
            ),
        ),
    ),
    Mutant(
        "abort-asks-for-the-last-commit-alone",
        OWN,
        "An abort waits for what the last commit has written, and takes along what one before it wrote elsewhere.",
        (
            Edit(
                f"{_TASK}._commit_exactly_once",
                "self._acknowledged |= {",
                "self._acknowledged = {",
            ),
        ),
    ),
    Mutant(
        "flush-not-repeated",
        OWN,
        "A flush that may be repeated is taken for done at its first failure.",
        (
            Edit(
                f"{_TASK}._commit_exactly_once",
                "        ends = yield partial(self._retry, producer.flush)\n",
                "        try:\n"
                "            ends = producer.flush()\n"
                "        except RetriableError:\n"
                "            ends = {}\n",
            ),
        ),
    ),
    Mutant(
        "positions-not-repeated",
        OWN,
        "A call that sends the positions, and may be repeated, is taken for done at its first failure.",
        (
            Edit(
                f"{_TASK}._commit_exactly_once",
                "        yield partial(self._retry, send)\n",
                "        try:\n            send()\n        except RetriableError:\n            pass\n",
            ),
        ),
    ),
    Mutant(
        "timeout-taken-for-a-takeover",
        OWN,
        "A task whose own transaction timed out believes that somebody has taken it over.",
        (Edit(f"{_TASK}._why_refused", "if took < timeout and not", "if not"),),
    ),
    Mutant(
        "worker-commits-nothing-when-it-stops",
        OWN,
        "A worker that is asked to end leaves its last transaction open.",
        (
            Edit(f"{_WORKER}._commit_all", "                commit()\n", "                pass\n"),
            Edit(
                f"{_WORKER}._process",
                "(task.should_commit() or others_wait or not (progress or self._busy)):",
                "(task.should_commit() or others_wait or (self._ends is not None and not progress)):",
            ),
        ),
    ),
    Mutant(
        "batch-applied-again",
        "a Spark sink that committed while Spark's commit log did not",
        "A micro-batch that Spark runs again is applied again.",
        (
            Edit(
                "store.spark.host:TaskHost._advance",
                "            records = worker.advance(ends, partial(self._tick_all_but, worker), refresh)\n",
                "            records = worker.advance(ends, partial(self._tick_all_but, worker), refresh)\n"
                "            for order in orders:\n"
                "                if not records.get(order.partition):\n"
                "                    worker.tasks[order.partition]._positions |= {\n"
                "                        TopicPartition(topic, order.partition): 0 for topic in order.ends\n"
                "                    }\n"
                "                    records = worker.advance(ends, partial(self._tick_all_but, worker), refresh)\n",
            ),
        ),
    ),
    Mutant(
        "an-order-that-was-broken-off-counts-as-carried-out",
        OWN,
        "A task host that is told to end in the middle of an order answers that it is carried out.",
        (
            Edit(
                "store.spark.host:TaskHost._advance",
                "        if self._leaving.is_set():\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "an-order-goes-one-record-further",
        OWN,
        "A task that is brought to an end on Spark takes the record there, too, which is the first of the next batch.",
        (Edit(f"{_WORKER}._process", "bisect_left(records, end,", "bisect_left(records, end + 1,"),),
    ),
    Mutant(
        "an-order-is-answered-with-where-the-task-was",
        OWN,
        "A task host answers an order with the positions that its task had when the order came.",
        (
            Edit(
                "store.spark.host:TaskHost._advance",
                "        try:\n            records = worker.advance(",
                "        before = {one: dict(task._committed) for one, task in worker.tasks.items()}\n"
                "        try:\n            records = worker.advance(",
                also=(
                    (
                        "                    topic: worker.tasks[order.partition].committed_position(\n"
                        "                        TopicPartition(topic, order.partition)\n"
                        "                    )\n",
                        "                    topic: before.get(order.partition, {}).get(\n"
                        "                        TopicPartition(topic, order.partition), 0\n"
                        "                    )\n",
                    ),
                ),
            ),
        ),
    ),
    Mutant(
        "markers-are-left-by-a-task-host-that-ends",
        OWN,
        "A task host that ends leaves the group before markers and aborted records that its tasks have passed over.",
        (
            Edit(
                "store.spark.host:TaskHost.close",
                "[one for one, task in worker.tasks.items() if task.has_passed_over]",
                "[]",
            ),
        ),
    ),
    Mutant(
        "attempt-ends-without-its-last-commit",
        OWN,
        "An order of Spark counts as carried out although what was processed last is not committed.",
        (
            Edit(
                f"{_WORKER}.advance",
                "if task is not None and not self._owes_commit(task) and not self._before_ends(task):",
                "if task is not None and not self._before_ends(task):",
            ),
            Edit(f"{_WORKER}.assign", "                commit()\n", "                pass\n"),
        ),
    ),
    Mutant(
        "timestamps-not-forwarded",
        OWN,
        "Outputs get the time 0 instead of that of their input.",
        (
            Edit(
                "store.streams.context:TaskContext.forward",
                "timestamp = self.record.timestamp",
                "timestamp = 0",
            ),
        ),
    ),
    Mutant(
        "positions-topic-not-written",
        OWN,
        "A pipeline without stores does not keep its positions where they outlive those of the group.",
        (Edit(f"{_TASK}._write_positions", "if self._positions_at is not None:", "if False:"),),
    ),
    Mutant(
        "positions-topic-not-read",
        OWN,
        "A pipeline without stores begins anew where the group has lost its positions, though they are kept elsewhere.",
        (Edit(f"{_TASK}._known_positions", "if at is None or None not in committed.values():", "if True:"),),
    ),
    Mutant(
        "transactions-of-any-age",
        OWN,
        "A transaction is committed when it has enough records, however old it is.",
        (
            Edit(
                f"{_TASK}._commit_is_due",
                "            or self._monotonic() - self._began >= self._commit_interval_s\n",
                "",
            ),
        ),
        oracle="progress",
    ),
    Mutant(
        "transactions-of-one-record-more",
        OWN,
        "A transaction is committed when it has one record more than it may have.",
        (
            Edit(
                f"{_TASK}._commit_is_due",
                "self._processed >= self._commit_records",
                "self._processed > self._commit_records",
            ),
        ),
        oracle="progress",
    ),
    Mutant(
        "transactions-of-one-record-less",
        OWN,
        "A transaction is committed when it has one record less than it may have.",
        (
            Edit(
                f"{_TASK}._commit_is_due",
                "self._processed >= self._commit_records",
                "self._processed >= self._commit_records - 1",
            ),
        ),
        oracle="progress",
    ),
    Mutant(
        "commit-interval-taken-for-nothing",
        OWN,
        "A transaction is committed at its first record, as if the commit interval were 0.",
        (
            Edit(
                f"{_TASK}._commit_is_due",
                "self._monotonic() - self._began >= self._commit_interval_s",
                "self._monotonic() >= self._began",
            ),
        ),
        oracle="progress",
    ),
    Mutant(
        "commit-interval-of-records",
        OWN,
        "The age of a transaction counts from its last record, so that one that never rests is not committed.",
        (
            Edit(
                f"{_TASK}.process_batch",
                "            self._processed += 1\n",
                "            self._processed += 1\n            self._began = self._clock.monotonic()\n",
            ),
        ),
        oracle="progress",
    ),
    Mutant(
        "transactions-of-any-size",
        OWN,
        "A transaction is not committed when the stores hold more of it than they may.",
        (
            Edit(
                f"{_TASK}._commit_is_due",
                "held * self.tasks_in_process > most",
                "False",
            ),
        ),
        oracle="progress",
    ),
    Mutant(
        "each-task-holds-what-all-may-hold",
        OWN,
        "A transaction is committed when its task alone holds what all tasks of its process may hold.",
        (
            Edit(
                f"{_TASK}._commit_is_due",
                "return held * self.tasks_in_process > most",
                "return held > most",
            ),
        ),
        oracle="progress",
    ),
    Mutant(
        "commits-asked-for-forgotten",
        OWN,
        "A processing function that asks for a commit gets none.",
        (
            Edit(
                f"{_TASK}._commit_is_due",
                "            or context.commit_requested\n",
                "",
            ),
        ),
        oracle="progress",
    ),
    Mutant(
        "an-abort-has-both-positions-be-one",
        "SPARK-32148",
        "After an abort what is processed moves the committed position as well, so that the next abort goes nowhere.",
        (
            Edit(
                f"{_TASK}.abort",
                "self._positions = dict(self._committed)",
                "self._positions = self._committed",
            ),
        ),
    ),
    Mutant(
        "observed-times-of-a-commit-move-on",
        "SPARK-32148",
        "The largest times that operators had observed at a commit are those of now, also after an abort.",
        (
            Edit(
                f"{_TASK}._committed_all",
                "dict(self._context.observed)",
                "self._context.observed",
            ),
        ),
    ),
    Mutant(
        "one-store-with-transactions-is-enough-to-abort",
        OWN,
        "A task goes back to its last commit although one of its stores has no transactions.",
        (
            Edit(
                f"{_TASK}._revocable",
                "all(store.transactional() for store in self.stores.values())",
                "(not self.stores or any(store.transactional() for store in self.stores.values()))",
            ),
        ),
    ),
)
