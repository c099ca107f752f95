"""Tasks in OSWorld's own form, done in a DesktopEnv and judged by OSWorld's own getters and metrics: `NAME DIRECTORY URL`, the last of the letter that is to be written.

Each is judged twice, once before anything was done, and once after. Prints scores and seconds as one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import osworld_stubs

osworld_stubs.install()

from desktop_env.evaluators import getters  # noqa: E402

from tclone.osworld import environment  # noqa: E402

name, directory, letter = sys.argv[1], Path(sys.argv[2]), sys.argv[3]


def launch(*command: str) -> dict[str, Any]:
    return {"type": "launch", "parameters": {"command": list(command)}}


def rule(**rules: Any) -> dict[str, Any]:
    return {"type": "rule", "rules": rules}


def waited(title: str) -> str:
    """A command that waits for a window, as code for the desktop."""
    return f"import subprocess; subprocess.run('for i in $(seq 600); do wmctrl -l | grep -q \"{title}\" && break; sleep 0.1; done; sleep 1', shell=True)"


BROWSER = [launch("google-chrome", "--remote-debugging-port=1337"), launch("socat", "tcp-listen:9222,fork", "tcp:localhost:1337")]
OPENED = {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["file:///usr/share/", "file:///usr/"]}}
TASKS: dict[str, tuple[dict[str, Any], list[str]]] = {
    # A file of the machine against one from elsewhere, a command's output, a directory, and the screen: all have to be right.
    "office": (
        {
            "config": [launch("mousepad", "/home/user/Documents/letter.txt")],
            "evaluator": {
                "func": ["compare_text_file", "exact_match", "check_moved_jpgs", "check_include_exclude", "exact_match"],
                "conj": "and",
                "result": [
                    {"type": "vm_file", "path": "/home/user/Documents/letter.txt", "dest": "letter.txt"},
                    {"type": "vm_command_line", "command": ["wc", "-l", "/home/user/Documents/letter.txt"]},
                    {"type": "list_directory", "path": "/home/user/Documents"},
                    {"type": "vm_command_line", "command": "grep -c Ben ~/Documents/letter.txt; ls /absent 2>&1", "shell": True},
                    {"type": "vm_screen_size"},
                ],
                "expected": [
                    {"type": "cloud_file", "path": letter, "dest": "wanted.txt"}, rule(expected="2 /home/user/Documents/letter.txt\n"), rule(expected=["letter.txt"]),
                    rule(include=["1\n"], exclude=["2\n"]), rule(expected={"width": 1280, "height": 800}),
                ],
                "options": [{}, None, None, None, None],
            },
        },
        [waited("letter.txt"), "pyautogui.click(640, 300); pyautogui.write('Dear Ben, 3 < 4\\nsee you on Friday é\\n'); pyautogui.hotkey('ctrl', 's')"],
    ),
    # The open tabs, by the browser's debugging port of this branch.
    "tabs": (
        {
            "config": [*BROWSER, OPENED],
            "evaluator": {"func": "is_expected_tabs", "result": {"type": "open_tabs_info"}, "expected": rule(type="url", urls=["file:///usr/share/", "file:///etc/"])},
        },
        ["pyautogui.hotkey('ctrl', 'l'); pyautogui.typewrite('file:///etc/\\n')", waited("/etc/ - Chromium")],
    ),
    # The page in front, by the accessibility tree, in which OSWorld looks for Google Chrome.
    "front": (
        {
            "config": [*BROWSER, OPENED, {"type": "activate_window", "parameters": {"window_name": "Google Chrome"}}],
            "evaluator": {
                "func": ["is_expected_active_tab", "check_accessibility_tree"],
                "result": [{"type": "active_url_from_accessTree", "goto_prefix": "file://"}, {"type": "accessibility_tree"}],
                "expected": [
                    rule(type="url", url="file:///usr/share/"),
                    {"type": "rule", "rules": [{"selectors": ["application[name=Google\\ Chrome] entry[name=Address\\ and\\ search\\ bar]"], "text": "/usr/share/", "exact": True}]},
                ],
            },
        },
        ["pyautogui.hotkey('ctrl', 'shift', 'tab')", waited("/usr/share/ - Chromium")],
    ),
    # What the browser has in its profile, which evaluators read when it has been ended by Chrome's name and started anew.
    "bookmark": (
        {
            "config": [*BROWSER, OPENED],
            "evaluator": {
                "postconfig": [launch("pkill", "chrome"), *BROWSER, {"type": "sleep", "parameters": {"seconds": 3}}],
                "func": "is_expected_bookmarks",
                "result": {"type": "bookmarks"},
                "expected": rule(type="bookmark_bar_websites_urls", urls=["file:///usr/share/"]),
            },
        },
        [
            "pyautogui.hotkey('ctrl', 'l'); pyautogui.typewrite('file:///usr/share/\\n')",
            waited("/usr/share/ - Chromium"),
            # Another folder than the one that is proposed, chosen in a dialog of its own.
            "pyautogui.hotkey('ctrl', 'd'); time.sleep(2); pyautogui.press('tab'); pyautogui.press('down'); time.sleep(2)",
            "pyautogui.click(438, 277); time.sleep(1); pyautogui.click(877, 641); time.sleep(1)",
        ],
    ),
    # What a terminal shows, and the clipboard.
    "terminal": (
        {
            "config": [launch("xfce4-terminal", "--title=shell")],
            "evaluator": {
                "func": ["check_include_exclude", "is_in_vm_clickboard"],
                "result": [{"type": "vm_terminal_output"}, rule(expected=["copied by hand"])],
                "expected": [rule(include=["42 of them"], exclude=["not found"]), {"type": "vm_command_line", "command": ["python", "-c", "import pyperclip; print(pyperclip.paste())"]}],
            },
        },
        [waited("shell"), "pyautogui.write('clear; echo $((6*7)) of them; echo copied by hand | xclip -selection clipboard -i\\n'); time.sleep(1)"],
    ),
}

told: dict[str, Any] = {"scores": {}, "resets": [], "evaluations": []}
# The client prints what it compares.
with contextlib.redirect_stdout(sys.stderr):
    env = environment(name, snapshot_name="init_state", action_space="pyautogui", cache_dir=str(directory / "cache"), headless=True, require_a11y_tree=False)
    for number, (task, (config, actions)) in enumerate(TASKS.items()):
        began = time.monotonic()
        env.reset(task_config={"id": f"{task}-{number}", "instruction": task, **config})
        env.controller.retry_interval = 0.2
        told["resets"].append(time.monotonic() - began)
        before = env.evaluate()
        for action in actions:
            env.step(action, pause=1)
        (directory / f"{task}.png").write_bytes(env.controller.get_screenshot())
        began = time.monotonic()
        told["scores"][task] = [before, env.evaluate()]
        told["evaluations"].append(time.monotonic() - began)
        if task == "bookmark":
            told["visited"] = [url for url, _, _ in getters.get_history(env, {"dest": "history"})]
    # Nothing but the fork: a reset without a task to prepare.
    for _ in range(3):
        env.step("pyautogui.press('x')", pause=0)
        began = time.monotonic()
        env._revert_to_snapshot()
        env._start_emulator()
        told["resets"].append(time.monotonic() - began)
    env.close()
print(json.dumps(told))
