import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Configurable;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyDescription;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler;
import org.apache.kafka.streams.errors.StreamsException;
import org.apache.kafka.streams.errors.TopologyException;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.BranchedKStream;
import org.apache.kafka.streams.kstream.CogroupedKStream;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Initializer;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Merger;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Reducer;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindowedKStream;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.UnlimitedWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.ValueJoinerWithKey;
import org.apache.kafka.streams.kstream.ValueMapperWithKey;
import org.apache.kafka.streams.kstream.ValueTransformerWithKey;
import org.apache.kafka.streams.kstream.ValueTransformerWithKeySupplier;
import org.apache.kafka.streams.kstream.Window;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.kstream.Windows;
import org.apache.kafka.streams.kstream.internals.NamedInternal;
import org.apache.kafka.streams.processor.FailOnInvalidTimestamp;
import org.apache.kafka.streams.processor.LogAndSkipOnInvalidTimestamp;
import org.apache.kafka.streams.processor.Cancellable;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.Punctuator;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.TimestampExtractor;
import org.apache.kafka.streams.processor.UsePartitionTimeOnInvalidTimestamp;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorSupplier;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import org.apache.kafka.streams.processor.internals.InternalTopicConfig;
import org.apache.kafka.streams.processor.internals.InternalTopicManager;
import org.apache.kafka.streams.processor.internals.InternalTopologyBuilder;
import org.apache.kafka.streams.processor.internals.RepartitionTopics;
import org.apache.kafka.streams.processor.internals.StreamTask;
import org.apache.kafka.streams.processor.internals.TopologyMetadata;
import org.apache.kafka.streams.processor.internals.assignment.CopartitionedTopicsEnforcer;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.WindowBytesStoreSupplier;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Runs pipelines in Kafka Streams' test driver and prints what they forward.
 *
 * <p>Each line of the input is one pipeline, as {@code pipelines.py} describes it, and each line of the output what came
 * of it: the names of its operators, stores and topics, the partitions of its repartition topics, and the records of each
 * of its outputs in order, or {"error": the exception}. The first line of the output is the version of Kafka Streams.
 */
public final class Pipelines {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
    private static final int LONGEST = 12;
    private static final long BEGIN = 1_000_000;
    private static final Grouped<String, String> GROUPED = Grouped.with(Serdes.String(), Serdes.String());

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        ObjectMapper mapper = new ObjectMapper();
        out.println(mapper.writeValueAsString(AppInfoParser.getVersion()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.objectNode();
            try {
                run(mapper.readTree(line), answer);
            } catch (Exception error) {
                Throwable cause = error;
                while (cause.getCause() != null) {
                    cause = cause.getCause();
                }
                answer.put("error", error + " / " + cause);
            }
            out.println(mapper.writeValueAsString(answer));
        }
    }

    private static void run(JsonNode pipeline, ObjectNode answer) throws ReflectiveOperationException, NoSuchAlgorithmException {
        Topology topology = build(pipeline);
        names(topology, answer);
        Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, "app");
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "none:1");
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, pipeline.get("cache").asText());
        properties.put(StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG,
            "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$RocksDBDslStoreSuppliers");
        // Not once a second by the wall clock, which stands still here.
        properties.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", "0");
        properties.put("__emit.interval.ms.kstreams.windowed.aggregation__", "0");
        for (JsonNode step : pipeline.get("steps")) {
            if (has(step, "raises")) {
                properties.put(StreamsConfig.PROCESSING_EXCEPTION_HANDLER_CLASS_CONFIG, LogAndContinueProcessingExceptionHandler.class);
            }
        }
        properties.put(StreamsConfig.STATE_DIR_CONFIG, pipeline.get("directory").asText());
        partitions(build(pipeline), new StreamsConfig(properties), pipeline.get("partitions"), answer);
        TreeMap<String, TestInputTopic<String, String>> inputs = new TreeMap<>();
        if (pipeline.has("times")) {
            properties.put(StreamsConfig.DEFAULT_TIMESTAMP_EXTRACTOR_CLASS_CONFIG, Timed.class);
            properties.put("how", pipeline.get("times").asText());
        }
        try (TopologyTestDriver driver = new TopologyTestDriver(topology, properties, Instant.ofEpochMilli(0))) {
            settings(driver, answer.putObject("topics"));
            boolean numbered = pipeline.get("numbered").asBoolean();
            ObjectNode outputs = answer.putObject("outputs");
            int every = pipeline.has("every") ? pipeline.get("every").asInt() : 1;
            Batches batches = every == 1 ? null : new Batches(driver);
            int number = 0;
            for (JsonNode record : pipeline.get("records")) {
                number++;
                try {
                    if (record.size() == 1) {
                        driver.advanceWallClockTime(Duration.ofMillis(record.get(0).asLong()));
                    } else {
                        TestRecord<String, String> input = new TestRecord<>(text(record.get(1)), text(record.get(2)),
                            numbered ? headers(number) : new RecordHeaders(), Instant.ofEpochMilli(record.get(3).asLong()));
                        if (batches == null || !batches.pipe(record.get(0).asText(), input)) {
                            inputs.computeIfAbsent(record.get(0).asText(),
                                topic -> driver.createInputTopic(topic, new StringSerializer(), new StringSerializer()))
                                .pipeInput(input);
                        }
                    }
                    if (batches != null && (number % every == 0 || number == pipeline.get("records").size())) {
                        batches.commit();
                    }
                } catch (StreamsException error) {
                    answer.put("stopped", number);
                    break;
                }
                for (Iterator<String> topics = pipeline.get("outputs").fieldNames(); topics.hasNext();) {
                    read(driver, topics.next(), outputs);
                }
            }
            if (!answer.has("stopped")) {
                written(driver, answer.putObject("written"));
            }
        }
    }

    private static Topology build(JsonNode pipeline) {
        StreamsBuilder builder = new StreamsBuilder();
        List<Object> made = new ArrayList<>();
        for (JsonNode step : pipeline.get("steps")) {
            made.add(make(builder, made, step));
        }
        return builder.build();
    }

    /** How many partitions each repartition topic has where the inputs have those; none where they do not fit together. */
    private static void partitions(Topology topology, StreamsConfig config, JsonNode inputs, ObjectNode answer) throws ReflectiveOperationException {
        Field field = Topology.class.getDeclaredField("internalTopologyBuilder");
        field.setAccessible(true);
        TopologyMetadata metadata = new TopologyMetadata((InternalTopologyBuilder) field.get(topology), config);
        metadata.buildAndRewriteTopology();
        List<PartitionInfo> each = new ArrayList<>();
        inputs.fields().forEachRemaining(topic -> {
            for (int partition = 0; partition < topic.getValue().asInt(); partition++) {
                each.add(new PartitionInfo(topic.getKey(), partition, Node.noNode(), new Node[0], new Node[0]));
            }
        });
        InternalTopicManager topics = new InternalTopicManager(Time.SYSTEM, null, config) {
            @Override
            public Set<String> makeReady(Map<String, InternalTopicConfig> wanted) {
                return Set.of();
            }
        };
        RepartitionTopics repartitions = new RepartitionTopics(metadata, topics, new CopartitionedTopicsEnforcer(""),
            new Cluster("cluster", List.of(Node.noNode()), each, Set.of(), Set.of()), "");
        try {
            repartitions.setup();
        } catch (TopologyException refused) {
            return;
        }
        TreeMap<String, Integer> found = new TreeMap<>();
        repartitions.topicPartitionsInfo().keySet()
            .forEach(one -> found.merge(one.topic().substring("app-".length()), 1, Integer::sum));
        ObjectNode said = answer.putObject("partitions");
        found.forEach(said::put);
    }

    /** Commits where it is told to, and not after each record, as the driver does by itself. */
    private static final class Batches {
        private final TopologyTestDriver driver;
        private final StreamTask task;
        private final Map<String, TopicPartition> partitions;

        @SuppressWarnings("unchecked")
        Batches(TopologyTestDriver driver) throws ReflectiveOperationException {
            this.driver = driver;
            task = (StreamTask) field("task");
            partitions = (Map<String, TopicPartition>) field("partitionsByInputTopic");
        }

        /** Whether it is an input of the task: those of global tables are not. */
        boolean pipe(String topic, TestRecord<String, String> input) throws ReflectiveOperationException {
            if (!partitions.containsKey(topic)) {
                return false;
            }
            call("enqueueTaskRecord", topic, partitions.get(topic), input.timestamp(), bytes(input.key()),
                bytes(input.value()), input.headers());
            work();
            return true;
        }

        /** And processes what came of it, until nothing comes any more. */
        void commit() throws ReflectiveOperationException {
            do {
                work();
                call("commit", task.prepareCommit(true));
                task.postCommit(true);
                call("captureOutputsAndReEnqueueInternalResults");
            } while (task.hasRecordsQueued());
        }

        private void work() {
            task.resumePollingForPartitionsWithAvailableSpace();
            task.updateLags();
            while (task.hasRecordsQueued() && task.isProcessable(0)) {
                task.process(0);
                task.maybePunctuateStreamTime();
            }
        }

        private Object field(String name) throws ReflectiveOperationException {
            Field field = TopologyTestDriver.class.getDeclaredField(name);
            field.setAccessible(true);
            return field.get(driver);
        }

        private void call(String name, Object... arguments) throws ReflectiveOperationException {
            for (Method method : TopologyTestDriver.class.getDeclaredMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == arguments.length) {
                    method.setAccessible(true);
                    try {
                        method.invoke(driver, arguments);
                    } catch (InvocationTargetException error) {
                        if (error.getCause() instanceof RuntimeException raised) {
                            throw raised;
                        }
                        throw error;
                    }
                }
            }
        }

        private static byte[] bytes(String said) {
            return said == null ? null : said.getBytes(StandardCharsets.UTF_8);
        }
    }

    /** Those of the input record of that number: some have several, or one without a value. */
    private static Headers headers(int number) {
        byte[] said = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
        return switch (number % 3) {
            case 0 -> new RecordHeaders().add("n", said);
            case 1 -> new RecordHeaders().add("n", said).add("m", null);
            default -> new RecordHeaders().add("m", new byte[0]).add("n", said).add("n", said);
        };
    }

    /** What is new in a topic. Bytes of keys that have a window are read as they are. */
    private static void read(TopologyTestDriver driver, String topic, ObjectNode outputs) {
        if (!driver.producedTopicNames().contains(topic)) {
            return;
        }
        for (TestRecord<byte[], String> one : driver
            .createOutputTopic(topic, new ByteArrayDeserializer(), new StringDeserializer()).readRecordsToList()) {
            StringBuilder said = new StringBuilder();
            one.headers().forEach(header -> said.append(header.key())
                .append(header.value() == null ? "-" : new String(header.value(), StandardCharsets.UTF_8)));
            String key = one.key() == null ? null
                : topic.startsWith("windowed") ? HexFormat.of().formatHex(one.key())
                : new String(one.key(), StandardCharsets.UTF_8);
            outputs.withArray(topic).addArray().add(key).add(one.value()).add(one.timestamp()).add(said.toString());
        }
    }

    /** What tells the records of each internal topic: all of them, or of a changelog the last one of each key. */
    private static void written(TopologyTestDriver driver, ObjectNode answer) throws NoSuchAlgorithmException {
        for (String topic : new TreeSet<>(driver.producedTopicNames())) {
            if (!topic.startsWith("app-")) {
                continue;
            }
            List<String> all = new ArrayList<>();
            TreeMap<String, String> last = new TreeMap<>();
            for (TestRecord<byte[], byte[]> one : driver
                .createOutputTopic(topic, new ByteArrayDeserializer(), new ByteArrayDeserializer()).readRecordsToList()) {
                String key = one.key() == null ? "" : HexFormat.of().formatHex(one.key());
                String said = key + (one.value() == null ? "-" : "=" + HexFormat.of().formatHex(one.value()))
                    + "@" + one.timestamp() + "\n";
                all.add(said);
                last.put(key, one.value() == null ? "" : said);
            }
            String said = String.join("", topic.endsWith("-changelog") ? last.values() : all);
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(said.getBytes(StandardCharsets.UTF_8));
            answer.put(topic.substring("app-".length()), HexFormat.of().formatHex(digest, 0, 6));
        }
    }

    /** The internal topics of each kind of settings, but for that which is the same for all. */
    private static void settings(TopologyTestDriver driver, ObjectNode answer) throws ReflectiveOperationException {
        Field field = TopologyTestDriver.class.getDeclaredField("internalTopologyBuilder");
        field.setAccessible(true);
        InternalTopologyBuilder topology = (InternalTopologyBuilder) field.get(driver);
        for (InternalTopologyBuilder.TopicsInfo topics : topology.subtopologyToTopicsInfo().values()) {
            List<InternalTopicConfig> each = new ArrayList<>(topics.stateChangelogTopics.values());
            each.addAll(topics.repartitionSourceTopics.values());
            for (InternalTopicConfig one : each) {
                TreeSet<String> said = new TreeSet<>();
                one.properties(Map.of(), Duration.ofDays(1).toMillis()).forEach((setting, value) -> {
                    if (!setting.equals("message.timestamp.type")) {
                        said.add(setting + "=" + value);
                    }
                });
                answer.withArray(String.join(" ", said)).add(one.name().substring("app-".length()));
            }
        }
    }

    private static void names(Topology topology, ObjectNode answer) {
        ObjectNode operators = answer.putObject("operators");
        TreeSet<String> stores = new TreeSet<>();
        TreeSet<String> topics = new TreeSet<>();
        for (TopologyDescription.Subtopology sub : topology.describe().subtopologies()) {
            for (TopologyDescription.Node node : sub.nodes()) {
                TreeSet<String> of = new TreeSet<>();
                if (node instanceof TopologyDescription.Processor processor) {
                    of.addAll(processor.stores());
                } else if (node instanceof TopologyDescription.Source source && source.topicSet() != null) {
                    topics.addAll(source.topicSet());
                }
                stores.addAll(of);
                TreeSet<String> children = new TreeSet<>();
                node.successors().forEach(child -> children.add(child.name()));
                operators.put(node.name(), String.join(" ", of) + ">" + String.join(" ", children));
            }
        }
        ArrayNode named = answer.putArray("stores");
        stores.forEach(named::add);
        ArrayNode read = answer.putArray("sources");
        topics.forEach(read::add);
    }

    private static String text(JsonNode node) {
        return node.isNull() ? null : node.asText();
    }

    private static String last(String said) {
        return said.length() <= LONGEST ? said : said.substring(said.length() - LONGEST);
    }

    private static String first(String value) {
        return value == null ? "z" : value.isEmpty() ? "" : value.substring(0, 1);
    }

    private static boolean holds(String name, String key, String value) {
        return switch (name) {
            case "keyed" -> key != null;
            case "even" -> value != null && value.length() % 2 == 0;
            case "valued" -> value != null;
            case "not_a" -> !"a".equals(key);
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static String named(Windowed<String> key) {
        return key.key() + "@" + key.window().start() + "-" + key.window().end();
    }

    @SuppressWarnings("unchecked")
    private static Object make(StreamsBuilder builder, List<Object> made, JsonNode step) {
        String operator = step.get("do").asText();
        List<Object> of = new ArrayList<>();
        step.get("of").forEach(index -> of.add(made.get(index.asInt())));
        String how = step.has("how") ? step.get("how").asText() : "";
        Object one = of.isEmpty() ? null : of.get(0);
        Object other = of.size() < 2 ? null : of.get(1);
        String called = step.has("called") ? step.get("called").asText() : null;
        Named named = called == null ? NamedInternal.empty() : Named.as(called);
        boolean keyed = has(step, "keyed");
        boolean nothing = has(step, "nothing");
        ValueJoiner<String, String, String> joiner =
            (left, right) -> nothing && "x".equals(right) ? null : last(left + "+" + right);
        ValueJoinerWithKey<String, String, String, String> joinerWithKey =
            (key, left, right) -> nothing && "x".equals(right) ? null : last((keyed ? key : "") + left + "+" + right);
        Materialized<String, String, KeyValueStore<Bytes, byte[]>> kept =
            step.has("stored") ? stored(step, Serdes.String()) : null;
        switch (operator) {
            case "stream":
                return builder.stream(List.of(how.split("\\+")), consumed(step, called));
            case "table":
                return kept == null ? builder.table(how, consumed(step, called))
                    : builder.table(how, consumed(step, called), kept);
            case "global":
                return builder.<String, String>globalTable(how);
            case "to":
                Produced<String, String> produced = Produced.as(called);
                produced = has(step, "sent") ? produced.withStreamPartitioner(Pipelines::firstPartition) : produced;
                if (has(step, "found")) {
                    ((KStream<String, String>) one).to((k, v, context) -> how, produced);
                } else {
                    ((KStream<String, String>) one).to(how, produced);
                }
                return null;
            case "filter":
                return ((KStream<String, String>) one).filter((k, v) -> holds(how, k, v), named);
            case "filter_not":
                return ((KStream<String, String>) one).filterNot((k, v) -> holds(how, k, v), named);
            case "map_values":
                return ((KStream<String, String>) one).mapValues((k, v) -> last((keyed ? k : "") + checked(step, v) + "'"), named);
            case "flat_map_values":
                return ((KStream<String, String>) one).flatMapValues((k, v) -> {
                    List<String> each = letters(checked(step, v));
                    if (keyed) {
                        each.add(0, String.valueOf(k));
                    }
                    return each;
                }, named);
            case "flat_map":
                return ((KStream<String, String>) one).flatMap(
                    (k, v) -> letters(v).stream().map(letter -> KeyValue.pair(letter, k + letter)).toList(), named);
            case "peek":
                return ((KStream<String, String>) one).peek((k, v) -> checked(step, v), named);
            case "foreach":
                ((KStream<String, String>) one).foreach((k, v) -> { }, named);
                return null;
            case "select_key":
                return ((KStream<String, String>) one).selectKey(
                    (k, v) -> step.has("none") && step.get("none").asText().equals(v) ? null : first(checked(step, v)), named);
            case "map":
                return ((KStream<String, String>) one).map((k, v) -> KeyValue.pair(first(checked(step, v)), last(k + ":" + v)), named);
            case "repartition": {
                Repartitioned<String, String> repartitioned = called == null
                    ? Repartitioned.with(Serdes.String(), Serdes.String())
                    : Repartitioned.<String, String>as(called).withKeySerde(Serdes.String()).withValueSerde(Serdes.String());
                if (step.has("partitions")) {
                    repartitioned = repartitioned.withNumberOfPartitions(step.get("partitions").asInt());
                }
                if (has(step, "sent")) {
                    repartitioned = repartitioned.withStreamPartitioner(Pipelines::firstPartition);
                }
                return ((KStream<String, String>) one).repartition(repartitioned);
            }
            case "through":
                ((KStream<String, String>) one).to(how, Produced.as(called));
                return builder.stream(how, consumed(step, null));
            case "merge":
                return ((KStream<String, String>) one).merge((KStream<String, String>) other, named);
            case "split": {
                Branched<String, String> branch = step.has("branch") ? Branched.as(step.get("branch").asText()) : null;
                BranchedKStream<String, String> split = ((KStream<String, String>) one).split(named);
                split = branch == null ? split.branch((k, v) -> holds("even", k, v))
                    : split.branch((k, v) -> holds("even", k, v), branch);
                split = split.branch((k, v) -> holds("not_a", k, v));
                Map<String, KStream<String, String>> branches =
                    step.get("default").asBoolean() ? split.defaultBranch() : split.noDefaultBranch();
                List<KStream<String, String>> each = new ArrayList<>(new TreeMap<>(branches).values());
                return each.get(0).merge(each.get(1));
            }
            case "look": {
                FixedKeyProcessorSupplier<String, String, String> supplier = () -> new Looking(step);
                return ((KStream<String, String>) one).processValues(supplier, step.get("store").asText());
            }
            case "process":
            case "process_values": {
                String store = step.get("store").asText();
                builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore(store), Serdes.String(), Serdes.String()));
                KStream<String, String> processed = (KStream<String, String>) one;
                if (operator.equals("process_values")) {
                    FixedKeyProcessorSupplier<String, String, String> supplier = () -> new AddedUp(store);
                    return called == null ? processed.processValues(supplier, store)
                        : processed.processValues(supplier, named, store);
                }
                ProcessorSupplier<String, String, String, String> supplier = () -> new Punctuated(step);
                processed = called == null ? processed.process(supplier, store) : processed.process(supplier, named, store);
                if (!has(step, "parted")) {
                    return processed;
                }
                KStream<String, String> marked = processed.mapValues(v -> last(v + "'"), Named.as(store + "-marked"));
                return marked.merge(processed.filter((k, v) -> v != null, Named.as(store + "-valued")));
            }
            case "to_table":
                return kept == null ? ((KStream<String, String>) one).toTable(named)
                    : ((KStream<String, String>) one).toTable(named, kept);
            case "group":
                return aggregate(((KStream<String, String>) one).groupByKey(grouped(called)), how, step);
            case "group_by":
                return aggregate(((KStream<String, String>) one).groupBy((k, v) -> first(v), grouped(called)), how, step);
            case "cogroup": {
                Aggregator<String, String, String> adder = adder(step);
                CogroupedKStream<String, String> cogrouped = ((KStream<String, String>) one).groupByKey(grouped(called))
                    .cogroup(adder);
                for (Object another : of.subList(1, of.size())) {
                    cogrouped = cogrouped.cogroup(((KStream<String, String>) another).groupByKey(GROUPED), adder);
                }
                if (!step.has("windows")) {
                    return cogrouped.aggregate(begun(step), operator(step), stored(step, Serdes.String()));
                }
                KTable<Windowed<String>, String> table = switch (step.get("windows").asText()) {
                    case "session" -> cogrouped.windowedBy(sessions(step)).aggregate(begun(step),
                        merger(step), operator(step), stored(step, Serdes.String()));
                    case "sliding" -> cogrouped.windowedBy(sliding(step))
                        .aggregate(begun(step), operator(step), stored(step, Serdes.String()));
                    default -> cogrouped.windowedBy(windows(step))
                        .aggregate(begun(step), operator(step), stored(step, Serdes.String()));
                };
                return table.toStream((k, v) -> named(k));
            }
            case "window":
                return windowed(builder, ((KStream<String, String>) one).groupByKey(grouped(called)), how, step);
            case "join_windows": {
                List<KTable<Windowed<String>, String>> tables = of.stream().map(each ->
                    ((KStream<String, String>) each).groupByKey(GROUPED).windowedBy(windows(step))
                        .reduce((all, v) -> last(all + v))).toList();
                KTable<Windowed<String>, String> joined = switch (how) {
                    case "inner" -> tables.get(0).join(tables.get(1), joiner, named);
                    case "left" -> tables.get(0).leftJoin(tables.get(1), joiner, named);
                    default -> tables.get(0).outerJoin(tables.get(1), joiner, named);
                };
                return joined.toStream((k, v) -> named(k));
            }
            case "join_streams": {
                JoinWindows windows = JoinWindows
                    .ofTimeDifferenceAndGrace(Duration.ofMillis(Math.max(0, step.get("before").asLong())), ms(step, "grace"))
                    .after(ms(step, "after")).before(ms(step, "before"));
                StreamJoined<String, String, String> joined =
                    StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String());
                joined = called == null ? joined : joined.withName(called);
                joined = step.has("stored") ? joined.withStoreName(step.get("stored").asText()) : joined;
                joined = step.has("logged") ? joined.withLoggingEnabled(logged(step)) : joined;
                joined = has(step, "unlogged") ? joined.withLoggingDisabled() : joined;
                joined = has(step, "in_memory") ? joined.withDslStoreSuppliers(Materialized.StoreType.IN_MEMORY) : joined;
                for (JsonNode side : step.path("suppliers")) {
                    WindowBytesStoreSupplier supplier = Stores.persistentWindowStore(
                        side.asText() + "-of-" + step.get("number").asText(),
                        Duration.ofMillis(windows.size() + windows.gracePeriodMs()), Duration.ofMillis(windows.size()), true);
                    joined = side.asText().equals("this") ? joined.withThisStoreSupplier(supplier)
                        : joined.withOtherStoreSupplier(supplier);
                }
                KStream<String, String> left = (KStream<String, String>) one;
                KStream<String, String> right = (KStream<String, String>) other;
                return switch (how) {
                    case "inner" -> left.join(right, joinerWithKey, windows, joined);
                    case "left" -> left.leftJoin(right, joinerWithKey, windows, joined);
                    default -> left.outerJoin(right, joinerWithKey, windows, joined);
                };
            }
            case "join_table": {
                Joined<String, String, String> joined = Joined.as(called);
                joined = step.has("grace") ? joined.withGracePeriod(ms(step, "grace")) : joined;
                return how.equals("inner") ? ((KStream<String, String>) one).join((KTable<String, String>) other, joinerWithKey, joined)
                    : ((KStream<String, String>) one).leftJoin((KTable<String, String>) other, joinerWithKey, joined);
            }
            case "join_global":
                return how.equals("inner")
                    ? ((KStream<String, String>) one).join((GlobalKTable<String, String>) other, (k, v) -> first(v), joinerWithKey, named)
                    : ((KStream<String, String>) one)
                        .leftJoin((GlobalKTable<String, String>) other, (k, v) -> first(v), joinerWithKey, named);
            case "filter_rows":
                return kept == null ? ((KTable<String, String>) one).filter((k, v) -> holds(how, k, v), named)
                    : ((KTable<String, String>) one).filter((k, v) -> holds(how, k, v), named, kept);
            case "filter_rows_not":
                return kept == null ? ((KTable<String, String>) one).filterNot((k, v) -> holds(how, k, v), named)
                    : ((KTable<String, String>) one).filterNot((k, v) -> holds(how, k, v), named, kept);
            case "map_rows": {
                ValueMapperWithKey<String, String, String> mark = (k, v) -> last((keyed ? k : "") + v + "'");
                return kept == null ? ((KTable<String, String>) one).mapValues(mark, named)
                    : ((KTable<String, String>) one).mapValues(mark, named, kept);
            }
            case "transform_rows": {
                ValueTransformerWithKeySupplier<String, String, String> supplier =
                    () -> new Transformer(step.get("deletes").asBoolean());
                return kept == null ? ((KTable<String, String>) one).transformValues(supplier, named)
                    : ((KTable<String, String>) one).transformValues(supplier, kept, named);
            }
            case "group_rows":
                return aggregate(((KTable<String, String>) one).groupBy(
                    (k, v) -> KeyValue.pair("key".equals(lost(step)) && v.equals("b") ? null : first(v),
                        "value".equals(lost(step)) && v.equals("b") ? null : v), grouped(called)), how, step);
            case "suppress": {
                // What is said of the changelog is forgotten where it is not said last.
                Suppressed<String> suppressed = Suppressed.untilTimeLimit(ms(step, "wait"), has(step, "strict")
                    ? logged(step, bounded(step)) : logged(step, bounded(step).emitEarlyWhenFull()));
                return ((KTable<String, String>) one).suppress(called == null ? suppressed : suppressed.withName(called));
            }
            case "join_tables": {
                KTable<String, String> left = (KTable<String, String>) one;
                KTable<String, String> right = (KTable<String, String>) other;
                return switch (how) {
                    case "inner" -> kept == null ? left.join(right, joiner, named) : left.join(right, joiner, named, kept);
                    case "left" -> kept == null ? left.leftJoin(right, joiner, named) : left.leftJoin(right, joiner, named, kept);
                    default -> kept == null ? left.outerJoin(right, joiner, named) : left.outerJoin(right, joiner, named, kept);
                };
            }
            case "join_foreign": {
                KTable<String, String> left = (KTable<String, String>) one;
                KTable<String, String> right = (KTable<String, String>) other;
                TableJoined<String, String> tabled = tabled(called);
                for (JsonNode which : step.path("sent_by")) {
                    tabled = which.asText().isEmpty() ? tabled.withPartitioner(Pipelines::firstPartition)
                        : tabled.withOtherPartitioner(Pipelines::firstPartition);
                }
                String none = step.has("none") ? step.get("none").asText() : "";
                if (keyed) {
                    BiFunction<String, String, String> foreign = (k, v) -> none.equals(v) ? null : first(v);
                    if (kept == null) {
                        return how.equals("inner") ? left.join(right, foreign, joiner, tabled)
                            : left.leftJoin(right, foreign, joiner, tabled);
                    }
                    return how.equals("inner") ? left.join(right, foreign, joiner, tabled, kept)
                        : left.leftJoin(right, foreign, joiner, tabled, kept);
                }
                Function<String, String> foreign = v -> none.equals(v) ? null : first(v);
                if (kept == null) {
                    return how.equals("inner") ? left.join(right, foreign, joiner, tabled)
                        : left.leftJoin(right, foreign, joiner, tabled);
                }
                return how.equals("inner") ? left.join(right, foreign, joiner, tabled, kept)
                    : left.leftJoin(right, foreign, joiner, tabled, kept);
            }
            case "to_stream":
                return has(step, "mapped") ? ((KTable<String, String>) one).toStream((k, v) -> first(v), named)
                    : ((KTable<String, String>) one).toStream(named);
            default:
                throw new IllegalArgumentException(operator);
        }
    }

    private static Consumed<String, String> consumed(JsonNode step, String called) {
        Consumed<String, String> consumed = Consumed.with(Serdes.String(), Serdes.String());
        consumed = called == null ? consumed : consumed.withName(called);
        if (!step.has("times")) {
            return consumed;
        }
        return consumed.withTimestampExtractor(new Timed(step.get("times").asText()));
    }

    /** The topic's time, moved by what the value says, or none. */
    public static final class Timed implements TimestampExtractor, Configurable {
        private String how;

        public Timed() {
        }

        Timed(String how) {
            this.how = how;
        }

        @Override
        public void configure(Map<String, ?> properties) {
            how = (String) properties.get("how");
        }

        @Override
        public long extract(ConsumerRecord<Object, Object> record, long partitionTime) {
            int length = record.value() instanceof String value ? value.length() : 0;
            if (how.equals("moved")) {
                long moved = record.timestamp() - 4 * length;
                return moved == 0 ? 1 : moved;
            }
            TimestampExtractor onInvalid = switch (how) {
                case "skip" -> new LogAndSkipOnInvalidTimestamp();
                case "fail" -> new FailOnInvalidTimestamp();
                default -> new UsePartitionTimeOnInvalidTimestamp();
            };
            boolean invalid = length == 3 && (!how.equals("partition") || partitionTime >= 0);
            return onInvalid.extract(invalid ? new ConsumerRecord<>(record.topic(), record.partition(), record.offset(), -1,
                record.timestampType(), -1, -1, record.key(), record.value(), record.headers(), Optional.empty()) : record,
                partitionTime);
        }
    }

    private static boolean has(JsonNode step, String flag) {
        return step.has(flag) && step.get(flag).asBoolean();
    }

    private static String lost(JsonNode step) {
        return step.has("lost") ? step.get("lost").asText() : "";
    }

    /** The same, but that it may be an error. */
    private static String checked(JsonNode step, String value) {
        if (has(step, "raises") && "bc".equals(value)) {
            throw new IllegalStateException(value);
        }
        return value;
    }

    private static List<String> letters(String value) {
        List<String> each = new ArrayList<>();
        for (int at = 0; value != null && at < Math.min(3, value.length()); at++) {
            each.add(value.substring(at, at + 1));
        }
        return each;
    }

    private static Optional<Set<Integer>> firstPartition(String topic, String key, Object value, int partitions) {
        return Optional.of(Set.of(0));
    }

    private static Named operator(JsonNode step) {
        return step.has("operator") ? Named.as(step.get("operator").asText()) : NamedInternal.empty();
    }

    /** The value of a table after its key. */
    private static final class Transformer implements ValueTransformerWithKey<String, String, String> {
        private final boolean deletes;

        Transformer(boolean deletes) {
            this.deletes = deletes;
        }

        @Override
        public void init(org.apache.kafka.streams.processor.ProcessorContext context) {
        }

        @Override
        public String transform(String key, String value) {
            return value == null && deletes ? null : last(key + value);
        }

        @Override
        public void close() {
        }
    }

    /** Says what a store of another operator has, held back or not: of the record's key, and in all. */
    private static final class Looking extends ContextualFixedKeyProcessor<String, String, String> {
        private final JsonNode step;
        private StateStore store;

        Looking(JsonNode step) {
            this.step = step;
        }

        @Override
        public void init(FixedKeyProcessorContext<String, String> context) {
            super.init(context);
            store = context.getStateStore(step.get("store").asText());
        }

        @Override
        public void process(FixedKeyRecord<String, String> record) {
            if (record.key() != null) {
                String said = found(record) + "|" + all(record);
                context().forward(record.withValue(said.substring(Math.max(0, said.length() - 200))));
            }
        }

        @SuppressWarnings("unchecked")
        private String found(FixedKeyRecord<String, String> record) {
            String key = record.key();
            long time = record.timestamp();
            List<String> rows = new ArrayList<>();
            if (store instanceof SessionStore) {
                try (KeyValueIterator<Windowed<String>, Object> found =
                         ((SessionStore<String, Object>) store).findSessions(key, time - 20, time)) {
                    found.forEachRemaining(row -> rows.add(
                        row.key.window().start() + "-" + row.key.window().end() + "=" + row.value));
                }
            } else if (store instanceof WindowStore) {
                try (WindowStoreIterator<ValueAndTimestamp<Object>> found =
                         ((WindowStore<String, ValueAndTimestamp<Object>>) store).fetch(key, time - 20, time)) {
                    found.forEachRemaining(row -> rows.add(row.key + "=" + timed(row.value)));
                }
            } else {
                ValueAndTimestamp<Object> found = ((KeyValueStore<String, ValueAndTimestamp<Object>>) store).get(key);
                return found == null ? "" : timed(found);
            }
            return String.join(",", rows);
        }

        @SuppressWarnings("unchecked")
        private String all(FixedKeyRecord<String, String> record) {
            if (step.has("windows")) {
                return "";
            }
            KeyValueStore<String, ValueAndTimestamp<Object>> rows =
                (KeyValueStore<String, ValueAndTimestamp<Object>>) store;
            List<String> said = new ArrayList<>();
            try (KeyValueIterator<String, ValueAndTimestamp<Object>> found =
                     record.key().equals("b") ? rows.range("b", null) : rows.all()) {
                found.forEachRemaining(row -> said.add(row.key + "=" + timed(row.value)));
            }
            return String.join(",", said);
        }

        private static String timed(ValueAndTimestamp<Object> found) {
            return found.value() + "@" + found.timestamp() % 1000;
        }
    }

    /** Adds up the values of each key, and forwards those of two letters twice. */
    private static final class AddedUp extends ContextualFixedKeyProcessor<String, String, String> {
        private final String named;
        private KeyValueStore<String, String> store;

        AddedUp(String named) {
            this.named = named;
        }

        @Override
        public void init(FixedKeyProcessorContext<String, String> context) {
            super.init(context);
            store = context.getStateStore(named);
        }

        @Override
        public void process(FixedKeyRecord<String, String> record) {
            if (record.key() == null) {
                context().forward(record);
                return;
            }
            String before = store.get(record.key());
            String total = last((before == null ? "" : before) + record.value());
            store.put(record.key(), total);
            FixedKeyRecord<String, String> said = record.withValue(total);
            if ("b".equals(record.value())) {
                Headers headers = new RecordHeaders(record.headers());
                said = said.withHeaders(headers.add("p", record.key().getBytes(StandardCharsets.UTF_8)));
            }
            context().forward(said);
            if (record.value() != null && record.value().length() == 2) {
                context().forward(record.withValue((String) null).withTimestamp(record.timestamp() + 1));
            }
        }
    }

    /** Adds up the values of each key, and forwards all of them now and then, by either clock. */
    private static final class Punctuated extends ContextualProcessor<String, String, String, String> {
        private final JsonNode step;
        private final List<Cancellable> scheduled = new ArrayList<>();
        private KeyValueStore<String, String> store;
        private int calls;

        Punctuated(JsonNode step) {
            this.step = step;
        }

        @Override
        public void init(ProcessorContext<String, String> context) {
            super.init(context);
            store = context.getStateStore(step.get("store").asText());
            schedule("s", "stream", PunctuationType.STREAM_TIME, BEGIN);
            schedule("w", "wall", PunctuationType.WALL_CLOCK_TIME, 0);
        }

        private void schedule(String clock, String interval, PunctuationType type, long begin) {
            Punctuator report = now -> report(clock, now);
            scheduled.add(step.has("start")
                ? context().schedule(Instant.ofEpochMilli(begin + step.get("start").asLong()), ms(step, interval), type, report)
                : context().schedule(ms(step, interval), type, report));
        }

        /** Sends a record on, to all that come after it or, where these are parted, to one of them. */
        private void send(Record<String, String> record) {
            if (!has(step, "parted") || "x".equals(record.value())) {
                context().forward(record);
            } else {
                String child = record.value().length() % 2 == 0 ? "-marked" : "-valued";
                context().forward(record, step.get("store").asText() + child);
            }
        }

        /** Where the input record comes from, if that is told. */
        private String told() {
            if (!has(step, "told")) {
                return "";
            }
            RecordMetadata from = context().recordMetadata().orElseThrow();
            return (from.topic() == null ? "" : from.topic()) + from.offset() + ":" + context().currentStreamTimeMs() % 1000;
        }

        @Override
        public void process(Record<String, String> record) {
            String before = store.get(record.key());
            String total = last((before == null ? "" : before) + record.value() + told());
            store.put(record.key(), total);
            send(record.withValue(total));
        }

        private void report(String clock, long now) {
            calls++;
            if (step.has("cancels") && calls == step.get("cancels").asInt()) {
                scheduled.get(clock.equals("s") ? 0 : 1).cancel();
            } else if (step.has("again") && calls == step.get("again").asInt()) {
                schedule("s", "stream", PunctuationType.STREAM_TIME, BEGIN);
                schedule("w", "wall", PunctuationType.WALL_CLOCK_TIME, 0);
            }
            try (KeyValueIterator<String, String> rows = store.all()) {
                while (rows.hasNext()) {
                    KeyValue<String, String> row = rows.next();
                    // Clients of ours send no record of time 0.
                    String said = last(clock + now + told() + row.value);
                    send(new Record<>(row.key, said, Math.max(1, context().currentStreamTimeMs())));
                }
            }
        }
    }

    private static Map<String, String> logged(JsonNode step) {
        TreeMap<String, String> said = new TreeMap<>();
        step.get("logged").fields().forEachRemaining(one -> said.put(one.getKey(), one.getValue().asText()));
        return said;
    }

    private static <B extends Suppressed.BufferConfig<B>> B logged(JsonNode step, B buffer) {
        B said = step.has("logged") ? buffer.withLoggingEnabled(logged(step)) : buffer;
        return has(step, "unlogged") ? said.withLoggingDisabled() : said;
    }

    private static Suppressed.StrictBufferConfig bounded(JsonNode step) {
        Suppressed.StrictBufferConfig buffer = Suppressed.BufferConfig.unbounded();
        if (step.has("records")) {
            buffer = buffer.withMaxRecords(step.get("records").asLong());
        }
        if (step.has("bytes")) {
            buffer = buffer.withMaxBytes(step.get("bytes").asLong());
        }
        return buffer;
    }

    private static Duration ms(JsonNode step, String name) {
        return Duration.ofMillis(step.get(name).asLong());
    }

    private static Grouped<String, String> grouped(String called) {
        return called == null ? GROUPED : Grouped.with(called, Serdes.String(), Serdes.String());
    }

    private static TableJoined<String, String> tabled(String called) {
        return called == null ? TableJoined.with(null, null) : TableJoined.as(called);
    }

    @SuppressWarnings("unchecked")
    private static <V, S extends StateStore> Materialized<String, V, S> stored(JsonNode step, Serde<V> values) {
        String name = step.has("stored") ? text(step.get("stored")) : null;
        Materialized<String, V, S> said = name == null ? Materialized.with(Serdes.String(), values) : Materialized.as(name);
        if (step.has("history")) {
            said = (Materialized<String, V, S>) Materialized.<String, V>as(
                Stores.persistentVersionedKeyValueStore(name, ms(step, "history")));
        }
        said = said.withKeySerde(Serdes.String()).withValueSerde(values);
        said = has(step, "uncached") ? said.withCachingDisabled() : said;
        said = step.has("logged") ? said.withLoggingEnabled(logged(step)) : said;
        said = has(step, "unlogged") ? said.withLoggingDisabled() : said;
        said = has(step, "in_memory") ? said.withStoreType(Materialized.StoreType.IN_MEMORY) : said;
        return step.has("retention") ? said.withRetention(ms(step, "retention")) : said;
    }

    private static KTable<String, String> aggregate(KGroupedStream<String, String> group, String how, JsonNode step) {
        return switch (how) {
            case "count" -> group.count(operator(step), stored(step, Serdes.Long())).mapValues(String::valueOf);
            case "reduce" -> group.reduce(reducer(step), operator(step), stored(step, Serdes.String()));
            default -> group.aggregate(begun(step), (k, v, all) -> v.equals("x") ? null : last(all + v),
                operator(step), stored(step, Serdes.String()));
        };
    }

    private static KTable<String, String> aggregate(KGroupedTable<String, String> group, String how, JsonNode step) {
        return switch (how) {
            case "count" -> group.count(operator(step), stored(step, Serdes.Long())).mapValues(String::valueOf);
            case "reduce" -> group.reduce(reducer(step), (all, v) -> made(step, v, all + "-" + v),
                operator(step), stored(step, Serdes.String()));
            default -> group.aggregate(begun(step), adder(step), (k, v, all) -> made(step, v, all + "-" + v),
                operator(step), stored(step, Serdes.String()));
        };
    }

    /** What a fold makes of a value, which may be nothing where that is an x. */
    private static String made(JsonNode step, String value, String said) {
        return has(step, "nothing") && value.equals("x") ? null : last(said);
    }

    private static Reducer<String> reducer(JsonNode step) {
        return (all, v) -> made(step, v, all + v);
    }

    private static Initializer<String> begun(JsonNode step) {
        return () -> has(step, "unbegun") ? null : "";
    }

    private static Merger<String, String> merger(JsonNode step) {
        return (k, a, b) -> has(step, "unmerged") && ("" + a + b).length() % 2 == 0 ? null : last(a + "/" + b);
    }

    private static Aggregator<String, String, String> adder(JsonNode step) {
        return (k, v, all) -> made(step, v, all + v);
    }

    private static SessionWindows sessions(JsonNode step) {
        return SessionWindows.ofInactivityGapAndGrace(ms(step, "size"), ms(step, "grace"));
    }

    private static SlidingWindows sliding(JsonNode step) {
        return SlidingWindows.ofTimeDifferenceAndGrace(ms(step, "size"), ms(step, "grace"));
    }

    private static Windows<? extends Window> windows(JsonNode step) {
        return step.get("windows").asText().equals("unlimited")
            ? UnlimitedWindows.of().startOn(Instant.ofEpochMilli(BEGIN + step.get("from").asLong()))
            : TimeWindows.ofSizeAndGrace(ms(step, "size"), ms(step, "grace")).advanceBy(ms(step, "advance"));
    }

    private static KStream<String, String> windowed(StreamsBuilder builder, KGroupedStream<String, String> group, String how, JsonNode step) {
        String kind = step.get("windows").asText();
        KTable<Windowed<String>, String> table;
        if (kind.equals("session")) {
            SessionWindowedKStream<String, String> sessions = group.windowedBy(sessions(step));
            if (step.get("on_close").asBoolean()) {
                sessions = sessions.emitStrategy(EmitStrategy.onWindowClose());
            }
            table = switch (how) {
                case "count" -> sessions.count(operator(step), stored(step, Serdes.Long())).mapValues(String::valueOf);
                case "reduce" -> sessions.reduce(reducer(step), operator(step), stored(step, Serdes.String()));
                default -> sessions.aggregate(begun(step), adder(step), merger(step), operator(step), stored(step, Serdes.String()));
            };
        } else {
            TimeWindowedKStream<String, String> windows =
                kind.equals("sliding") ? group.windowedBy(sliding(step)) : group.windowedBy(windows(step));
            if (step.get("on_close").asBoolean()) {
                windows = windows.emitStrategy(EmitStrategy.onWindowClose());
            }
            table = switch (how) {
                case "count" -> windows.count(operator(step), stored(step, Serdes.Long())).mapValues(String::valueOf);
                case "reduce" -> windows.reduce(reducer(step), operator(step), stored(step, Serdes.String()));
                default -> windows.aggregate(begun(step), adder(step), operator(step), stored(step, Serdes.String()));
            };
        }
        if (step.has("rows")) {
            table = step.get("rows").asText().equals("filter") ? table.filter((k, v) -> v != null && v.length() % 2 == 0)
                : table.mapValues(v -> last(v + "'"));
        }
        if (step.get("suppressed").asBoolean()) {
            table = table.suppress(Suppressed.untilWindowCloses(logged(step, bounded(step))));
        }
        if (step.has("held")) {
            table = table.suppress(Suppressed.untilTimeLimit(ms(step, "held"), has(step, "strict")
                ? logged(step, bounded(step)) : logged(step, bounded(step).emitEarlyWhenFull())));
        }
        if (has(step, "regrouped")) {
            return table.groupBy((k, v) -> KeyValue.pair(k.key(), v), GROUPED)
                .reduce((all, v) -> last(all + v), (all, v) -> last(all + "-" + v)).toStream();
        }
        if (step.has("written")) {
            String topic = step.get("written").asText();
            table.toStream().to(topic);
            Serde<Windowed<String>> keys = kind.equals("session") ? WindowedSerdes.sessionWindowedSerdeFrom(String.class)
                : WindowedSerdes.timeWindowedSerdeFrom(String.class,
                    kind.equals("unlimited") ? Long.MAX_VALUE : step.get("size").asLong());
            return builder.stream(topic, Consumed.with(keys, Serdes.String())).selectKey((k, v) -> named(k));
        }
        return table.toStream((k, v) -> named(k));
    }
}
