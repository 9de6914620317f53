"""The proxies that this machine's environment names, as Java takes them: by itself it asks no `https_proxy`.

Must survive: a proxy that wants a password, hosts that are reached without one, and values that are no address.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from harness.provision.errors import ProvisionError


def proxy_options() -> list[str]:
    """Options of a JVM; none where no proxy is named. They may have a password in them. Raises `ProvisionError`."""
    named = getproxies()
    options = []
    for scheme in ("http", "https"):
        found = named.get(scheme) or named.get("all") or ""
        try:
            proxy = urlsplit(found if "://" in found else f"http://{found}")
            port = proxy.port
        except ValueError as error:
            raise ProvisionError(
                f"The proxy for {scheme} that the environment names has no address with a port: {error}",
                f"Type: unset {scheme}_proxy, or set it to http://HOST:PORT",
            ) from None
        if proxy.scheme not in ("http", "https") or not proxy.hostname:
            continue
        options += [
            f"-D{scheme}.proxyHost={proxy.hostname}",
            f"-D{scheme}.proxyPort={port or (443 if proxy.scheme == 'https' else 80)}",
        ]
        if proxy.username:
            # Ivy takes those of `http` for both. To a proxy that tunnels, Java gives no password unless it is allowed.
            options += [
                f"-Dhttp.proxyUser={_escaped(unquote(proxy.username))}",
                f"-Dhttp.proxyPassword={_escaped(unquote(proxy.password or ''))}",
                "-Djdk.http.auth.tunneling.disabledSchemes=",
            ]
    if options and (past := _reached_without(named.get("no", ""))):
        options.append(f"-Dhttp.nonProxyHosts={past}")
    return list(dict.fromkeys(options))


def _reached_without(hosts: str) -> str:
    """`no_proxy` as Java takes it: a name there is one with all names below it."""
    names = [host.strip().removeprefix("*").removeprefix(".").partition(":")[0] for host in hosts.split(",")]
    if "*" in hosts.split(","):
        return "*"
    return "|".join(pattern for name in names if name for pattern in (name, f"*.{name}"))


def _escaped(text: str) -> str:
    """Inside the quotes of a file of arguments."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
