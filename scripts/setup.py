"""Prepare `.venv` (client) and `.venv-server` (SGLang 0.5.23 on a CPU) beside this checkout.

    python3 scripts/setup.py            both, what is missing or out of date
    python3 scripts/setup.py client     one of them (also: server)

Needs Python 3.11 with venv and pip, and about 6 GB of free disk.  Nothing is installed outside
the two folders.  A stamp in each folder holds a hash of everything that went into it; a folder
without the right stamp is installed into again.

LEYLINE_TORCH_INDEX: a package index with CPU builds of torch, passed to pip as `--index-url`.
Without it torch comes from pip's own index, whose Linux build may carry gigabytes of CUDA.
"""

# Old syntax on purpose: an older Python must get as far as saying that it is the wrong one.

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED = (3, 11)
PINS = ROOT / "leyline_agent" / "server" / "cpu" / "requirements.txt"
TORCH = ["torch==2.13.0"]
SGLANG = ["--no-deps", "sglang==0.5.23"]
CLIENT = ["-e", ".[langchain,openai,results,dev]"]
STAMP = ".leyline-setup"
GIB = 1 << 30


class Fault(Exception):
    """Something the user has to act on; the message says what to do."""


class Environment:
    """One virtual environment: its folder, its pip calls in order, and what it costs."""

    def __init__(self, folder, steps, told, free_gib):
        self.folder, self.steps, self.told, self.free_gib = folder, steps, told, free_gib

    @property
    def python(self):
        return self.folder / "bin" / "python"

    @property
    def log(self):
        """Beside the folder: `.venv` -> `.venv.log`."""
        return self.folder.with_name(self.folder.name + ".log")

    def key(self):
        """Hash of the pip calls, the files that they read, and the place of the checkout."""
        digest = hashlib.sha256(f"{self.steps} {ROOT} {WANTED}".encode())
        for path in (ROOT / "pyproject.toml", PINS):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def is_ready(self):
        stamp = self.folder / STAMP
        return self.python.exists() and stamp.exists() and stamp.read_text() == self.key()


def environments():
    """The two environments by name, in the order in which they are made."""
    server = [TORCH, SGLANG, ["-r", str(PINS)], ["--no-deps", "-e", "."]]
    return {
        "client": Environment(ROOT / ".venv", [CLIENT], "about 0.7 GB, one to two minutes", 2),
        "server": Environment(ROOT / ".venv-server", server, "about 3 GB, two to three minutes", 6),
    }


def say(line):
    print("[setup] " + line, flush=True)


def find_python(version=WANTED):
    """This interpreter, or another one of the wanted version on PATH.  Raises Fault."""
    if sys.version_info[:2] == version:
        return sys.executable
    dotted = "{}.{}".format(*version)
    name = "python" + dotted
    for folder in os.get_exec_path():
        found = shutil.which(name, path=folder)
        if found and _version(found) == version:
            return found
    raise Fault(
        f"this is Python {sys.version_info[0]}.{sys.version_info[1]}, and no working {name} is "
        f"on PATH.\nThe pinned SGLang set-up is for Python {dotted}: install it (a system package, "
        f"pyenv, uv or conda), then run this again, or: make PYTHON=/path/to/{name}"
    )


def _version(python):
    """(major, minor) of an interpreter, None when it does not run (a pyenv shim may not)."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        out = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, timeout=30).stdout
        return tuple(int(part) for part in out.split())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def check_disk(needed_gib, free_bytes=None):
    """Raises Fault when the checkout's disk has less than `needed_gib` GiB free."""
    free = shutil.disk_usage(str(ROOT)).free if free_bytes is None else free_bytes
    if free < needed_gib * GIB:
        raise Fault(
            f"{free / GIB:.1f} GB of disk are free at {ROOT}, and {needed_gib} GB are needed "
            "(packages, and their archives while they unpack).\n"
            "Free some space, or move the checkout to a larger disk."
        )


def run_logged(command, log, every=15.0):
    """Run a command with its output appended to `log`; a line of progress every few seconds.

    Raises Fault, with the end of the log and what to do, when it fails.
    """
    with log.open("ab") as sink:
        sink.write(f"\n$ {' '.join(command)}\n".encode())
        sink.flush()
        start = sink.tell()
        child = subprocess.Popen(command, cwd=str(ROOT), stdout=sink, stderr=subprocess.STDOUT)
        try:
            _follow(child, log, start, every)
        except BaseException:
            child.terminate()
            child.wait()
            raise
    if child.returncode:
        raise Fault(explain(_since(log, start), log))


def _follow(child, log, start, every):
    began, told = time.monotonic(), 0.0
    while child.poll() is None:
        time.sleep(0.1)
        passed = time.monotonic() - began
        if passed - told >= every:
            told = passed
            lines = _since(log, start).split("\n")
            doing = [line.strip() for line in lines if line.strip()][-1:] or ["starting"]
            say(f"  {passed:3.0f} s  {doing[0][:80]}")


def _since(log, start):
    with log.open("rb") as source:
        source.seek(start)
        return source.read().decode("utf-8", "replace")


_ADVICE = (
    (("No space left",), "The disk is full (pip also unpacks into $TMPDIR). Free some space."),
    (
        (
            "NewConnectionError",
            "Temporary failure in name resolution",
            "Failed to establish",
            "ConnectTimeout",
            "Read timed out",
            "Max retries exceeded",
            "ProxyError",
            "SSLError",
            "Could not fetch URL",
            "connection broken",
            "(from versions: none)",
        ),
        "The package index could not be reached, or lacks that name: check the network, the "
        "proxy (HTTPS_PROXY), or pip's index (PIP_INDEX_URL; for torch LEYLINE_TORCH_INDEX).",
    ),
    (
        ("No matching distribution", "Could not find a version"),
        "The index that pip uses lacks a pinned version: check PIP_INDEX_URL and, for torch, "
        "LEYLINE_TORCH_INDEX; is this an x86-64 or arm64 Linux with Python 3.11?",
    ),
    (
        ("ensurepip", "No module named pip", "No module named venv"),
        "This Python lacks venv or pip: install them (Debian and Ubuntu: python3.11-venv).",
    ),
    (("Permission denied",), "A file cannot be written: who owns the environment's folder?"),
)


def explain(output, log):
    """What a failed command printed last, where the rest is, and what to do about it."""
    advice = [text for needles, text in _ADVICE if any(needle in output for needle in needles)]
    tail = "\n".join("    " + line[:200] for line in output.strip().split("\n")[-12:])
    what = advice[0] if advice else "Read the log; when in doubt, delete the folder and run again."
    return f"a step failed. The end of {log}:\n{tail}\n{what}"


def install(environment, python):
    """Make the folder, run each pip call, write the stamp.  Raises Fault."""
    folder, began = environment.folder, time.monotonic()
    doing = "bringing up to date, at most" if environment.python.exists() else "installing,"
    say(f"{folder.name}: {doing} {environment.told}; log: {environment.log}")
    environment.log.write_bytes(b"")
    (folder / STAMP).unlink(missing_ok=True)
    if _version(str(environment.python)) != WANTED:
        clear = ["--clear"] if folder.exists() else []
        run_logged([python, "-m", "venv", *clear, str(folder)], environment.log)
    pip = [str(environment.python), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    for number, step in enumerate(environment.steps, 1):
        index = os.environ.get("LEYLINE_TORCH_INDEX") if step is TORCH else None
        step = ["--index-url", index, *step] if index else step
        shown = " ".join(str(part).replace(str(ROOT) + os.sep, "") for part in step)
        say(f"{folder.name}: {number}/{len(environment.steps)} pip install {shown}")
        run_logged([*pip, *step], environment.log)
    (folder / STAMP).write_text(environment.key())
    say(f"{folder.name}: ready after {time.monotonic() - began:.0f} s")


def main(names):
    """Prepare the named environments (all when none is named); the exit status."""
    known = environments()
    unknown = [name for name in names if name not in known]
    if unknown:
        print("usage: python3 scripts/setup.py [client] [server]", file=sys.stderr)
        return 2
    missing = [known[name] for name in names or known if not known[name].is_ready()]
    try:
        if missing:
            python = find_python()
            check_disk(max(environment.free_gib for environment in missing))
        for environment in missing:
            install(environment, python)
    except Fault as fault:
        say(f"error: {fault}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
