"""What the real worlds need on this machine: Java, a Kafka broker, Spark's Kafka connector, Docker and images."""

from harness.provision.cache import cache_directory
from harness.provision.doctor import Finding, doctor
from harness.provision.errors import ChecksumError, ProvisionError
from harness.provision.jars import broker_classpath, broker_jars, spark_jars, write_lock
from harness.provision.java import Java, java, java_environment, spark_environment

__all__ = [
    "ChecksumError",
    "Finding",
    "Java",
    "ProvisionError",
    "broker_classpath",
    "broker_jars",
    "cache_directory",
    "doctor",
    "java",
    "java_environment",
    "spark_environment",
    "spark_jars",
    "write_lock",
]
