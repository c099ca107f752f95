"""Steps of OSWorld's SetupController: `PORT CHROMIUM_PORT FILE URL`, the last of something to download. Chromium is started as OSWorld's own tasks start it."""

from __future__ import annotations

import sys
import tempfile

import osworld_stubs

osworld_stubs.install()

from desktop_env.controllers.setup import SetupController  # noqa: E402

port, chromium, file, url = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
with tempfile.TemporaryDirectory() as cache:
    controller = SetupController("127.0.0.1", port, chromium, 8080, cache)
    done = controller.setup([
        {"type": "upload_file", "parameters": {"files": [{"local_path": file, "path": "/home/user/Documents/new folder/report.txt"}]}},
        {"type": "download", "parameters": {"files": [{"url": url, "path": "/home/user/Downloads/letter.txt"}]}},
        {"type": "command", "parameters": {"command": "echo once more >>~/tries; wc -l <~/tries", "shell": True, "until": {"stdout": "3"}}},
        {"type": "open", "parameters": {"path": "/home/user/Documents/new folder/report.txt"}},
        {"type": "activate_window", "parameters": {"window_name": "report.txt"}},
        {"type": "close_window", "parameters": {"window_name": "report.txt"}},
        {"type": "change_wallpaper", "parameters": {"path": "/usr/share/backgrounds/xfce/xfce-x.svg"}},
        {"type": "launch", "parameters": {"command": ["google-chrome", "--remote-debugging-port=1337"]}},
        {"type": "launch", "parameters": {"command": ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]}},
        {"type": "execute_with_verification", "parameters": {"command": ["true"], "verification": {"window_exists": "Chromium"}, "max_wait_time": 60}},
        {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["data:text/html,<title>first tab</title>", "file:///usr/"]}},
        {"type": "chrome_close_tabs", "parameters": {"urls_to_close": ["file:///usr/"]}},
        {"type": "execute", "parameters": {"command": ["python", "-c", "import pyautogui; pyautogui.moveTo(33, 44)"]}},
    ])  # fmt: skip
print("done" if done else "not done")
