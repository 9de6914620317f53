import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Properties;
import java.util.function.Function;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.api.MockProcessorContext;
import org.apache.kafka.streams.query.MultiVersionedKeyQuery;
import org.apache.kafka.streams.query.PositionBound;
import org.apache.kafka.streams.query.QueryConfig;
import org.apache.kafka.streams.query.QueryResult;
import org.apache.kafka.streams.query.VersionedKeyQuery;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.VersionedRecordIterator;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.internals.ListValueStoreBuilder;

/**
 * Drives real Kafka Streams stores and prints what they answer.
 *
 * <p>The argument is an empty directory for the stores. Each line of the input is one sequence:
 * {"type": …, "memory": …, "parameters": {…}, "operations": [[name, argument, …], …]}, and each line of the output
 * holds its answers in order. The first line of the output is the version of Kafka Streams. Bytes are hexadecimal,
 * null is null, times are milliseconds. An exception is answered as {"error": its class}.
 */
public final class Judge {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
    private static final HexFormat HEX = HexFormat.of();

    private interface Driver {
        JsonNode answer(String operation, JsonNode arguments) throws Exception;
    }

    public static void main(final String[] arguments) throws Exception {
        final PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        final ObjectMapper mapper = new ObjectMapper();
        final File directory = new File(arguments[0]);
        output.println(JSON.textNode(AppInfoParser.getVersion()));
        final BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        int number = 0;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            output.println(judge(mapper.readTree(line), directory, "store" + number++));
        }
        output.flush();
    }

    private static ArrayNode judge(final JsonNode sequence, final File directory, final String name) throws Exception {
        final StateStore store =
            open(sequence.get("type").asText(), sequence.get("memory").asBoolean(), sequence.get("parameters"), name);
        final Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, "judge");
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "127.0.0.1:1");
        final MockProcessorContext<Object, Object> context =
            new MockProcessorContext<>(properties, new TaskId(0, 0), directory);
        store.init(context.getStateStoreContext(), store);
        final Driver driver = driver(store);
        final ArrayNode answers = JSON.arrayNode();
        for (final JsonNode operation : sequence.get("operations")) {
            try {
                answers.add(driver.answer(operation.get(0).asText(), operation));
            } catch (final RuntimeException error) {
                answers.add(JSON.objectNode().put("error", error.getClass().getSimpleName()));
            }
        }
        store.close();
        return answers;
    }

    private static StateStore open(
        final String type, final boolean memory, final JsonNode parameters, final String name
    ) {
        final Function<String, Duration> duration = key -> Duration.ofMillis(parameters.get(key).asLong());
        switch (type) {
            case "keyvalue":
                return (memory ? Stores.inMemoryKeyValueStore(name) : Stores.persistentKeyValueStore(name)).get();
            case "timestamped_keyvalue":
                return Stores.persistentTimestampedKeyValueStore(name).get();
            case "listvalue": {
                final KeyValueBytesStoreSupplier inner =
                    memory ? Stores.inMemoryKeyValueStore(name) : Stores.persistentKeyValueStore(name);
                return new ListValueStoreBuilder<>(inner, Serdes.Bytes(), Serdes.ByteArray(), Time.SYSTEM)
                    .withLoggingDisabled().build();
            }
            case "window":
            case "timestamped_window": {
                final Duration retention = duration.apply("retention_ms");
                final Duration size = duration.apply("window_size_ms");
                final boolean duplicates = parameters.get("retain_duplicates").asBoolean();
                if (memory) {
                    return Stores.inMemoryWindowStore(name, retention, size, duplicates).get();
                }
                return type.equals("window")
                    ? Stores.persistentWindowStore(name, retention, size, duplicates).get()
                    : Stores.persistentTimestampedWindowStore(name, retention, size, duplicates).get();
            }
            case "session": {
                final Duration retention = duration.apply("retention_ms");
                return (memory
                    ? Stores.inMemorySessionStore(name, retention)
                    : Stores.persistentSessionStore(name, retention)).get();
            }
            case "versioned": {
                final Duration retention = duration.apply("history_retention_ms");
                return Stores.versionedKeyValueStoreBuilder(
                    parameters.has("segment_interval_ms")
                        ? Stores.persistentVersionedKeyValueStore(
                            name, retention, duration.apply("segment_interval_ms"))
                        : Stores.persistentVersionedKeyValueStore(name, retention),
                    Serdes.Bytes(), Serdes.ByteArray()).withLoggingDisabled().build();
            }
            default:
                throw new IllegalArgumentException("unknown store type " + type);
        }
    }

    @SuppressWarnings("unchecked")
    private static Driver driver(final StateStore store) {
        if (store instanceof WindowStore) {
            return (name, given) -> window((WindowStore<Bytes, byte[]>) store, name, given);
        }
        if (store instanceof SessionStore) {
            return (name, given) -> session((SessionStore<Bytes, byte[]>) store, name, given);
        }
        if (store instanceof VersionedKeyValueStore) {
            return (name, given) -> versioned((VersionedKeyValueStore<Bytes, byte[]>) store, name, given);
        }
        return (name, given) -> keyValue((KeyValueStore<Bytes, byte[]>) store, name, given);
    }

    private static JsonNode keyValue(final KeyValueStore<Bytes, byte[]> store, final String name, final JsonNode o) {
        switch (name) {
            case "put":
                store.put(key(o, 1), bytes(o, 2));
                return JSON.nullNode();
            case "put_if_absent":
                return hex(store.putIfAbsent(key(o, 1), bytes(o, 2)));
            case "put_all": {
                final List<KeyValue<Bytes, byte[]>> entries = new ArrayList<>();
                for (final JsonNode entry : o.get(1)) {
                    entries.add(KeyValue.pair(key(entry, 0), bytes(entry, 1)));
                }
                store.putAll(entries);
                return JSON.nullNode();
            }
            case "delete":
                return hex(store.delete(key(o, 1)));
            case "get":
                return hex(store.get(key(o, 1)));
            case "range":
                return rows(store.range(key(o, 1), key(o, 2)), Judge::keyRow);
            case "reverse_range":
                return rows(store.reverseRange(key(o, 1), key(o, 2)), Judge::keyRow);
            case "all":
                return rows(store.all(), Judge::keyRow);
            case "reverse_all":
                return rows(store.reverseAll(), Judge::keyRow);
            case "prefix_scan":
                return rows(store.prefixScan(bytes(o, 1), new ByteArraySerializer()), Judge::keyRow);
            default:
                throw unknown(name);
        }
    }

    private static JsonNode window(final WindowStore<Bytes, byte[]> store, final String name, final JsonNode o) {
        switch (name) {
            case "put":
                store.put(key(o, 1), bytes(o, 2), time(o, 3));
                return JSON.nullNode();
            case "fetch_one":
                return hex(store.fetch(key(o, 1), time(o, 2)));
            case "fetch":
                return rows(store.fetch(key(o, 1), time(o, 2), time(o, 3)), Judge::timeRow);
            case "backward_fetch":
                return rows(store.backwardFetch(key(o, 1), time(o, 2), time(o, 3)), Judge::timeRow);
            case "fetch_range":
                return rows(store.fetch(key(o, 1), key(o, 2), time(o, 3), time(o, 4)), Judge::windowedRow);
            case "backward_fetch_range":
                return rows(store.backwardFetch(key(o, 1), key(o, 2), time(o, 3), time(o, 4)), Judge::windowedRow);
            case "fetch_all":
                return rows(store.fetchAll(time(o, 1), time(o, 2)), Judge::windowedRow);
            case "backward_fetch_all":
                return rows(store.backwardFetchAll(time(o, 1), time(o, 2)), Judge::windowedRow);
            case "all":
                return rows(store.all(), Judge::windowedRow);
            case "backward_all":
                return rows(store.backwardAll(), Judge::windowedRow);
            default:
                throw unknown(name);
        }
    }

    private static JsonNode session(final SessionStore<Bytes, byte[]> store, final String name, final JsonNode o) {
        switch (name) {
            case "put":
                store.put(session(o), bytes(o, 4));
                return JSON.nullNode();
            case "remove":
                store.remove(session(o));
                return JSON.nullNode();
            case "fetch_session":
                return hex(store.fetchSession(key(o, 1), time(o, 2), time(o, 3)));
            case "fetch":
                return rows(store.fetch(key(o, 1)), Judge::windowedRow);
            case "backward_fetch":
                return rows(store.backwardFetch(key(o, 1)), Judge::windowedRow);
            case "fetch_range":
                return rows(store.fetch(key(o, 1), key(o, 2)), Judge::windowedRow);
            case "backward_fetch_range":
                return rows(store.backwardFetch(key(o, 1), key(o, 2)), Judge::windowedRow);
            case "find_sessions":
                return rows(store.findSessions(key(o, 1), time(o, 2), time(o, 3)), Judge::windowedRow);
            case "backward_find_sessions":
                return rows(store.backwardFindSessions(key(o, 1), time(o, 2), time(o, 3)), Judge::windowedRow);
            case "find_sessions_range":
                return rows(store.findSessions(key(o, 1), key(o, 2), time(o, 3), time(o, 4)), Judge::windowedRow);
            case "backward_find_sessions_range":
                return rows(
                    store.backwardFindSessions(key(o, 1), key(o, 2), time(o, 3), time(o, 4)), Judge::windowedRow);
            case "find_sessions_ending":
                return rows(store.findSessions(time(o, 1), time(o, 2)), Judge::windowedRow);
            case "backward_find_sessions_ending":
                throw new UnsupportedOperationException(name);
            default:
                throw unknown(name);
        }
    }

    private static JsonNode versioned(
        final VersionedKeyValueStore<Bytes, byte[]> store, final String name, final JsonNode o
    ) {
        switch (name) {
            case "put":
                return JSON.numberNode(store.put(key(o, 1), bytes(o, 2), time(o, 3)));
            case "delete": {
                // The record that delete returns has lost its end of validity on its way through the outer layer.
                final VersionedRecord<byte[]> deleted = store.delete(key(o, 1), time(o, 2));
                return deleted == null
                    ? JSON.nullNode()
                    : JSON.arrayNode().add(hex(deleted.value())).add(deleted.timestamp());
            }
            case "get":
                return version(result(store.query(
                    VersionedKeyQuery.<Bytes, byte[]>withKey(key(o, 1)), PositionBound.unbounded(),
                    new QueryConfig(false))));
            case "get_as_of":
                return version(result(store.query(
                    VersionedKeyQuery.<Bytes, byte[]>withKey(key(o, 1)).asOf(Instant.ofEpochMilli(time(o, 2))),
                    PositionBound.unbounded(), new QueryConfig(false))));
            case "versions": {
                MultiVersionedKeyQuery<Bytes, byte[]> query = MultiVersionedKeyQuery.withKey(key(o, 1));
                if (!o.get(2).isNull()) {
                    query = query.fromTime(Instant.ofEpochMilli(time(o, 2)));
                }
                if (!o.get(3).isNull()) {
                    query = query.toTime(Instant.ofEpochMilli(time(o, 3)));
                }
                query = o.get(4).asBoolean() ? query.withAscendingTimestamps() : query.withDescendingTimestamps();
                final ArrayNode rows = JSON.arrayNode();
                try (VersionedRecordIterator<byte[]> records =
                         result(store.query(query, PositionBound.unbounded(), new QueryConfig(false)))) {
                    while (records.hasNext()) {
                        rows.add(version(records.next()));
                    }
                }
                return rows;
            }
            default:
                throw unknown(name);
        }
    }

    private static <R> R result(final QueryResult<R> answer) {
        if (answer.isFailure()) {
            throw new IllegalStateException(answer.getFailureMessage());
        }
        return answer.getResult();
    }

    private static JsonNode version(final VersionedRecord<byte[]> version) {
        if (version == null) {
            return JSON.nullNode();
        }
        final ArrayNode row = JSON.arrayNode().add(hex(version.value())).add(version.timestamp());
        return version.validTo().isPresent() ? row.add(version.validTo().get()) : row.addNull();
    }

    private static ArrayNode keyRow(final KeyValue<Bytes, byte[]> row) {
        return JSON.arrayNode().add(hex(row.key.get())).add(hex(row.value));
    }

    private static ArrayNode timeRow(final KeyValue<Long, byte[]> row) {
        return JSON.arrayNode().add(row.key).add(hex(row.value));
    }

    private static ArrayNode windowedRow(final KeyValue<Windowed<Bytes>, byte[]> row) {
        return JSON.arrayNode().add(hex(row.key.key().get())).add(row.key.window().start())
            .add(row.key.window().end()).add(hex(row.value));
    }

    private static <T, I extends Iterator<T> & AutoCloseable> ArrayNode rows(
        final I iterator, final Function<T, ArrayNode> row
    ) {
        final ArrayNode rows = JSON.arrayNode();
        try (iterator) {
            while (iterator.hasNext()) {
                rows.add(row.apply(iterator.next()));
            }
        } catch (final RuntimeException error) {
            throw error;
        } catch (final Exception error) {
            throw new IllegalStateException(error);
        }
        return rows;
    }

    private static Windowed<Bytes> session(final JsonNode operation) {
        return new Windowed<>(key(operation, 1), new SessionWindow(time(operation, 2), time(operation, 3)));
    }

    private static Bytes key(final JsonNode operation, final int index) {
        final byte[] key = bytes(operation, index);
        return key == null ? null : Bytes.wrap(key);
    }

    private static byte[] bytes(final JsonNode operation, final int index) {
        return operation.get(index).isNull() ? null : HEX.parseHex(operation.get(index).asText());
    }

    private static long time(final JsonNode operation, final int index) {
        return operation.get(index).asLong();
    }

    private static JsonNode hex(final byte[] bytes) {
        return bytes == null ? JSON.nullNode() : JSON.textNode(HEX.formatHex(bytes));
    }

    private static IllegalArgumentException unknown(final String name) {
        return new IllegalArgumentException("unknown operation " + name);
    }
}
