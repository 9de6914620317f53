"""TLS and SASL of librdkafka in the words of Kafka's Java client, by which Spark plans."""

from __future__ import annotations

import pytest

from store.errors import ConfigError
from store.spark.settings import security_of_spark


def test_a_password_login_is_translated_with_its_quotes() -> None:
    kafka = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/etc/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": 'a"b\\c',
    }
    assert security_of_spark(kafka, {}) == {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/etc/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="a\\"b\\\\c";',
    }


@pytest.mark.parametrize(("of_librdkafka", "of_java"), [("https", "https"), ("none", "")])
def test_brokers_whose_names_are_not_to_be_verified_are_not_verified_by_java_either(
    of_librdkafka: str, of_java: str
) -> None:
    found = security_of_spark({"ssl.endpoint.identification.algorithm": of_librdkafka}, {})
    assert found == {"ssl.endpoint.identification.algorithm": of_java}


@pytest.mark.parametrize("key", ["sasl.mechanism", "sasl.mechanisms"])
@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "scram.ScramLoginModule"),
    ],
)
def test_each_login_by_password_has_its_module_under_both_names_of_the_mechanism(
    key: str, mechanism: str, module: str
) -> None:
    found = security_of_spark({key: mechanism, "sasl.username": "me", "sasl.password": "mine"}, {})
    login = f'org.apache.kafka.common.security.{module} required username="me" password="mine";'
    assert found == {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def test_an_authority_that_is_given_as_text_needs_no_keystore_of_a_client() -> None:
    kafka = {"security.protocol": "SSL", "ssl.ca.pem": "-----BEGIN CERTIFICATE-----"}
    assert security_of_spark(kafka, {}) == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----",
    }
    given = {"ssl.truststore.location": "/etc/trust.jks", "ssl.truststore.type": "JKS"}
    assert security_of_spark(kafka, given) == {"security.protocol": "SSL"}


@pytest.mark.parametrize("password", [{}, {"ssl.keystore.password": "mine"}])
def test_a_keystore_of_librdkafka_is_one_of_java_with_its_password_if_it_has_one(
    password: dict[str, str],
) -> None:
    kafka = {"ssl.keystore.location": "/etc/me.p12", **password}
    assert security_of_spark(kafka, {}) == {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": "/etc/me.p12",
        **password,
    }


def test_settings_that_are_no_security_are_left_to_the_hosts() -> None:
    assert security_of_spark({"linger.ms": 5}, {}) == {}


@pytest.mark.parametrize(
    ("kafka", "given"),
    [
        *(
            ({key: "mine"}, {"ssl.keystore.location": "/etc/me.p12"})
            for key in (
                "ssl.certificate.location",
                "ssl.certificate.pem",
                "ssl.key.location",
                "ssl.key.pem",
                "ssl.key.password",
            )
        ),
        ({"sasl.mechanism": "OAUTHBEARER"}, {"sasl.jaas.config": "mine"}),
    ],
)
def test_what_has_no_translation_is_refused_unless_it_is_given(
    kafka: dict[str, str], given: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="spark_kafka"):
        security_of_spark(kafka, {})
    security_of_spark(kafka, given)
