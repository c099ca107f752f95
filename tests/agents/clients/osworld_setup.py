"""Steps of OSWorld's SetupController: `PORT CHROMIUM_PORT FILE`. Chromium is started as OSWorld's own tasks start it."""

from __future__ import annotations

import sys
import tempfile

import osworld_stubs

osworld_stubs.install()

from desktop_env.controllers.setup import SetupController  # noqa: E402

port, chromium, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with tempfile.TemporaryDirectory() as cache:
    controller = SetupController("127.0.0.1", port, chromium, 8080, cache)
    done = controller.setup([
        {"type": "upload_file", "parameters": {"files": [{"local_path": file, "path": "/home/user/Documents/new folder/report.txt"}]}},
        {"type": "open", "parameters": {"path": "/home/user/Documents/new folder/report.txt"}},
        {"type": "activate_window", "parameters": {"window_name": "report.txt"}},
        {"type": "close_window", "parameters": {"window_name": "report.txt"}},
        {"type": "change_wallpaper", "parameters": {"path": "/usr/share/backgrounds/xfce/xfce-x.svg"}},
        {"type": "launch", "parameters": {"command": ["google-chrome", "--remote-debugging-port=1337"]}},
        {"type": "launch", "parameters": {"command": ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]}},
        {"type": "execute_with_verification", "parameters": {"command": ["true"], "verification": {"window_exists": "Chromium"}, "max_wait_time": 60}},
        {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["data:text/html,<title>first tab</title>"]}},
        {"type": "execute", "parameters": {"command": ["python", "-c", "import pyautogui; pyautogui.moveTo(33, 44)"]}},
    ])  # fmt: skip
print("done" if done else "not done")
