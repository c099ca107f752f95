"""The portal's keys and password, made by the portal's own user: `python -m engine.cli.portal_account prepare|passwd`.

Root starts this by way of `engine.cli.unprivileged` and reads the answer from its stdout, one JSON object. Root itself never opens files in
a directory that belongs to a less trusted user, who could have put links there.
"""

from __future__ import annotations

import json
import subprocess
import sys

from engine.cli.unprivileged import launcher
from engine.config import Config
from engine.errors import Internal


def ask(config: Config, what: str, environment: dict[str, str]) -> str | None:
    """Run `what` as the portal's user: the password it made, or None. Raises Internal with what it said."""
    argv = [*launcher(config.portal_user), sys.executable, "-m", "engine.cli.portal_account", what]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", env=environment, check=False)
    if done.returncode != 0:
        raise Internal(f"preparing the portal failed (status {done.returncode}):\n{done.stderr.strip()}")
    return json.loads(done.stdout)["password"]


def main() -> None:
    config = Config.from_environment()
    match sys.argv[1:]:
        case ["prepare"]:
            from portal.setup import prepare  # the portal's code is needed by this process only

            password = prepare(config).password
        case ["passwd"]:
            from portal.accounts import reset_password

            password = reset_password(config)
        case _:
            raise SystemExit("usage: python -m engine.cli.portal_account prepare|passwd")
    print(json.dumps({"password": password}))


if __name__ == "__main__":
    main()
