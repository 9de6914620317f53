"""The script and the workflow of nights: what they call exists, and they ask for no more than they need."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import typer.main

from harness.cli.app import app

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "nightly"
WORKFLOW = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()


def scripts() -> list[str]:
    """What the workflow runs in a shell, without indentation."""
    blocks = re.findall(r"^( +)run: \|\n((?:\1  .*\n|\n)+)", WORKFLOW, re.MULTILINE)
    return [re.sub(rf"^{indent}  ", "", body, flags=re.MULTILINE) for indent, body in blocks]


def options() -> set[str]:
    """Those of `crashproof nightly`."""
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    return {name for parameter in command.commands["nightly"].params for name in parameter.opts}


@pytest.mark.requirement("card.4")
def test_the_script_calls_a_command_that_is_there() -> None:
    text = SCRIPT.read_text()
    assert os.access(SCRIPT, os.X_OK)
    assert 'crashproof nightly "$@"' in text
    assert "--for" in options()
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def night(tmp_path: Path, **stubs: str) -> subprocess.CompletedProcess[str]:
    """The script, with programs in place of those that it calls."""
    for name, body in stubs.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return subprocess.run(
        [str(SCRIPT), "--json"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("pip", "uv"), [("exit 1", "exit 0"), ("exit 0", "exit 1")])
def test_a_night_that_cannot_be_installed_is_no_violation(tmp_path: Path, pip: str, uv: str) -> None:
    assert night(tmp_path, pip=pip, uv=uv).returncode == 4


@pytest.mark.parametrize("code", [0, 1, 3, 4])
def test_the_script_s_exit_code_and_answer_are_the_night_s_alone(tmp_path: Path, code: int) -> None:
    answer = night(
        tmp_path,
        pip="echo installed",
        uv=f'case "$*" in "run crashproof nightly --json") echo {{}}; exit {code};; *) echo "$@";; esac',
    )
    assert (answer.returncode, answer.stdout) == (code, "{}\n")


@pytest.mark.requirement("card.4")
def test_the_workflow_calls_the_script_with_options_that_it_has() -> None:
    found = scripts()
    assert len(found) == 2
    for script in found:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert './nightly "${options[@]}"' in found[0]
    named = set(re.findall(r"(?<![\w-])--[a-z-]+", found[0]))
    assert named == {"--out", "--history", "--for", "--without", "--seed"}
    assert named <= options()


def test_the_workflow_s_inputs_are_words_of_a_command_and_nothing_else(tmp_path: Path) -> None:
    """The shell's own part of it, with a script in place of `nightly` that shows what it is called with."""
    stub = tmp_path / "nightly"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    answer = subprocess.run(
        ["bash", "-e", "-c", scripts()[0]],
        cwd=tmp_path,
        env={**os.environ, "TIMES": "sim=3m  local=1m", "WITHOUT": "$(touch x) *", "SEED": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    words = "--out crashproof-night --history nights/history.sqlite --for sim=3m --for local=1m"
    assert answer.stdout.split() == [
        *words.split(),
        "--without",
        "$(touch",
        "--without",
        "x)",
        "--without",
        "*",
    ]
    assert not (tmp_path / "x").exists()


def test_no_expression_of_the_workflow_stands_in_a_script() -> None:
    assert not any("${{" in script for script in scripts())


def test_actions_are_pinned_and_permissions_are_to_read() -> None:
    used = re.findall(r"uses: (\S+)", WORKFLOW)
    assert used
    assert all(re.fullmatch(r"actions/[\w/-]+@v\d+\.\d+\.\d+", each) for each in used)
    assert re.search(r"^permissions:\n  contents: read\n\n", WORKFLOW, re.MULTILINE)


def test_what_a_night_leaves_is_kept_whatever_became_of_it() -> None:
    steps = WORKFLOW.split("      - ")
    for kept in ("actions/cache/save", "actions/upload-artifact", "GITHUB_STEP_SUMMARY"):
        assert all("if: always()" in step for step in steps if kept in step)
    (upload,) = [step for step in steps if "actions/upload-artifact" in step]
    assert "crashproof-night\n" in upload
    assert "nights\n" in upload


def test_the_workflow_is_yaml_without_surprises() -> None:
    assert "\t" not in WORKFLOW
    assert all(len(re.match(" *", line)[0]) % 2 == 0 for line in WORKFLOW.splitlines())  # type: ignore[index]
    assert {"on:", "permissions:", "concurrency:", "jobs:"} <= set(WORKFLOW.splitlines())
