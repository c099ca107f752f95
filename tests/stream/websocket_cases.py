"""What a conformance suite sends to a WebSocket server, in its usual groups: bytes of a client, and how a strict server ends the connection."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from tests.stream.test_equivalence import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, raw

NORMAL, PROTOCOL, BAD_TEXT = 1000, 1002, 1007
_MIB = 1 << 20
_GREETING = "Hello-µ@ßöäüàá-UTF-8!!".encode()


class Case(NamedTuple):
    """`sent` by the client, which closes when all is echoed, unless `sent` ends the connection. `code`: what the server's Close frame has."""

    sent: bytes
    code: int = NORMAL
    # Bytes written at a time; 0: all at once.
    chop: int = 0

    @property
    def echoes(self) -> int:
        """How many messages come back; -1 where the end of the connection, which `sent` brings about, may overtake them."""
        opcodes = [(frame[0] & 0x0F, frame[0] & 0x80) for frame in frames_of(self.sent)]
        if self.code != NORMAL or any(opcode == CLOSE for opcode, _ in opcodes):
            return -1
        return sum(1 for opcode, final in opcodes if opcode < CLOSE and final)


def frames_of(data: bytes) -> list[bytes]:
    """The whole frames at the beginning of `data`, each as it came."""
    found, at = [], 0
    while at + 2 <= len(data):
        mark, masked = data[at + 1] & 0x7F, data[at + 1] & 0x80
        wide = {126: 2, 127: 8}.get(mark, 0)
        size = int.from_bytes(data[at + 2 : at + 2 + wide], "big") if wide else mark
        end = at + 2 + wide + (4 if masked else 0) + size
        if end > len(data):
            break
        found.append(data[at:end])
        at = end
    return found


def _frame(opcode: int, payload: bytes = b"", **options: object) -> bytes:
    return raw(opcode, payload, masked=True, **options)  # type: ignore[arg-type]


def _closing(payload: bytes) -> bytes:
    return _frame(CLOSE, payload)


def _code(number: int, reason: bytes = b"") -> bytes:
    return struct.pack("!H", number) + reason


def _fragments(opcode: int, *pieces: bytes) -> bytes:
    last = len(pieces) - 1
    return b"".join(_frame(CONTINUATION if at else opcode, piece, fin=at == last) for at, piece in enumerate(pieces))


_SIZES = (0, 125, 126, 127, 128, 65_535, 65_536)
_CUT = "κόσμε".encode()
# Overlong, surrogates, beyond U+10FFFF, a lone continuation, an unfinished character.
_BAD = (b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xce\xba\xe1\xbd", b"\xff", _CUT + b"\xed\xa0\x80edited")
_GOOD = (_CUT, b"\x00", b"\x7f", b"\xc2\x80", b"\xef\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf", b"\xef\xbf\xbe", _GREETING * 50)

GROUPS: dict[str, list[Case]] = {
    "1 framing": [
        *(Case(_frame(kind, b"*" * size)) for kind in (TEXT, BINARY) for size in _SIZES),
        *(Case(_frame(kind, b"*" * 65_536), chop=997) for kind in (TEXT, BINARY)),
    ],
    "2 pings": [
        *(Case(_frame(PING, payload)) for payload in (b"", b"Hello, world!", b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff", b"\xfe" * 125)),
        Case(_frame(PING, b"\xfe" * 126), PROTOCOL),
        Case(_frame(PING, b"\xfe" * 125), chop=1),
        *(Case(_frame(PONG, payload)) for payload in (b"", b"unsolicited")),
        Case(_frame(PONG, b"unsolicited") + _frame(PING, b"ping")),
        Case(b"".join(_frame(PING, b"payload-%d" % at) for at in range(10))),
        Case(b"".join(_frame(PING, b"payload-%d" % at) for at in range(10)), chop=1),
    ],
    "3 reserved bits": [Case(_frame(TEXT, b"fine") + _frame(kind, b"x", reserved=bits), PROTOCOL)
                        for bits in range(1, 8) for kind in (TEXT, BINARY, PING)] + [Case(_frame(CLOSE, b"", reserved=7), PROTOCOL)],
    "4 opcodes": [Case(_frame(TEXT, b"fine") + _frame(opcode, payload), PROTOCOL) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15) for payload in (b"", b"data")],
    "5 fragmentation": [
        *(Case(_frame(kind, b"x", fin=False), PROTOCOL) for kind in (PING, PONG)),
        *(Case(_fragments(TEXT, b"fragment1", b"fragment2"), chop=chop) for chop in (0, 1)),
        *(Case(_frame(TEXT, b"one", fin=False) + _frame(PING, b"between") + _frame(CONTINUATION, b"two"), chop=chop) for chop in (0, 1)),
        *(Case(_frame(CONTINUATION, b"of nothing", fin=fin) + _frame(TEXT, b"later"), PROTOCOL) for fin in (True, False)),
        Case(_frame(TEXT, b"one", fin=False) + _frame(TEXT, b"another"), PROTOCOL),
        Case(_fragments(TEXT, b"1", b"2", b"3") + _frame(CONTINUATION, b"4"), PROTOCOL),
        Case(_fragments(BINARY, *(b"%d" % at for at in range(50)))),
        Case(_fragments(TEXT, b"", b"", b"")),
    ],
    "6 text": [
        Case(_frame(TEXT)), Case(_fragments(TEXT, b"", b"middle", b"")),
        *(Case(_frame(TEXT, text)) for text in _GOOD),
        *(Case(_fragments(TEXT, *(bytes([byte]) for byte in text[:60]))) for text in (_CUT, _GREETING)),
        *(Case(_frame(TEXT, text), chop=1) for text in (_CUT, _GREETING)),
        *(Case(_frame(TEXT, text), BAD_TEXT) for text in _BAD),
        *(Case(_fragments(TEXT, text[:1], text[1:]), BAD_TEXT) for text in _BAD),
    ],
    "7 closing": [
        Case(_closing(b""), 0), Case(_closing(_code(1000))), Case(_closing(_code(1000, b"Hello World!"))), Case(_closing(_code(1000, b"*" * 123))),
        Case(_closing(_code(1000, b"*" * 124)), PROTOCOL), Case(_closing(b"\x03"), PROTOCOL),
        Case(_closing(_code(1000) + b"\xce\xba\xed\xa0\x80"), BAD_TEXT),
        *(Case(_closing(_code(number)), number) for number in (1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)),
        *(Case(_closing(_code(number)), PROTOCOL) for number in (0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65_535)),
        Case(_frame(TEXT, b"unfinished", fin=False) + _closing(_code(1000)), PROTOCOL),
    ],
    "9 sizes": [
        *(Case(_frame(kind, b"*" * size)) for kind, size in ((TEXT, 64 << 10), (BINARY, 256 << 10), (TEXT, 1 * _MIB), (BINARY, 4 * _MIB), (BINARY, 16 * _MIB))),
        Case(_fragments(BINARY, *(b"*" * 4096 for _ in range(256)))), Case(_fragments(TEXT, *(b"*" * 64 for _ in range(1024)))),
        Case(_frame(BINARY, b"*" * _MIB), chop=1400), Case(b"".join(_frame(TEXT, b"*" * 64) for _ in range(500))),
    ],
    "10 pieces": [Case(_frame(TEXT, b"*" * 65_536), chop=1300), Case(_fragments(TEXT, *(b"*" * 1300 for _ in range(50))))],
}  # fmt: skip


@dataclass
class Deflater:
    """A client's half of permessage-deflate."""

    bits: int = 15
    fresh: bool = False

    def __post_init__(self) -> None:
        self._made = zlib.compressobj(wbits=-self.bits)

    def frames(self, message: bytes, pieces: int = 1) -> bytes:
        """One text message, its compressed bytes in so many fragments."""
        if self.fresh:
            self._made = zlib.compressobj(wbits=-self.bits)
        packed = (self._made.compress(message) + self._made.flush(zlib.Z_SYNC_FLUSH))[:-4]
        step = -(-len(packed) // pieces)
        parts = [packed[at : at + step] for at in range(0, len(packed), step)]
        return b"".join(_frame(CONTINUATION if at else TEXT, part, fin=at == len(parts) - 1, reserved=0 if at else 4) for at, part in enumerate(parts))


def compressed() -> dict[str, list[Case]]:
    """Groups 12 and 13: what is offered, and messages that go with it."""
    offers = {
        "permessage-deflate": Deflater(),
        "permessage-deflate; client_no_context_takeover": Deflater(fresh=True),
        "permessage-deflate; server_no_context_takeover": Deflater(),
        "permessage-deflate; client_max_window_bits=9; server_max_window_bits=9": Deflater(bits=9),
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover; client_max_window_bits": Deflater(bits=12, fresh=True),
    }
    cases: dict[str, list[Case]] = {}
    for offer, deflater in offers.items():
        texts = [b'{"x": %d, "y": "%s"}' % (at, b"abcdefgh" * (at * 37 % 500)) for at in range(40)] + [b"", b"z" * (256 << 10)]
        exchange = b"".join(deflater.frames(text, pieces=1 + at % 3) for at, text in enumerate(texts))
        cases[offer] = [Case(exchange), Case(_frame(TEXT, b"not compressed")), Case(_frame(TEXT, b"\xff\xfe\xfd no deflate", reserved=4), -1)]
    return cases
