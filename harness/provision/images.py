"""The images of the containers world: what they are made of, whether they are here, and how they come to be.

    base     Debian, Java, Python          from a registry, or else by debootstrap; made once
    kafka    base and a broker's jars      deps   base, Python packages, Spark with its Kafka connector
    host     deps and the project's wheel, as it is now: made anew, in seconds, when code has changed

A tag ends in the hash of all that goes in, so the same tag means the same contents, on every machine. For the base that
is its recipe and each of its packages with its version, which is known only once it is made: it is found by its recipe.

Must survive: being killed at any moment, two processes that build at once, a build that fails, a disk that fills, and a
registry that does not answer. What a build leaves when it fails is removed at once, or by the next one.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from filelock import FileLock, Timeout

from harness.provision import debian, docker, jars, packages
from harness.provision.cache import cache_directory
from harness.provision.errors import ProvisionError
from harness.provision.steps import Say, Show, Steps, tell
from harness.provision.wheel import Wheel, wheel

if TYPE_CHECKING:
    from docker import DockerClient

LABEL = "crashproof=image"
NAMES = ("base", "kafka", "deps", "host")
KEPT = {"base": 2, "kafka": 2, "deps": 2, "host": 8}
"""Older images of a name go when a newer one is made: several checkouts of the project may use one machine."""

_FILES = Path(__file__).with_name("images")
_RECIPE = "crashproof.recipe"
_REGISTRY_SECONDS = 10
_LOCK_SECONDS = 3600
_MTIME = 1577836800
_CHUNK = 1 << 20
_UNNAMED = "crashproof-base:unnamed"
"""A base until its packages have been listed, which its tag has to name."""
_SCRIPT = b"""#!/usr/bin/python3.11
import sys
from harness.__main__ import main
if __name__ == "__main__":
    sys.exit(main())
"""
"""What an installer makes of the wheel's entry point."""
_ROOM = {"base": 2 << 30, "kafka": 1 << 28, "deps": 2 << 30, "host": 1 << 28}
"""Bytes that have to be free before one is made."""


@dataclass(frozen=True)
class Images:
    """The tags of images that are here. `host` has the project as it is now."""

    kafka: str
    host: str


def images() -> Images:
    """The images that runs start from. Raises `ProvisionError` when one is missing.

    Only the layer with the project itself is made here, when code has changed since.
    """
    client = docker.engine()
    try:
        wanted = Wanted(_base(client))
        there = _tags(client)
        missing = [tag for tag in (wanted.kafka, wanted.deps) if tag not in there]
        if wanted.base is None or missing:
            what = ", ".join(str(tag) for tag in missing) or "crashproof-base"
            raise ProvisionError(f"An image of the containers world is not here: {what}", docker.FIX)
        if wanted.host not in there:
            with _alone(tell):
                if wanted.host not in _tags(client):
                    with Steps(tell).step("crashproof-host, with the project as it is now") as show:
                        _make_host(client, wanted, show)
        assert wanted.kafka is not None
        assert wanted.host is not None
        return Images(wanted.kafka, wanted.host)
    finally:
        client.close()


def kafka_image() -> str:
    """The image of a broker, which has nothing of the project. Raises `ProvisionError` when it is not here."""
    client = docker.engine()
    try:
        tag = Wanted(_base(client)).kafka
        if tag is None or tag not in _tags(client):
            raise ProvisionError(f"An image is not here: {tag or 'crashproof-base'}", docker.FIX)
        return tag
    finally:
        client.close()


def provide(say: Say) -> Images:
    """Bring all that runs in containers need: Docker, its daemon, jars and images. Says each step and its time.

    Raises `ProvisionError`. Called again, it finds all there.
    """
    docker.check_machine()
    with _alone(say):
        steps = Steps(say)
        _provide_engine(steps, say)
        client = docker.connect()
        try:
            wanted = _provide_images(client, steps, say)
        finally:
            client.close()
        if steps.taken:
            say(f"all done in {steps.seconds:.1f} s")
        else:
            say(f"nothing to do: Docker answers, {wanted.kafka} and {wanted.host} are there")
    return wanted


@dataclass(frozen=True)
class Wanted:
    """The tags that belong to a base and to the project as it is now; None where there is no base yet."""

    base: str | None

    @cached_property
    def kafka(self) -> str | None:
        return self._tag("kafka", _lock_lines("broker"))

    @cached_property
    def deps(self) -> str | None:
        lines = [*packages.pins(packages.closure()), *_lock_lines("spark"), *packages.LEFT_OUT_JARS]
        return self._tag("deps", lines)

    @cached_property
    def host(self) -> str | None:
        return (
            None
            if self.deps is None
            else _tag("host", [_text("host"), _SCRIPT.decode(), self.deps, self.wheel.digest])
        )

    @cached_property
    def wheel(self) -> Wheel:
        return wheel()

    def _tag(self, name: str, lines: Iterable[str]) -> str | None:
        return None if self.base is None else _tag(name, [_text(name), self.base, *lines])

    def of(self, name: str) -> str | None:
        """The tag of one of `NAMES`."""
        tags = {"base": self.base, "kafka": self.kafka, "deps": self.deps, "host": self.host}
        return tags[name]


def recipe() -> str:
    """What a base is made by, as 12 hexadecimal digits."""
    return _digest([_text("base"), (_FILES / "trim.sh").read_text()])


def base_packages() -> list[str]:
    """The Debian packages that the base's Dockerfile names."""
    match = re.search(r'^ARG PACKAGES="([^"]+)"$', _text("base"), re.MULTILINE)
    assert match is not None
    return match[1].split()


def _public_base() -> str:
    match = re.search(r"^ARG DEBIAN=(\S+)$", _text("base"), re.MULTILINE)
    assert match is not None
    return match[1]


def _text(name: str) -> str:
    return (_FILES / f"{name}.Dockerfile").read_text()


def _lock_lines(configuration: str) -> list[str]:
    return [f"{digest} {name}" for name, digest in jars.read_lock().items() if name.startswith(configuration)]


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _tag(name: str, parts: Iterable[str]) -> str:
    return f"crashproof-{name}:{_digest(parts)}"


# What is here


def _tags(client: DockerClient) -> set[str]:
    return {tag for image in _ours(client) for tag in image["RepoTags"] or ()}


def _ours(client: DockerClient, **filters: Any) -> list[dict[str, Any]]:
    with daemon_errors("The images cannot be listed"):
        found: list[dict[str, Any]] = client.api.images(filters={"label": LABEL, **filters})
    return sorted(found, key=lambda image: (-image["Created"], image["Id"]))


def _base(client: DockerClient) -> str | None:
    """The newest base that was made by the recipe of this version."""
    for image in _ours(client):
        if (image["Labels"] or {}).get(_RECIPE) == recipe():
            for tag in image["RepoTags"] or ():
                if tag.startswith("crashproof-base:") and tag != _UNNAMED:
                    return str(tag)
    return None


@dataclass(frozen=True)
class Standing:
    """What of the images is here. `sizes` has the bytes of each that is; a host shares those of its deps."""

    sizes: Mapping[str, int]
    missing: tuple[str, ...]


def standing(client: DockerClient) -> Standing:
    """Looks only. The host counts as missing when its code is not the code that is here."""
    wanted = Wanted(_base(client))
    sizes = {tag: image["Size"] for image in _ours(client) for tag in image["RepoTags"] or ()}
    here: dict[str, int] = {}
    missing = []
    for name in NAMES:
        tag = wanted.of(name)
        if tag is not None and tag in sizes:
            here[tag] = sizes[tag]
        else:
            missing.append(name)
    return Standing(here, tuple(missing))


# What has to be done


@dataclass(frozen=True)
class Machine:
    """What decides over the steps before images: programs that are not here, and whether a daemon answers."""

    missing: tuple[str, ...]
    answers: bool


def engine_steps(machine: Machine) -> list[str]:
    """What has to be done until a daemon answers, as sentences."""
    steps = []
    if machine.missing:
        wanted = " ".join(debian_packages(machine.missing))
        steps.append(f"install {wanted} with apt-get (about 250 MB, about half a minute)")
    if not machine.answers:
        steps.append("start the Docker daemon, which stays when this command ends")
    return steps


def debian_packages(tools: Iterable[str]) -> list[str]:
    """The Debian packages that have these programs."""
    return sorted({docker.TOOLS[tool] for tool in tools})


_WHAT = {
    "kafka": "build crashproof-kafka: the base and the jars of a Kafka broker",
    "deps": "build crashproof-deps: the base, the Python packages, Spark (about a minute)",
    "host": "build crashproof-host: those and the project's wheel",
}


def image_steps(missing: Iterable[str], *, registry: bool, fetch: bool = False) -> list[str]:
    """What has to be done until all images are here, as sentences."""
    how = (
        f"from a registry ({_public_base().partition('@')[0]}, apt-get)"
        if registry
        else "by debootstrap from this machine's own Debian mirror, as no registry is in reach (about a minute)"
    )
    sentences = {"base": f"make crashproof-base: Debian, Java, Python, {how}", **_WHAT}
    made = [sentences[name] for name in NAMES if name in set(missing)]
    return ["fetch the jars of Kafka and of Spark's Kafka connector (about 60 MB)", *made] if fetch else made


def _provide_engine(steps: Steps, say: Say) -> None:
    machine = Machine(tuple(docker.missing_tools()), _answers())
    sentences = engine_steps(machine)
    _say_plan(sentences, say)
    if machine.missing:
        with steps.step("installing Docker") as show:
            debian.apt_get(debian_packages(machine.missing), show)
        still = docker.missing_tools()
        if still:
            raise ProvisionError(
                f"apt-get is done, and {', '.join(still)} cannot be found.", "Look at the PATH of this shell."
            )
    # The package may have started it.
    if not _answers():
        with steps.step("starting the Docker daemon") as show:
            show("waiting for its answer", 0, 0)
            docker.start_daemon().close()


def _answers() -> bool:
    """A daemon that is there and hangs is an error: a second one beside it would make it worse."""
    try:
        docker.connect().close()
    except docker.NotRunningError:
        return False
    return True


def _say_plan(sentences: list[str], say: Say) -> None:
    for number, sentence in enumerate(sentences, 1):
        say(f"to do, {number} of {len(sentences)}: {sentence}")


def _provide_images(client: DockerClient, steps: Steps, say: Say) -> Images:
    _sweep(client)
    missing = standing(client).missing
    wanted = Wanted(_base(client))
    if missing:
        registry = "base" in missing and registry_in_reach()
        fetch = bool({"kafka", "deps"} & set(missing)) and _jars_are_missing()
        _say_plan(image_steps(missing, registry=registry, fetch=fetch), say)
        _check_room(client, missing)
        if fetch:
            with steps.timed("fetching jars"):
                jars.broker_jars()
        if "base" in missing:
            wanted = Wanted(_make_base(client, steps, registry=registry))
        for name, make in (("kafka", _make_kafka), ("deps", _make_deps), ("host", _make_host)):
            if name in missing:
                with steps.step(f"crashproof-{name}") as show:
                    make(client, wanted, show)
    assert wanted.kafka is not None
    assert wanted.host is not None
    return Images(wanted.kafka, wanted.host)


def registry_in_reach() -> bool:
    """Does the daemon get an answer about the public base image within seconds?"""
    import docker as library
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        client = library.from_env(timeout=_REGISTRY_SECONDS)
    except DockerException:
        return False
    try:
        client.images.get_registry_data(_public_base())
    except (DockerException, RequestException):
        return False
    finally:
        client.close()
    return True


def _jars_are_missing() -> bool:
    directory = jars.jar_directory(jars.LOCK_FILE, cache_directory())
    return bool(jars.missing_jars(jars.read_lock(), directory))


def _check_room(client: DockerClient, missing: Iterable[str]) -> None:
    needed = sum(_ROOM[name] for name in missing)
    with daemon_errors("The daemon says nothing of itself"):
        place = Path(client.info()["DockerRootDir"])
    for directory in (place, _workshop()):
        if directory.is_dir():
            free = shutil.disk_usage(directory).free
            if free < needed:
                raise ProvisionError(
                    f"The images need {needed / 1e9:.1f} GB of room and {directory} has {free / 1e9:.1f} GB.",
                    "Make room there; `docker system df` says what Docker holds.",
                )


# Making them


def _workshop() -> Path:
    return cache_directory() / "images"


@contextmanager
def _alone(say: Say) -> Iterator[None]:
    """One process at a time makes images."""
    place = _workshop()
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place / "making.lock")
        try:
            lock.acquire(timeout=1)
        except Timeout:
            say("another process is making the images, waiting for it")
            lock.acquire(timeout=_LOCK_SECONDS)
    except Timeout as error:
        raise ProvisionError(
            f"Another process has been making images for over {_LOCK_SECONDS // 60} minutes.",
            "Look for a crashproof process that hangs, end it and run the same command again.",
        ) from error
    except OSError as error:
        raise ProvisionError(
            f"{place} cannot be used: {error}",
            "Make it writable, or name another directory in CRASHPROOF_CACHE.",
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def daemon_errors(what: str) -> Iterator[None]:
    """What the daemon refuses, and a connection to it that breaks, as `ProvisionError`."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException) as error:
        raise refusal(what, str(getattr(error, "explanation", None) or error)) from error


def refusal(what: str, why: str) -> ProvisionError:
    """The error for something that the daemon could not do."""
    why = " ".join(why.split())[-600:]
    if "no space left" in why.lower():
        return ProvisionError(
            f"{what}: the disk is full ({why})",
            "Make room; `docker system df` says what Docker holds. Nothing was left behind.",
        )
    if "code: 137" in why:
        return ProvisionError(
            f"{what}: a step of it was killed, as happens when memory runs out ({why})",
            "Free memory, or give the Docker daemon more, then: crashproof doctor --fix",
        )
    return ProvisionError(f"{what}: {why}", "Mend what it names, then: crashproof doctor --fix")


def _make_base(client: DockerClient, steps: Steps, *, registry: bool) -> str:
    loose = _UNNAMED
    if registry:
        with steps.step("crashproof-base") as show:
            context = Context({"trim.sh": (_FILES / "trim.sh").read_bytes()})
            _build(client, "base", loose, context, {"RECIPE": recipe()}, show, network=None)
    else:
        if docker.find_tool("debootstrap") is None:
            with steps.step("installing debootstrap") as show:
                debian.apt_get(["debootstrap"], show)
        with steps.step("crashproof-base") as show:
            _import(client, loose, show)
    try:
        with daemon_errors("The base image does not run"):
            listed = client.containers.run(
                loose,
                ["dpkg-query", "--show"],
                remove=True,
                network_mode="none",
                labels={"crashproof": "image"},
            )
            tag = _tag("base", [recipe(), *sorted(bytes(listed).decode().splitlines())])
            repository, _, version = tag.partition(":")
            client.api.tag(loose, repository, version, force=True)
    finally:
        _remove(client, loose)
    return tag


def _import(client: DockerClient, tag: str, show: Show) -> None:
    name, _, version = tag.partition(":")
    changes = [f"LABEL {LABEL} {_RECIPE}={recipe()}"]
    for leftover in _workshop().glob("root-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with debian.root(base_packages(), _FILES / "trim.sh", _workshop(), show) as root:
        packer = ["tar", "--numeric-owner", "--one-file-system", "-C", str(root), "-c", "."]
        with subprocess.Popen(packer, stdout=subprocess.PIPE) as packed:
            assert packed.stdout is not None
            stream = _counted(iter(partial(packed.stdout.read, _CHUNK), b""), show)
            with daemon_errors("The base image could not be imported"):
                client.api.import_image(src=stream, repository=name, tag=version, changes=changes)
        if packed.returncode != 0:
            _remove(client, tag)
            raise ProvisionError("tar could not read all of the base image.", docker.FIX)


def _counted(chunks: Iterable[bytes], show: Show) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        done += len(chunk)
        show(f"{done / 1e6:.0f} MB", done, 0)
        yield chunk


def _make_kafka(client: DockerClient, wanted: Wanted, show: Show) -> None:
    files = {f"libs/{jar.name}": jar for jar in jars.broker_jars()}
    _build(client, "kafka", wanted.kafka, Context(files), {"BASE": wanted.base}, show)


def _make_deps(client: DockerClient, wanted: Wanted, show: Show) -> None:
    files = {
        f"dist-packages/{name}": file for name, file in packages.package_files(packages.closure()).items()
    }
    files |= {f"dist-packages/pyspark/jars/{jar.name}": jar for jar in jars.spark_jars()}
    _build(client, "deps", wanted.deps, Context(files), {"BASE": wanted.base}, show)


def _make_host(client: DockerClient, wanted: Wanted, show: Show) -> None:
    made = wanted.wheel
    context = Context({f"wheel/{made.name}": made.content, "crashproof": _SCRIPT})
    _build(client, "host", wanted.host, context, {"DEPS": wanted.deps}, show)
    _retire(client)


def _build(
    client: DockerClient,
    name: str,
    tag: str | None,
    context: Context,
    arguments: Mapping[str, str | None],
    show: Show,
    network: str | None = "none",
) -> None:
    what = f"The image crashproof-{name} could not be built"
    stream = context.stream(_text(name), show)
    try:
        with daemon_errors(what):
            for said in client.api.build(
                # Any iterator of bytes will do, and no copy of it is kept.
                fileobj=cast(IO[bytes], stream),
                custom_context=True,
                tag=tag,
                buildargs=dict(arguments),
                network_mode=network,
                rm=True,
                forcerm=True,
                decode=True,
            ):
                if "error" in said:
                    raise refusal(what, said["error"])
                show(said.get("stream", "").strip(), context.size, context.size)
    except BaseException:
        # The error of the build is the one to tell.
        with suppress(ProvisionError):
            _sweep(client)
        raise


@dataclass
class Context:
    """The files of a build: name → a file, or its content. Nothing is copied before the daemon gets it."""

    files: Mapping[str, Path | bytes]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(
            len(content) if isinstance(content, bytes) else content.stat().st_size
            for content in self.files.values()
        )

    def stream(self, dockerfile: str, show: Show) -> Iterator[bytes]:
        """A tar archive, the same bytes for the same files."""
        done = 0
        entries: dict[str, Path | bytes] = {"Dockerfile": dockerfile.encode(), **self.files}
        for name, content in sorted(entries.items()):
            for chunk in _entry(name, content):
                done += len(chunk)
                show("sending files to the daemon", min(done, self.size), self.size)
                yield chunk
        yield bytes(2 * tarfile.BLOCKSIZE)


def _entry(name: str, content: Path | bytes) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.mtime = _MTIME
    info.mode = 0o644
    if isinstance(content, bytes):
        info.size = len(content)
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield content
    else:
        status = content.stat()
        info.size = status.st_size
        info.mode = 0o755 if status.st_mode & 0o100 else 0o644
        yield info.tobuf(tarfile.GNU_FORMAT)
        with content.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    yield bytes(-info.size % tarfile.BLOCKSIZE)


# Taking away


def _sweep(client: DockerClient) -> None:
    """Remove what a build that failed or was killed has left: our images without a name, and a base
    that has none yet.

    Its containers the daemon removes itself. None is looked for here: every container has the labels of its image.
    """
    for image in _ours(client, dangling=True):
        _remove(client, image["Id"])
    if _UNNAMED in _tags(client):
        _remove(client, _UNNAMED)


def _retire(client: DockerClient) -> None:
    """Remove the oldest images of each name when there are more than `KEPT` of it. One that runs stays."""
    ours = [tag for image in _ours(client) for tag in image["RepoTags"] or ()]
    for name in NAMES:
        for tag in [tag for tag in ours if tag.startswith(f"crashproof-{name}:")][KEPT[name] :]:
            _remove(client, tag)


def _remove(client: DockerClient, image: str) -> None:
    """The daemon refuses where a container uses it, and then it stays."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    with suppress(DockerException, RequestException):
        client.api.remove_image(image)
