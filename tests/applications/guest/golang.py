"""A Go program: goroutines, timers, channels, a TCP client and server of its own inside the process."""

from __future__ import annotations

import json

from application import HOME, alive, background, expect, get, grows, log, main, output, wait_for

_PORT = 3002
_PROGRAM = """
package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

var ticks, passed, echoed atomic.Int64

func echo(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			reader := bufio.NewReader(connection)
			for {
				line, err := reader.ReadString('\\n')
				if err != nil {
					return
				}
				connection.Write([]byte(line))
			}
		}()
	}
}

func client(address string) {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		panic(err)
	}
	reader := bufio.NewReader(connection)
	for number := int64(1); ; number++ {
		fmt.Fprintf(connection, "%d\\n", number)
		line, err := reader.ReadString('\\n')
		if err != nil || line != fmt.Sprintf("%d\\n", number) {
			fmt.Fprintln(os.Stderr, "connection:", line, err)
			os.Exit(3)
		}
		echoed.Store(number)
		time.Sleep(5 * time.Millisecond)
	}
}

func main() {
	var mutex sync.Mutex
	mark := ""
	go func() {
		for range time.Tick(10 * time.Millisecond) {
			ticks.Add(1)
		}
	}()
	link := make(chan int)
	for i := 0; i < 100; i++ {
		go func() {
			for range link {
				passed.Add(1)
			}
		}()
	}
	go func() {
		for i := 0; ; i++ {
			link <- i
			time.Sleep(time.Millisecond)
		}
	}()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go echo(listener)
	go client(listener.Addr().String())
	http.HandleFunc("/state", func(answer http.ResponseWriter, request *http.Request) {
		mutex.Lock()
		defer mutex.Unlock()
		fmt.Fprintf(answer, `{"ticks": %d, "passed": %d, "echoed": %d, "mark": %q}`, ticks.Load(), passed.Load(), echoed.Load(), mark)
	})
	http.HandleFunc("/mark/", func(answer http.ResponseWriter, request *http.Request) {
		mutex.Lock()
		defer mutex.Unlock()
		mark += request.URL.Path[len("/mark/"):]
	})
	panic(http.ListenAndServe("127.0.0.1:3002", nil))
}
"""


def _state() -> dict:
    return json.loads(get(f"http://127.0.0.1:{_PORT}/state"))


def start() -> None:
    HOME.mkdir(exist_ok=True)
    (HOME / "server.go").write_text(_PROGRAM)
    output("go", "build", "-o", str(HOME / "server"), str(HOME / "server.go"), seconds=300, GOCACHE="/tmp/go-cache", GO111MODULE="off", CGO_ENABLED="0")
    background("server", str(HOME / "server"))
    wait_for("the server", lambda: all(_state()[part] > 5 for part in ("ticks", "passed", "echoed")))


def check(side: str) -> None:
    for part in ("ticks", "passed", "echoed"):
        grows(part, lambda key=part: _state()[key])
    expect(_state()["mark"] == "", f"mark: {_state()}")
    get(f"http://127.0.0.1:{_PORT}/mark/{side}")
    expect(alive("server"), log("server"))


def verify(side: str) -> None:
    expect(_state()["mark"] == side, f"mark: {_state()}")


if __name__ == "__main__":
    main(start, check, verify)
