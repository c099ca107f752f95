"""The portal's keys, users and tokens, changed by the portal's own user: `python -m engine.cli.portal_account WHAT`.

Root starts this by way of `engine.cli.unprivileged`, writes the arguments to its stdin and reads the answer from its stdout, one JSON object
each: nothing secret is ever in a command line. Root itself never opens files in a directory that belongs to a less trusted user, who could have
put links there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from engine.cli.unprivileged import launcher
from engine.config import Config
from engine.errors import BadRequest, Internal, from_wire


def ask(config: Config, what: str, environment: dict[str, str], **wanted: Any) -> Any:
    """Run `what` as the portal's user and return its answer. Raises EngineError with what it said."""
    argv = [*launcher(config.portal_user), sys.executable, "-m", "engine.cli.portal_account", what]
    done = subprocess.run(argv, input=json.dumps(wanted), capture_output=True, text=True, cwd="/", env=environment, check=False)
    if done.returncode != 0:
        raise Internal(f"the portal's data could not be used (status {done.returncode}):\n{done.stderr.strip()}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        code = answer["error"]["code"]
        # Asking for more than a user may have is a wrong use of the command.
        raise from_wire(BadRequest.code if code == "forbidden" else code, answer["error"]["message"])
    return answer["answer"]


def main() -> None:
    config = Config.from_environment()
    match sys.argv[1:]:
        case ["prepare"]:
            from portal.setup import prepare  # the portal's code is needed by this process only

            answer: dict[str, Any] = {"answer": prepare(config).password}
        case [what]:
            from portal.administration import WORK, run

            if what not in WORK:
                raise SystemExit(f"usage: python -m engine.cli.portal_account prepare|{'|'.join(WORK)}")
            answer = run(config, what, json.loads(sys.stdin.read() or "{}"))
        case _:
            raise SystemExit("usage: python -m engine.cli.portal_account WHAT")
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
