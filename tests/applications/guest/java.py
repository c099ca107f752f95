"""A Java program: an HTTP server, threads of both sorts, a heap that the collector moves."""

from __future__ import annotations

import json

from application import HOME, alive, background, expect, get, grows, log, main, wait_for

_PORT = 3001
_PROGRAM = """
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

public class Server {
    public static void main(String[] arguments) throws Exception {
        AtomicLong platform = new AtomicLong(), light = new AtomicLong(), scheduled = new AtomicLong();
        ConcurrentHashMap<String, String> marks = new ConcurrentHashMap<>();
        byte[][] heap = new byte[64][];
        new Thread(() -> {
            Random random = new Random(1);
            while (true) {
                byte[] block = new byte[1 << 20];
                Arrays.fill(block, (byte) random.nextInt());
                heap[random.nextInt(heap.length)] = block;
                platform.incrementAndGet();
                try { Thread.sleep(20); } catch (InterruptedException error) { return; }
            }
        }).start();
        Thread.startVirtualThread(() -> {
            while (true) {
                light.incrementAndGet();
                try { Thread.sleep(20); } catch (InterruptedException error) { return; }
            }
        });
        Executors.newScheduledThreadPool(2).scheduleAtFixedRate(scheduled::incrementAndGet, 20, 20, TimeUnit.MILLISECONDS);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 3001), 0);
        server.createContext("/mark/", exchange -> {
            marks.put(exchange.getRequestURI().getPath().substring(6), "");
            answer(exchange, "ok");
        });
        server.createContext("/state", exchange -> {
            System.gc();
            answer(exchange, String.format("{\\"platform\\": %d, \\"light\\": %d, \\"scheduled\\": %d, \\"marks\\": \\"%s\\"}", platform.get(), light.get(),
                scheduled.get(), String.join(",", new TreeSet<>(marks.keySet()))));
        });
        server.setExecutor(Executors.newVirtualThreadPerTaskExecutor());
        server.start();
    }
    static void answer(com.sun.net.httpserver.HttpExchange exchange, String text) throws java.io.IOException {
        exchange.sendResponseHeaders(200, text.length());
        exchange.getResponseBody().write(text.getBytes());
        exchange.close();
    }
}
"""


def _state() -> dict:
    return json.loads(get(f"http://127.0.0.1:{_PORT}/state"))


def start() -> None:
    HOME.mkdir(exist_ok=True)
    (HOME / "Server.java").write_text(_PROGRAM)
    background("server", "java", "-Xmx256m", "Server.java")
    wait_for("the server", lambda: all(_state()[part] > 5 for part in ("platform", "light", "scheduled")))


def check(side: str) -> None:
    for part in ("platform", "light", "scheduled"):
        grows(part, lambda key=part: _state()[key])
    expect(_state()["marks"] == "", f"marks: {_state()}")
    get(f"http://127.0.0.1:{_PORT}/mark/{side}")
    expect(alive("server"), log("server"))


def verify(side: str) -> None:
    expect(_state()["marks"] == side, f"marks: {_state()}")


if __name__ == "__main__":
    main(start, check, verify)
