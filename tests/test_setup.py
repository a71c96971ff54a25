"""scripts/setup.py: what is installed again, what is said when something is wrong; the wheel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
HERE = sys.version_info[:2]
NO_NETWORK = "NewConnectionError: Failed to establish a new connection: [Errno -3]"


@pytest.fixture
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("leyline_setup", ROOT / "scripts" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_every_server_requirement_is_pinned(setup: ModuleType) -> None:
    lines = [line for line in setup.PINS.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 20
    assert all("==" in line for line in lines)


def test_install_stamps_the_folder_and_does_nothing_twice(
    setup: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = tmp_path / "nothing.txt"
    nothing.write_text("")
    env = setup.Environment(tmp_path / "env", [["--no-index", "-r", str(nothing)]], "0 GB", 0)
    (tmp_path / "env").mkdir()  # left by somebody who was interrupted
    assert not env.is_ready()
    setup.install(env, sys.executable)
    assert env.is_ready()
    assert "0 GB" in capsys.readouterr().out
    env.steps = [["--no-index", "another"]]
    assert not env.is_ready(), "another requirement has to be installed"
    with pytest.raises(setup.Fault, match=r"(?s)another.*index could not be reached"):
        setup.install(env, sys.executable)
    assert not env.is_ready(), "a failed installation leaves no stamp"


@pytest.mark.parametrize("name", ["pyproject.toml", "pins.txt"])
def test_the_stamp_follows_the_files(setup: ModuleType, tmp_path: Path, name: str) -> None:
    for each in ("pyproject.toml", "pins.txt"):
        (tmp_path / each).write_text("a")
    setup.ROOT, setup.PINS = tmp_path, tmp_path / "pins.txt"
    env = setup.Environment(tmp_path / "env", [], "", 0)
    before = env.key()
    (tmp_path / name).write_text("b")
    assert env.key() != before


def test_another_python_is_searched_and_a_broken_one_passed_over(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, text in (("broken", "exit 127"), ("old", "echo 3 8"), ("good", "echo 3 99")):
        (tmp_path / folder).mkdir()
        script(tmp_path / folder / "python3.99", text)
    folders = [str(tmp_path / name) for name in ("broken", "old", "good")]
    monkeypatch.setenv("PATH", os.pathsep.join([*folders, os.environ["PATH"]]))
    assert setup.find_python((3, 99)) == str(tmp_path / "good" / "python3.99")
    assert setup.find_python(HERE) == sys.executable


def test_a_wrong_python_is_told_what_to_do(setup: ModuleType) -> None:
    with pytest.raises(setup.Fault, match=r"(?s)no working python3\.98.*make PYTHON="):
        setup.find_python((3, 98))


def test_too_little_disk_is_told_before_anything_is_installed(setup: ModuleType) -> None:
    setup.check_disk(6, free_bytes=7 << 30)
    with pytest.raises(setup.Fault, match=r"(?s)5\.0 GB of disk are free.*6 GB are needed"):
        setup.check_disk(6, free_bytes=5 << 30)


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        (NO_NETWORK, "check the network"),
        ("ERROR: Could not find setuptools>=77 (from versions: none)", "check the network"),
        ("ERROR: No matching distribution found for torch==2.13.0", "LEYLINE_TORCH_INDEX"),
        (NO_NETWORK + "\nERROR: No matching distribution found for torch", "check the network"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("ensurepip is not available", "python3.11-venv"),
        ("something else", "Read the log"),
    ],
)
def test_a_failed_step_shows_its_end_and_a_remedy(
    setup: ModuleType, output: str, advice: str
) -> None:
    text = setup.explain("first\n" * 50 + output, Path("some.log"))
    assert advice in text
    assert output.split("\n")[-1] in text
    assert "some.log" in text
    assert len(text.splitlines()) < 20


def test_main_reports_a_fault_without_a_traceback(
    setup: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.ROOT = tmp_path
    (tmp_path / "pyproject.toml").write_text("")
    setup.WANTED = (3, 97)
    setup.find_python.__defaults__ = ((3, 97),)
    assert setup.main([]) == 1
    assert "error: " in capsys.readouterr().out
    assert setup.main(["nonsense"]) == 2


def test_make_help_names_the_targets() -> None:
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True)
    for target in ("demo", "test", "check", "clean", "setup"):
        assert f"\n{target} " in "\n" + done.stdout


@pytest.mark.slow
def test_wheel_and_sdist_carry_policies_and_data(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    ignore = shutil.ignore_patterns(".git", ".venv*", "out", "*.egg-info", "__pycache__", ".*cache")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=ignore)
    build = [sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(tree)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    wanted = [
        "leyline_agent/policies/__init__.py",
        "leyline_agent/server/cpu/requirements.txt",
        "leyline_agent/server/models/chat_template.jinja",
        "leyline_agent/server/cpu/standins/sgl_kernel/sgl_kernel/__init__.py",
        "leyline_agent/server/cpu/standins/torchvision/torchvision/transforms/v2/functional.py",
    ]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert set(wanted) <= set(names)
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "leyline_agent.server.plugin:activate" in archive.read(entry_points).decode()
    with tarfile.open(sdist) as archive:
        kinds = {m.name.split("/", 1)[-1]: m for m in archive.getmembers()}
        assert all(kinds[name].isfile() for name in wanted)
