# A Kafka broker: the jars that also the local world runs.
ARG BASE
FROM ${BASE}
LABEL crashproof=image
COPY libs/ /opt/kafka/libs/
