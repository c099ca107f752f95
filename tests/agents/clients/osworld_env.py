"""OSWorld's DesktopEnv through `vmrun`, in the action space `computer_13`: `NAME DIRECTORY`; with `forking` in front, through TClone's own provider, in the space `pyautogui`.

Pictures and seconds go to the directory.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import osworld_stubs

osworld_stubs.install()

forking = sys.argv[1] == "forking"
name, directory = sys.argv[-2], Path(sys.argv[-1])
options = {"snapshot_name": "init_state", "action_space": "pyautogui" if forking else "computer_13", "cache_dir": str(directory / "cache"), "headless": True, "require_terminal": True}
if forking:
    from tclone.osworld import environment

    env = environment(name, **options)
else:
    from desktop_env.desktop_env import DesktopEnv

    env = DesktopEnv(provider_name="vmware", path_to_vm=f"/branches/{name}", **options)

steps = [{"type": "launch", "parameters": {"command": ["mousepad", "/home/user/task.txt"]}}]
task = {"id": "task", "instruction": "write", "config": steps, "evaluator": {"func": "infeasible"}}
told: dict = {"resets": []}


def look(step: str, observation: dict) -> None:
    (directory / f"{step}.png").write_bytes(observation["screenshot"])
    assert "desktop-frame" in observation["accessibility_tree"]


def step(code: str, *actions: dict, pause: float = 1) -> dict:
    """The same thing in the environment's action space; what is there to be seen after it."""
    for action in (code,) if forking else actions:
        observation = env.step(action, pause=pause)[0]
    return observation


def typed(text: str) -> dict:
    return {"action_type": "TYPING", "text": text}


def files() -> list[str]:
    tree = env.controller.get_vm_directory_tree("/home/user")
    return sorted(child["name"] for child in tree["children"] if child["name"].endswith(".txt"))


began = time.monotonic()
look("reset", env.reset(task_config=task))
told["resets"].append(time.monotonic() - began)
told["size"] = env.vm_screen_size
env.controller.run_bash_script("for i in $(seq 600); do wmctrl -l | grep -q Mousepad && break; sleep 0.1; done")
look("opened", env.step("WAIT", pause=0.1)[0])
SAVE = {"action_type": "HOTKEY", "keys": ["ctrl", "s"]}
step("pyautogui.click(640, 300); pyautogui.typewrite('a < b')", {"action_type": "CLICK", "x": 640, "y": 300}, typed("a < b"), pause=0.1)
look("typed", step("pyautogui.hotkey('ctrl', 's')", SAVE))
told["typed"] = env.controller.get_file("/home/user/task.txt").decode()
env._save_state("typed")
step("pyautogui.press('x'); pyautogui.hotkey('ctrl', 's')", {"action_type": "PRESS", "key": "x"}, SAVE)
told["after"] = env.controller.get_file("/home/user/task.txt").decode()
# Back to what was saved: the text, the open window and its place in it.
env.snapshot_name = "typed"
began = time.monotonic()
look("reverted", env.reset())
told["resets"].append(time.monotonic() - began)
told["reverted"] = env.controller.get_file("/home/user/task.txt").decode()
step("pyautogui.press('y'); pyautogui.hotkey('ctrl', 's')", {"action_type": "PRESS", "key": "y"}, SAVE)
told["went on"] = env.controller.get_file("/home/user/task.txt").decode()
# And back to where there is no file.
env.snapshot_name = "init_state"
began = time.monotonic()
look("again", env.reset())
told["resets"].append(time.monotonic() - began)
told["files"] = files()
env.step("FAIL", pause=0)
told["score"] = env.evaluate()
env.close()
print(json.dumps(told))
