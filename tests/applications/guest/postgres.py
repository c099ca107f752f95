"""PostgreSQL under pgbench, by TCP and by a Unix socket: sums agree, indexes are whole, the clients never notice."""

from __future__ import annotations

from application import HOME, PATIENCE, alive, background, expect, grows, log, main, output, wait_for

_BIN = "/usr/lib/postgresql/17/bin"
_DATA = str(HOME / "pg")
_SERVER = (f"{_BIN}/postgres", "-D", _DATA, "-k", str(HOME), "-c", "listen_addresses=127.0.0.1")
_HOSTS = {"local": str(HOME), "tcp": "127.0.0.1"}


def _sql(text: str) -> str:
    return output(f"{_BIN}/psql", "-h", str(HOME), "-d", "postgres", "-AtX", "-v", "ON_ERROR_STOP=1", stdin=text).strip()


def start() -> None:
    HOME.mkdir(exist_ok=True)
    output(f"{_BIN}/initdb", "-D", _DATA, "-A", "trust", "--no-sync")
    background("server", *_SERVER, "-c", "shared_buffers=64MB")
    wait_for("the server", lambda: _sql("SELECT 1"))
    output(f"{_BIN}/pgbench", "-h", str(HOME), "-i", "-s", "1", "-q", "postgres")
    _sql("CREATE EXTENSION amcheck; CREATE TABLE marks(side text)")
    for name, host in _HOSTS.items():
        background(name, f"{_BIN}/pgbench", "-h", host, "-c", "2", "-T", "100000", "-R", "100", "-P", "1", "postgres")
    wait_for("transactions", lambda: _history() > 50)


def _history() -> int:
    return int(_sql("SELECT count(*) FROM pgbench_history"))


def check(side: str) -> None:
    grows("the history", _history, by=20)
    for name in _HOSTS:
        progress = log(name).count("progress:")
        wait_for(f"client {name} goes on", lambda client=name, seen=progress: log(client).count("progress:") > seen)
        expect(alive(name), f"client {name} ended: {log(name)[-500:]}")
        expect("error" not in log(name).lower().replace(" 0 failed", ""), f"client {name}: {log(name)[-500:]}")
    sums = _sql(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), "
        "(SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history)"
    )
    expect(len(set(sums.split("|"))) == 1, f"the sums of one moment differ: {sums}")
    _sql("SELECT bt_index_check(c.oid) FROM pg_class c WHERE relkind = 'i' AND relam = 403 AND relpersistence = 'p'")
    _sql(f"INSERT INTO marks VALUES ('{side}'); CHECKPOINT")


def verify(side: str) -> None:
    expect(_sql("SELECT side FROM marks") == side, f"marks: {_sql('SELECT side FROM marks')}")
    # What was written before and after the fork survives a crash of this side.
    output(f"{_BIN}/pg_ctl", "-D", _DATA, "stop", "-m", "immediate", "-t", str(int(PATIENCE)))
    background("server", *_SERVER)
    wait_for("recovery", lambda: _sql("SELECT side FROM marks") == side)


if __name__ == "__main__":
    main(start, check, verify)
