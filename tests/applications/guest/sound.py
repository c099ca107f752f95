"""PulseAudio playing: the stream plays on and is heard at the monitor; the volume is each side's own."""

from __future__ import annotations

import random
import subprocess

from application import HOME, PATIENCE, alive, background, expect, log, main, output, wait_for

_SERVER = f"unix:{HOME}/sound"
_VOLUMES = {"source": "30%", "branch-1": "40%", "branch-2": "50%"}


def _pactl(*words: str) -> str:
    return output("pactl", *words, PULSE_SERVER=_SERVER)


def _heard() -> bool:
    """Is there any sound at the monitor? Raises when nothing comes from it at all."""
    done = subprocess.run(
        ["sh", "-c", f"PULSE_SERVER={_SERVER} parec -d out.monitor --format=s16le --rate=8000 --channels=1 | head -c 16000"],
        capture_output=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    return len(done.stdout) == 16000 and len(set(done.stdout)) > 50


def start() -> None:
    HOME.mkdir(exist_ok=True)
    (HOME / "noise").write_bytes(random.Random(1).randbytes(20_000_000))
    background(
        "server", "pulseaudio", "--daemonize=no", "-n", "--exit-idle-time=-1", "--disable-shm=no", "-L",
        f"module-native-protocol-unix auth-anonymous=1 socket={HOME}/sound", "-L", "module-null-sink sink_name=out", HOME=str(HOME), XDG_RUNTIME_DIR=str(HOME),
    )  # fmt: skip
    wait_for("the server", lambda: "out" in _pactl("list", "short", "sinks"))
    background("player", "paplay", "--raw", "--rate=8000", "--channels=1", "--format=s16le", str(HOME / "noise"), PULSE_SERVER=_SERVER)
    wait_for("the stream", lambda: _pactl("list", "short", "sink-inputs").strip())
    wait_for("sound", _heard)


def check(side: str) -> None:
    wait_for("sound", _heard)
    expect(alive("player") and alive("server"), log("player") + log("server")[-1000:])
    expect(_pactl("list", "short", "sink-inputs").count("\n") == 1, "the stream is not there once")
    _pactl("set-sink-volume", "out", _VOLUMES[side])


def verify(side: str) -> None:
    expect(_VOLUMES[side] in _pactl("get-sink-volume", "out"), _pactl("get-sink-volume", "out"))


if __name__ == "__main__":
    main(start, check, verify)
