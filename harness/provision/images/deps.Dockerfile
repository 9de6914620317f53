# The Python packages of crashproof[spark,check] and Spark with its Kafka connector.
ARG BASE
FROM ${BASE}
LABEL crashproof=image
# Without SPARK_SCALA_VERSION no executor starts: Spark looks for it in a file that the Python package lacks.
ENV SPARK_HOME=/usr/local/lib/python3.11/dist-packages/pyspark \
    PYSPARK_PYTHON=/usr/bin/python3.11 \
    PYSPARK_DRIVER_PYTHON=/usr/bin/python3.11 \
    SPARK_SCALA_VERSION=2.13
COPY dist-packages/ /usr/local/lib/python3.11/dist-packages/
# Every container starts from here: what is not compiled now would be compiled at each start.
RUN python3.11 -m compileall -q -j 0 --invalidation-mode unchecked-hash /usr/local/lib/python3.11/dist-packages \
    && ln -s /usr/bin/python3.11 /usr/local/bin/python3
