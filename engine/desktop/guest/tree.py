"""Runs inside a workspace, as the desktop's user: what the programs of its desktop say of their windows, buttons and texts (AT-SPI), as JSON on stdout.

It speaks D-Bus itself, so the image needs nothing but Python, and asks many things at once: one after the other, a browser's thousands of nodes would take
seconds. A program that does not answer is left out and named. Whoever reads the answer takes it for that of a stranger.

Arguments: 1 to leave out what is not showing, the most nodes, the most characters of one text, seconds.
"""

import json
import math
import os
import selectors
import socket
import struct
import sys
import time
from collections import deque

BUS = "unix:path=/run/user/%d/bus" % os.getuid()
A11Y = "org.a11y.atspi."
ROOT = ("org.a11y.atspi.Registry", "/org/a11y/atspi/accessible/root")
MOST_DEPTH = 60
# A table of a million cells says so; nobody asks it for all of them.
MOST_CHILDREN = 2000
MOST_MESSAGE = 4 << 20
MOST_OUTPUT = 900_000
# Calls under way to one program, and how long one may say nothing at all.
AT_ONCE = 64
SILENCE = 1.5
SHOWING, NAMES = 25, (
    "invalid active armed busy checked collapsed defunct editable enabled expandable expanded focusable focused has-tooltip horizontal iconified modal "
    "multi-line multiselectable opaque pressed resizable selectable selected sensitive showing single-line stale transient vertical visible "
    "manages-descendants indeterminate required truncated animated invalid-entry supports-autocompletion selectable-text is-default visited checkable "
    "has-popup read-only"
).split()


class Bus:
    """One connection to a message bus."""

    def __init__(self, address):
        path = next(part.partition("=")[2] for part in address.split(";")[0].partition(":")[2].split(",") if part.startswith("path="))
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(5)
        self.socket.connect(path)
        self.socket.sendall(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
        answer = b""
        while not answer.endswith(b"\r\n"):
            piece = self.socket.recv(512)
            if not piece:
                raise OSError("the bus hung up")
            answer += piece
        if not answer.startswith(b"OK "):
            raise OSError("the bus refuses us")
        self.socket.sendall(b"BEGIN\r\n")
        self.serial = 0
        self.received = bytearray()
        self.sending = bytearray()
        self.call(("org.freedesktop.DBus", "/org/freedesktop/DBus"), "org.freedesktop.DBus", "Hello")

    def call(self, target, interface, member, signature="", *values):
        """Queue a call; its serial."""
        self.serial += 1
        body = b""
        for kind, value in zip(signature, values):
            body += bytes(-len(body) % 4)
            if kind == "s":
                text = value.encode()
                body += struct.pack("<I", len(text)) + text + b"\0"
            else:
                body += struct.pack("<" + {"u": "I", "i": "i"}[kind], value)
        fields = b""
        for code, kind, value in ((1, "o", target[1]), (2, "s", interface), (3, "s", member), (6, "s", target[0])):
            text = value.encode()
            fields += bytes(-len(fields) % 8) + bytes([code, 1]) + kind.encode() + b"\0" + struct.pack("<I", len(text)) + text + b"\0"
        if signature:
            fields += bytes(-len(fields) % 8) + bytes([8, 1]) + b"g\0" + bytes([len(signature)]) + signature.encode() + b"\0"
        head = b"l\1\0\1" + struct.pack("<III", len(body), self.serial, len(fields)) + fields
        self.sending += head + bytes(-len(head) % 8) + body
        return self.serial

    def messages(self):
        """(serial that it answers, its values or None for an error) of each answer that has come whole."""
        while len(self.received) >= 16:
            order = "<" if self.received[0] == ord("l") else ">"
            kind = self.received[1]
            body, _, fields = struct.unpack_from(order + "III", self.received, 4)
            start = 16 + fields + (-fields % 8)
            if start + body > MOST_MESSAGE:
                raise OSError("a message is too long")
            if len(self.received) < start + body:
                return
            message = bytes(self.received[: start + body])
            del self.received[: start + body]
            heads, _ = read(message, 12, "a(yv)", order)
            heads = dict(heads)
            if kind == 2:
                values, at = [], start
                for one in split(heads.get(8, "")):
                    value, at = read(message, at, one, order)
                    values.append(value)
                yield heads.get(5), values
            elif kind == 3:
                yield heads.get(5), None


WIDTHS = {"y": ("B", 1), "b": ("I", 4), "n": ("h", 2), "q": ("H", 2), "i": ("i", 4), "u": ("I", 4), "x": ("q", 8), "t": ("Q", 8), "d": ("d", 8), "h": ("I", 4)}


def split(signature):
    """The complete types of a signature."""
    while signature:
        end = 0
        while signature[end] == "a":
            end += 1
        if signature[end] in "({":
            depth = 1
            while depth:
                end += 1
                depth += (signature[end] in "({") - (signature[end] in ")}")
        yield signature[: end + 1]
        signature = signature[end + 1 :]


def read(message, at, signature, order):
    """The value of one complete type at a place of a message, and where the next one is."""
    kind = signature[0]
    if kind in WIDTHS:
        form, width = WIDTHS[kind]
        at += -at % width
        return struct.unpack_from(order + form, message, at)[0], at + width
    if kind in "so":
        at += -at % 4
        end = at + 4 + struct.unpack_from(order + "I", message, at)[0]
        return message[at + 4 : end].decode(errors="replace"), end + 1
    if kind == "g":
        end = at + 1 + message[at]
        return message[at + 1 : end].decode("ascii"), end + 1
    if kind == "v":
        inner, at = read(message, at, "g", order)
        return read(message, at, inner, order)
    if kind == "a":
        at += -at % 4
        end = struct.unpack_from(order + "I", message, at)[0]
        at += 4
        at += -at % (8 if signature[1] in "({xtd" else 1)
        end += at
        values = []
        while at < end:
            value, at = read(message, at, signature[1:], order)
            values.append(value)
        return (dict(values) if signature[1] == "{" else values), at
    at += -at % 8
    values = []
    for one in split(signature[1:-1]):
        value, at = read(message, at, one, order)
        values.append(value)
    return tuple(values), at


class Tree:
    """Asks for the nodes level by level."""

    def __init__(self, bus, showing, most_nodes, most_text, seconds):
        self.bus = bus
        self.showing = showing
        self.most_nodes = most_nodes
        self.most_text = most_text
        self.deadline = time.monotonic() + seconds
        self.nodes = []
        self.size = 0
        self.seen = {ROOT}
        self.truncated = False
        self.silent = set()
        self.queues = {}
        self.waiting = {}
        self.under_way = {}
        self.heard = {}

    def ask(self, target, then, interface, member, signature="", *values):
        """`then` gets the first value of the answer, None for an error."""
        self.queues.setdefault(target[0], deque()).append((target, then, interface, member, signature, values))

    def walk(self):
        self.add(None, ROOT, 0)
        self.bus.socket.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.bus.socket, selectors.EVENT_READ)
            self.listen(selector)

    def listen(self, selector):
        while time.monotonic() < self.deadline:
            self.send()
            if not self.waiting and not any(self.queues.values()):
                break
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.bus.sending else 0)
            selector.modify(self.bus.socket, events)
            for _, ready in selector.select(0.1):
                if ready & selectors.EVENT_WRITE:
                    del self.bus.sending[: self.bus.socket.send(self.bus.sending)]
                if ready & selectors.EVENT_READ:
                    piece = self.bus.socket.recv(1 << 18)
                    if not piece:
                        raise OSError("the bus hung up")
                    self.bus.received += piece
            self.take()
            self.give_up()
        else:
            self.truncated = True
            self.silent |= set(self.under_way)

    def send(self):
        now = time.monotonic()
        for program, queue in self.queues.items():
            while queue and self.under_way.get(program, 0) < AT_ONCE:
                target, then, interface, member, signature, values = queue.popleft()
                if not self.under_way.get(program):
                    self.heard[program] = now
                self.under_way[program] = self.under_way.get(program, 0) + 1
                self.waiting[self.bus.call(target, interface, member, signature, *values)] = (program, then)

    def take(self):
        for serial, values in self.bus.messages():
            program, then = self.waiting.pop(serial, (None, None))
            if program is None:
                continue
            self.heard[program] = time.monotonic()
            self.under_way[program] -= 1
            if not self.under_way[program]:
                del self.under_way[program]
            try:
                then(values[0] if values else None)
            except (TypeError, ValueError, KeyError, IndexError, AttributeError):
                # A program that answers with something else than was asked for.
                self.truncated = True

    def give_up(self):
        """Forget programs that have not said anything for a while."""
        now = time.monotonic()
        for program in [one for one in self.under_way if now - self.heard[one] > SILENCE]:
            self.silent.add(program)
            self.truncated = True
            del self.under_way[program]
            self.queues[program].clear()
            self.waiting = {serial: kept for serial, kept in self.waiting.items() if kept[0] != program}

    def add(self, parent, target, depth):
        if len(self.nodes) >= self.most_nodes or self.size > MOST_OUTPUT:
            self.truncated = True
            return
        number = len(self.nodes)
        node = {"parent": parent, "role": "", "name": "", "states": []}
        self.nodes.append(node)
        self.size += 120
        facts = {}
        left = [7]

        def known(name):
            def then(value):
                facts[name] = value
                left[0] -= 1
                if not left[0]:
                    self.known(number, node, target, depth, facts)

            return then

        accessible = A11Y + "Accessible"
        properties = "org.freedesktop.DBus.Properties"
        for name in ("Name", "Description", "ChildCount"):
            self.ask(target, known(name), properties, "Get", "ss", accessible, name)
        for name in ("GetRoleName", "GetState", "GetInterfaces", "GetAttributes"):
            self.ask(target, known(name), accessible, name)

    def text(self, value):
        # In place of what is no text: other nodes within it.
        kept = value.replace("\ufffc", "").replace("\ufffd", "")[: self.most_text] if isinstance(value, str) else ""
        self.size += len(kept.encode(errors="replace"))
        return kept

    def known(self, number, node, target, depth, facts):
        node["role"] = self.text(facts["GetRoleName"])[:60]
        node["name"] = self.text(facts["Name"])
        if facts["Description"]:
            node["description"] = self.text(facts["Description"])
        words = (facts["GetState"] or []) + [0, 0]
        bits = words[0] | words[1] << 32
        node["states"] = [name for bit, name in enumerate(NAMES) if bits >> bit & 1]
        self.size += sum(map(len, node["states"]))
        attributes = facts["GetAttributes"]
        if isinstance(attributes, dict) and attributes:
            node["attributes"] = {self.text(name)[:60]: self.text(value)[:200] for name, value in list(attributes.items())[:30]}
        has = {name.removeprefix(A11Y) for name in facts["GetInterfaces"] or [] if isinstance(name, str)}
        if bits >> SHOWING & 1 and "Component" in has:
            self.ask(target, lambda box: self.put(node, "box", box and list(box)), A11Y + "Component", "GetExtents", "u", 0)
        if "Text" in has:
            self.ask(target, lambda text: self.put(node, "text", self.text(text)), A11Y + "Text", "GetText", "ii", 0, self.most_text)
        if "Value" in has:
            for name in ("CurrentValue", "MinimumValue", "MaximumValue", "MinimumIncrement"):
                self.ask(target, self.valued(node, name), "org.freedesktop.DBus.Properties", "Get", "ss", A11Y + "Value", name)
        if "Action" in has:
            self.ask(target, lambda actions: self.acts(node, actions), A11Y + "Action", "GetActions")
        for name in ("Image", "Selection"):
            if name in has:
                node[name.lower()] = True
        count = facts["ChildCount"] or 0
        # Programs themselves have no states.
        hidden = self.showing and depth > 1 and not bits >> SHOWING & 1
        if hidden:
            node["hidden"] = True
        if not isinstance(count, int) or count <= 0 or hidden:
            return
        if count > MOST_CHILDREN or depth >= MOST_DEPTH:
            node["children"] = count
            self.truncated = True
            return
        self.ask(target, lambda children: self.below(number, depth, children), A11Y + "Accessible", "GetChildren")

    def kept(self):
        """The nodes without hidden ones, which have none below them."""
        numbers = {}
        for number, node in enumerate(self.nodes):
            if "hidden" not in node:
                numbers[number] = len(numbers)
        found = [node for node in self.nodes if "hidden" not in node]
        for node in found[1:]:
            node["parent"] = numbers[node["parent"]]
        return found

    def put(self, node, name, value):
        if value:
            node[name] = value
            self.size += 30

    def valued(self, node, name):
        return lambda value: node.setdefault("value", {}).__setitem__(name, value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    def acts(self, node, actions):
        self.put(node, "actions", [[self.text(part)[:100] for part in action] for action in (actions or [])[:20] if action[0]])

    def below(self, number, depth, children):
        for child in (children or [])[:MOST_CHILDREN]:
            target = tuple(child)
            # A node may call itself its own child; its path says nothing with this end.
            if len(target) == 2 and target not in self.seen and not target[1].endswith("/null"):
                self.seen.add(target)
                self.add(number, target, depth + 1)


def main():
    showing, most_nodes, most_text, seconds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    session = Bus(os.environ.get("DBUS_SESSION_BUS_ADDRESS", BUS))
    asked = session.call(("org.a11y.Bus", "/org/a11y/bus"), "org.a11y.Bus", "GetAddress")
    session.socket.sendall(session.sending)
    address = None
    while address is None:
        session.received += session.socket.recv(1 << 16)
        for serial, values in session.messages():
            if serial == asked:
                if not values:
                    raise OSError("the session has no accessibility bus")
                address = values[0]
    tree = Tree(Bus(address), showing, most_nodes, most_text, seconds)
    tree.walk()
    json.dump({"nodes": tree.kept(), "truncated": tree.truncated, "silent": len(tree.silent)}, sys.stdout, allow_nan=False)


if __name__ == "__main__":
    try:
        main()
    except (OSError, StopIteration) as error:
        sys.exit("no accessibility tree: %s" % error)
