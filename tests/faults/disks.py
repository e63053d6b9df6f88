"""Runs in a mount namespace of its own: commands on a disk that is full, or read-only.

    unshare --map-root-user --mount python -m tests.faults.disks FOLDER

FOLDER holds the models and becomes the mount point's parent. Prints a JSON list of what each
command said; nothing outside the namespace ever sees the disk.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.commands import write_tiny_model
from pairgate.cli import main as pairgate

DISK_BYTES = 3 << 20
CHANGES = (
    ("init", "another"),
    ("register", "chat", "--target", "{models}/target", "--draft", "{models}/draft-2"),
    ("promote", "chat@2", "--override", "test"),
    ("rollback", "chat"),
    ("disable", "chat", "--reason", "test"),
    ("pin", "chat@1"),
    ("line", "set", "chat", "--policy", "strict"),
    ("gc",),
)
READS = (("status",), ("history", "chat"), ("outbox",), ("verify", "chat@1"), ("db", "current"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """`disk` is the state that it met: roomy, full, freed, read-only or mended."""

    disk: str
    command: str
    code: int
    out: str
    err: str


def main(folder: Path) -> None:
    disk, models = folder / "disk", folder / "models"
    disk.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(disk))
    os.environ |= {
        "PAIRGATE_HOME": str(disk / "home"),
        "PAIRGATE_DELIVERY": "off",
        "PAIRGATE_MLFLOW": "off",
    }
    for number, name in enumerate(("target", "draft-1", "draft-2")):
        write_tiny_model(models / name, fill=float(number))
    said: list[Said] = []

    def run(state: str, *command: str) -> None:
        words = [word.format(models=models) for word in command]
        said.append(_said(state, words))

    target, draft = str(models / "target"), str(models / "draft-1")
    run("roomy", "init", "chat")
    run("roomy", "register", "chat", "--target", target, "--draft", draft)
    run("roomy", "promote", "chat@1", "--override", "test")
    for command in (*CHANGES, *READS):
        _fill(disk / "filling")
        run("full", *command)
    (disk / "filling").unlink()
    run("freed", "audit", "verify")
    run("freed", "status", "--json")
    _mount("-o", "remount,ro", str(disk))
    for command in (*CHANGES, *READS):
        run("read-only", *command)
    _mount("-o", "remount,rw", str(disk))
    run("mended", "audit", "verify")
    run("mended", "status", "--json")
    run("mended", *CHANGES[1])
    run("mended", "verify", "chat@1")
    print(json.dumps([asdict(s) for s in said]))  # noqa: T201


def _said(disk: str, words: list[str]) -> Said:
    """What a command prints and answers, in a child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        out, err, code = io.StringIO(), io.StringIO(), 0
        sys.argv = ["pairgate", *words]
        with redirect_stdout(out), redirect_stderr(err):
            try:
                pairgate()
            except SystemExit as ended:
                code = int(ended.code or 0)
        said = Said(
            disk=disk, command=" ".join(words), code=code, out=out.getvalue(), err=err.getvalue()
        )
        with open(writing, "w") as pipe:
            json.dump(asdict(said), pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        answer = json.load(pipe)
    os.waitpid(pid, 0)
    return Said(**answer)


def _fill(path: Path) -> None:
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
