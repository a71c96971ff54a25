"""Prepare `.venv` (client) and `.venv-server` (SGLang 0.5.23 on a CPU) beside this checkout.

    python3 scripts/setup.py            both, what is missing or out of date
    python3 scripts/setup.py client     one of them (also: server)

Needs Python 3.11 with venv and pip, and about 6 GB of free disk.  Nothing is installed outside
the two folders.  A stamp in each folder holds a hash of everything that went into it; a folder
without the right stamp is installed into again.

LEYLINE_TORCH_INDEX: a package index with CPU builds of torch, passed to pip as `--index-url`.
Without it torch comes from pip's own index, whose Linux build may carry gigabytes of CUDA.
"""

# Runs under any Python 3, so that the wrong one can be told apart; so no newer syntax here.

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
        parts = [repr(self.steps), str(ROOT), str(WANTED), os.environ.get("LEYLINE_TORCH_INDEX", "")]
        digest = hashlib.sha256("\n".join(parts).encode())
        for path in (ROOT / "pyproject.toml", PINS):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def is_ready(self):
        stamp = self.folder / STAMP
        return self.python.exists() and stamp.exists() and stamp.read_text() == self.key()


def environments():
    """The two environments by name, in the order in which they are made."""
    index = os.environ.get("LEYLINE_TORCH_INDEX")
    torch = (["--index-url", index] if index else []) + TORCH
    server = [torch, SGLANG, ["-r", str(PINS)], ["--no-deps", "-e", "."]]
    return {
        "client": Environment(ROOT / ".venv", [CLIENT], "about 0.7 GB, one minute", 2),
        "server": Environment(
            ROOT / ".venv-server", server, "about 3 GB, two to three minutes", 6
        ),
    }


def say(line):
    print("[setup] " + line, flush=True)


def find_python(version=WANTED):
    """This interpreter, or another one of the wanted version on PATH.  Raises Fault."""
    if sys.version_info[:2] == version:
        return sys.executable
    name = "python%d.%d" % version
    for folder in os.get_exec_path():
        found = shutil.which(name, path=folder)
        if found and _version(found) == version:
            return found
    raise Fault(
        "this is Python %d.%d, and no working %s is on PATH.\n" % (*sys.version_info[:2], name)
        + "The pinned SGLang set-up is for Python %d.%d: install it (a system package, pyenv, "
        "uv or conda), then run this again, or: make PYTHON=/path/to/%s" % (*version, name)
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
            "%.1f GB of disk are free at %s, and %d GB are needed (packages, and their archives "
            "while they unpack).\nFree some space, or move the checkout to a larger disk."
            % (free / GIB, ROOT, needed_gib)
        )


def run_logged(command, log, every=15.0):
    """Run a command with its output appended to `log`; a line of progress every few seconds.

    Raises Fault, with the end of the log and what to do, when it fails.
    """
    with log.open("ab") as sink:
        sink.write(("\n$ %s\n" % " ".join(command)).encode())
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
            say("  %3.0f s  %s" % (passed, doing[0][:80]))


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
        ),
        "The package index could not be reached: check the network, the proxy (HTTPS_PROXY), or "
        "pip's index (PIP_INDEX_URL; for torch LEYLINE_TORCH_INDEX).",
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
    return "a step failed. The end of %s:\n%s\n%s" % (log, tail, what)


def install(environment, python):
    """Make the folder, run each pip call, write the stamp.  Raises Fault."""
    folder, began = environment.folder, time.monotonic()
    say("%s: installing, %s; log: %s" % (folder.name, environment.told, environment.log))
    environment.log.write_bytes(b"")
    (folder / STAMP).unlink() if (folder / STAMP).exists() else None
    if _version(str(environment.python)) != WANTED:
        clear = ["--clear"] if folder.exists() else []
        run_logged([python, "-m", "venv"] + clear + [str(folder)], environment.log)
    pip = [str(environment.python), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    for number, step in enumerate(environment.steps, 1):
        shown = " ".join(str(part).replace(str(ROOT) + os.sep, "") for part in step)
        say("%s: %d/%d pip install %s" % (folder.name, number, len(environment.steps), shown))
        run_logged(pip + step, environment.log)
    (folder / STAMP).write_text(environment.key())
    say("%s: ready after %.0f s" % (folder.name, time.monotonic() - began))


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
        say("error: %s" % fault)
        return 1
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
