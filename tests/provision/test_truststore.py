"""The machine's certificates as Java reads them."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

from harness.provision import java
from harness.provision.truststore import write_truststore


def test_java_reads_every_certificate_that_python_trusts(tmp_path: Path) -> None:
    file = tmp_path / "authorities.jks"
    write_truststore(file)
    keytool = ["-m", "java.base/sun.security.tools.keytool.Main", "-list", "-storepass", "changeit"]
    done = subprocess.run(
        [java().executable, *keytool, "-keystore", file], capture_output=True, text=True, check=True
    )
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    assert done.stdout.count("trustedCertEntry") == len(trusted)
