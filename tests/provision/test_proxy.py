"""Jars are fetched through the proxy that the environment names, as everything else is."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.provision import ProvisionError
from harness.provision.jars import resolve_into
from harness.provision.proxy import proxy_options

NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")

WANTED = """<ivy-module version="2.0">
  <info organisation="here" module="jars"/>
  <configurations><conf name="one"/></configurations>
  <dependencies><dependency org="here" name="thing" rev="1" conf="one->master"/></dependencies>
</ivy-module>
"""

THROUGH = """<ivysettings>
  <settings defaultResolver="mirror"/>
  <resolvers><ibiblio name="mirror" m2compatible="true" root="{}://mirror.invalid/maven2/"/></resolvers>
</ivysettings>
"""


class Asking(BaseHTTPRequestHandler):
    """A proxy that wants a password, and then refuses all the same."""

    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        given = self.headers.get("Proxy-Authorization")
        if given is None:
            self.send_response(407)
            self.send_header("Proxy-Authenticate", 'Basic realm="here"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.asked.append((self.path, base64.b64decode(given.partition(" ")[2]).decode()))
        self.send_error(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_CONNECT(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """What a proxy was asked for, and with which name and password; the environment names it."""
    asked: list[tuple[str, str]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Asking,), {"asked": asked})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://bob:p%22a%5Css@127.0.0.1:{server.server_port}")
        yield asked
        server.shutdown()


@pytest.mark.parametrize(
    ("scheme", "asked_for"), [("http", "http://mirror.invalid/maven2/here/"), ("https", "mirror.invalid:443")]
)
def test_jars_come_through_the_proxy_of_the_environment_with_its_password(
    proxy: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    scheme: str,
    asked_for: str,
) -> None:
    (tmp_path / "ivy.xml").write_text(WANTED)
    (tmp_path / "settings.xml").write_text(THROUGH.format(scheme))
    monkeypatch.setenv("CRASHPROOF_IVY_SETTINGS", str(tmp_path / "settings.xml"))
    monkeypatch.setattr("harness.provision.jars._ATTEMPTS", 1)
    with pytest.raises(ProvisionError):
        resolve_into(tmp_path, tmp_path / "ivy.xml", "one")
    assert proxy
    place, given = proxy[0]
    assert place.startswith(asked_for)
    assert given == 'bob:p"a\\ss'


@pytest.mark.usefixtures("proxy")
def test_hosts_that_the_environment_excepts_are_reached_without_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("no_proxy", "localhost, .example.com,10.0.0.1:8080")
    assert (
        "-Dhttp.nonProxyHosts=localhost|*.localhost|example.com|*.example.com|10.0.0.1|*.10.0.0.1"
        in proxy_options()
    )


@pytest.mark.usefixtures("proxy")
def test_a_proxy_without_an_address_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://bob:secret@proxy.example:eighty")
    with pytest.raises(ProvisionError, match="The proxy for https") as caught:
        proxy_options()
    assert "secret" not in str(caught.value)


def test_without_a_proxy_java_is_told_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert proxy_options() == []
