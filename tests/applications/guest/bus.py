"""A D-Bus session: a service with state, a client that gets its signals, a name that can be claimed."""

from __future__ import annotations

import sys

import dbus
import dbus.mainloop.glib
import dbus.service
from gi.repository import GLib

from application import HOME, alive, background, expect, grows, log, main, wait_for

_ADDRESS = f"unix:path={HOME}/bus"
_NAME = "org.example.Counter"


def _bus() -> dbus.bus.BusConnection:
    return dbus.bus.BusConnection(_ADDRESS)


class Counter(dbus.service.Object):
    """Counts up and tells everybody."""

    def __init__(self, bus: dbus.bus.BusConnection) -> None:
        self._owned = dbus.service.BusName(_NAME, bus)
        super().__init__(bus, "/counter")
        self.mark = ""
        self.number = 0
        GLib.timeout_add(50, self._count)

    def _count(self) -> bool:
        self.number += 1
        self.Counted(self.number)
        return True

    @dbus.service.signal(_NAME, signature="u")
    def Counted(self, number: int) -> None:
        """The new number."""

    @dbus.service.method(_NAME, in_signature="s", out_signature="s")
    def Mark(self, text: str) -> str:
        """Add to the mark; the whole mark."""
        self.mark += text
        return self.mark


def serve() -> None:
    """The service, for ever."""
    dbus.mainloop.glib.DBusGMainLoop(set_as_default=True)
    counter = Counter(_bus())
    GLib.MainLoop().run()
    print(counter)


def listen() -> None:
    """Print each number that comes by signal."""
    dbus.mainloop.glib.DBusGMainLoop(set_as_default=True)
    bus = _bus()
    bus.add_signal_receiver(lambda number: print(int(number), flush=True), "Counted", _NAME)
    GLib.MainLoop().run()


def _mark(text: str) -> str:
    return str(_bus().get_object(_NAME, "/counter").Mark(text, dbus_interface=_NAME))


def _heard() -> int:
    return int(log("listener").split()[-1])


def start() -> None:
    HOME.mkdir(exist_ok=True)
    background("daemon", "dbus-daemon", "--session", "--nofork", f"--address={_ADDRESS}")
    wait_for("the bus", lambda: (HOME / "bus").exists() and _bus())
    background("service", sys.executable, __file__, "serve")
    wait_for("the service", lambda: _mark("") == "")
    background("listener", sys.executable, __file__, "listen")
    wait_for("signals", lambda: _heard() > 3)


def check(side: str) -> None:
    grows("signals", _heard)
    numbers = [int(line) for line in log("listener").split()]
    expect(numbers == list(range(numbers[0], numbers[-1] + 1)), "signals were lost or came twice")
    expect(_mark(side) == side, f"mark: {_mark('')}")
    expect(_bus().request_name("org.example.Another") == 1, "a new name could not be claimed")
    for name in ("daemon", "service", "listener"):
        expect(alive(name), f"{name}: {log(name)[-1000:]}")


def verify(side: str) -> None:
    expect(_mark("") == side, f"mark: {_mark('')}")


if __name__ == "__main__":
    if sys.argv[1] in ("serve", "listen"):
        {"serve": serve, "listen": listen}[sys.argv[1]]()
    main(start, check, verify)
