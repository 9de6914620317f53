"""Whatever ends a world of containers, nothing of it stays: no container, no network, no disk, no directory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.provision import docker
from harness.worlds.containers import disks
from harness.worlds.containers.engine import MAKER_LABEL, RUN_LABEL, ContainerError, Engine
from harness.worlds.containers.world import ContainerWorld
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("containers")

WAITS = """
import signal, sys, time
from pathlib import Path
from harness.worlds.containers.world import ContainerWorld
# Whoever runs the tests in the background of a shell has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
with ContainerWorld(Path(sys.argv[1])) as world:
    world.machines.host(0)
    print(world.engine.run, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def client(world: ContainerWorld) -> Any:  # noqa: ARG001 - skips where there is no Docker
    return docker.engine()


def left(client: Any, run: str) -> list[str]:
    filters = {"label": f"{RUN_LABEL}={run}"}
    things = [
        *client.containers.list(all=True, filters=filters, ignore_removed=True),
        *client.networks.list(filters=filters),
    ]
    return [thing.name for thing in things]


def mounted(directory: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(directory) in line]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_world_whose_process_was_ended(
    client: Any, tmp_path: Path, how: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    run = process.stdout.readline().strip()
    assert left(client, run)
    assert mounted(tmp_path)
    process.send_signal(how)
    process.wait()
    process.stdout.close()
    until(lambda: not left(client, run) and not mounted(tmp_path) and not any(tmp_path.iterdir()))


def test_a_start_removes_what_a_process_has_left_that_is_gone(client: Any, tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from harness.worlds.containers.engine import RUN_LABEL, Engine\n"
        "engine = Engine(Path(sys.argv[1])); engine.__enter__()\n"
        "engine.reaper.kill()\n"
        # Looked at while it lives: any other start may remove it from then on.
        "(left,) = engine._client.networks.list(filters={'label': f'{RUN_LABEL}={engine.run}'})\n"
        "print(engine.run, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "gone")], capture_output=True, text=True, check=True
    )
    run = done.stdout.strip()
    assert run
    (tmp_path / "next").mkdir()
    with Engine(tmp_path / "next"):
        assert not left(client, run)


def test_a_container_that_cannot_be_started_is_one_clear_error_and_is_gone(
    client: Any, tmp_path: Path
) -> None:
    with Engine(tmp_path / "engine") as engine:
        with pytest.raises(ContainerError, match="The container broken could not be started"):
            engine.start("crashproof-nothing:1", "broken", ["true"], address=engine.address())
        assert [name for name in left(client, engine.run) if "broken" in name] == []


def test_a_second_world_at_the_same_time_has_its_own_network(client: Any, tmp_path: Path) -> None:
    with Engine(tmp_path / "one") as one, Engine(tmp_path / "two") as two:
        assert one.gateway != two.gateway
        assert left(client, one.run)
        assert left(client, two.run)


def test_a_disk_that_somebody_else_has_mounted_is_left_alone(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can mount a disk")
    place = tmp_path / "disk"
    place.mkdir()
    disks.mount(place)
    try:
        disks.sweep()
        assert mounted(place)
    finally:
        disks.remove(tmp_path)
    assert not mounted(place)


def test_a_world_comes_up_and_goes_below_a_directory_whatever_that_is_called(
    world: ContainerWorld,  # noqa: ARG001 - skips where there is no Docker
    tmp_path: Path,
) -> None:
    with ContainerWorld(tmp_path / "ä b") as other:
        assert other.machines.host(0).running()
    assert list((tmp_path / "ä b").iterdir()) == []
    assert not mounted(tmp_path)


@pytest.mark.parametrize("name", ["a b", "ä\tö", "back\\slash", "line\nbreak"])
def test_a_disk_goes_with_its_directory_whatever_that_is_called(tmp_path: Path, name: str) -> None:
    if os.geteuid():
        pytest.skip("only root can mount a disk")
    directory = tmp_path / name
    (directory / "disk").mkdir(parents=True)
    disks.mount(directory / "disk")
    try:
        disks.remove(directory)
        assert not directory.exists()
        assert not mounted(tmp_path)
    finally:
        subprocess.run(["umount", "--quiet", "--lazy", str(directory / "disk")], check=False)


def test_without_docker_a_run_says_what_to_type_and_exits_with_4(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "harness.cli",
            "run",
            "--world",
            "containers",
            "balances",
            "--out",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "DOCKER_HOST": "unix:///nonexistent.sock"},
        check=False,
    )
    assert done.returncode == 4
    assert "Type: unset DOCKER_HOST" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_an_interrupt_ends_a_campaign_of_several_schedules_at_once(client: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.cli", "run", "balances", "--world", "containers", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--for", "600s", "--out", str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        text=True,
        # A shell has its background jobs ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    assert process.stderr is not None
    # Two may end between two lines.
    while not re.search(r"\b[1-9]\d* schedules", line := process.stderr.readline()):
        assert line, "it ended before its first schedule did"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert json.loads((tmp_path / "out" / "report.json").read_text())["worlds"]["containers"]["schedules"]
    # Other worlds, and what they are about to remove, are none of its.
    theirs = client.containers.list(all=True, filters={"label": MAKER_LABEL}, ignore_removed=True)
    mine = [one.name for one in theirs if one.labels[MAKER_LABEL].partition("@")[0] == str(process.pid)]
    assert not [one for one in mine if "host-1-" in one]
