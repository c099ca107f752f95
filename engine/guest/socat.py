"""The one use of socat that OSWorld's tasks make of it: `socat tcp-listen:9222,fork tcp:localhost:1337`, which gives a debugging port another number."""

import re
import socket
import sys
import threading

FROM = re.compile(r"tcp-listen:(\d+)(?:,.*)?", re.IGNORECASE)
TO = re.compile(r"tcp:([^:,]+):(\d+)(?:,.*)?", re.IGNORECASE)


def relay(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def serve(client, address):
    try:
        server = socket.create_connection(address)
    except OSError:
        client.close()
        return
    threading.Thread(target=relay, args=(server, client), daemon=True).start()
    relay(client, server)


def main(arguments):
    came, goes = (FROM.fullmatch(arguments[0]), TO.fullmatch(arguments[1])) if len(arguments) == 2 else (None, None)
    if came is None or goes is None:
        sys.exit("socat: this one takes `tcp-listen:PORT,fork tcp:HOST:PORT` only; install the package socat for the rest")
    listener = socket.create_server(("127.0.0.1", int(came[1])))
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client, (goes[1], int(goes[2]))), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1:])
