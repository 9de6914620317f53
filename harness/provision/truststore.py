"""The certificates that this machine trusts, written so that Java trusts them too.

A bundled JRE knows only the public authorities it came with. Where a company's proxy signs what passes, every
other program here follows the machine's list, and Java alone would refuse the connection.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from pathlib import Path

_MAGIC = 0xFEEDFEED
_FORMAT = 2
_TRUSTED_CERTIFICATE = 2
_PASSWORD = "changeit"


def write_truststore(file: Path) -> list[str]:
    """Write the machine's trusted certificates as a Java key store (JKS). Returns the options that name it.

    The list is OpenSSL's default, which `SSL_CERT_FILE` overrides. Empty when the machine trusts nobody.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    body = struct.pack(">III", _MAGIC, _FORMAT, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"authority-{number}") + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    seal = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()
    file.write_bytes(body + seal)
    return [
        f"-Djavax.net.ssl.trustStore={file}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded
