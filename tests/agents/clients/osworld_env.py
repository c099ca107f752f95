"""OSWorld's DesktopEnv through `vmrun`: `NAME DIRECTORY`; with `forking` in front, through TClone's own provider. Pictures and seconds go to the directory."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import osworld_stubs

osworld_stubs.install()

forking = sys.argv[1] == "forking"
name, directory = sys.argv[-2], Path(sys.argv[-1])
options = {"snapshot_name": "init_state", "action_space": "pyautogui", "cache_dir": str(directory / "cache"), "headless": True, "require_terminal": True}
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


def files() -> list[str]:
    tree = env.controller.get_vm_directory_tree("/home/user")
    return sorted(child["name"] for child in tree["children"] if child["name"].endswith(".txt"))


began = time.monotonic()
look("reset", env.reset(task_config=task))
told["resets"].append(time.monotonic() - began)
told["size"] = env.vm_screen_size
env.controller.run_bash_script("for i in $(seq 600); do wmctrl -l | grep -q Mousepad && break; sleep 0.1; done")
look("opened", env.step("WAIT", pause=0.1)[0])
env.step("pyautogui.click(640, 300); pyautogui.typewrite('a < b')", pause=0.1)
look("typed", env.step("pyautogui.hotkey('ctrl', 's')", pause=1)[0])
told["typed"] = env.controller.get_file("/home/user/task.txt").decode()
env._save_state("typed")
env.step("pyautogui.press('x'); pyautogui.hotkey('ctrl', 's')", pause=1)
told["after"] = env.controller.get_file("/home/user/task.txt").decode()
# Back to what was saved: the text, the open window and its place in it.
env.snapshot_name = "typed"
began = time.monotonic()
look("reverted", env.reset())
told["resets"].append(time.monotonic() - began)
told["reverted"] = env.controller.get_file("/home/user/task.txt").decode()
env.step("pyautogui.press('y'); pyautogui.hotkey('ctrl', 's')", pause=1)
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
