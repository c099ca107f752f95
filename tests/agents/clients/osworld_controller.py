"""Every method of OSWorld's PythonController, once: `PORT DIRECTORY`. Prints what they returned as one JSON object, and leaves pictures in the directory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from desktop_env.controllers.python import PythonController

port, directory = int(sys.argv[1]), Path(sys.argv[2])
controller = PythonController("127.0.0.1", port)
controller.retry_interval = 0.2

found: dict = {
    "size": controller.get_vm_screen_size(),
    "platform": controller.get_vm_platform(),
    "desktop": controller.get_vm_desktop_path(),
    "wallpaper": controller.get_vm_wallpaper().decode(),
    "terminal": controller.get_terminal_output(),
    "python": controller.run_python_script("import sys; print(6 * 7); print('bad', file=sys.stderr); sys.exit(3)"),
    "bash": controller.run_bash_script("pwd; echo out; echo err >&2; exit 4", working_dir="/usr"),
    "late": controller.run_bash_script("sleep 60", timeout=1),
    "execute": controller.execute_python_command("print(pyautogui.size())"),
}
for action in (
    {"action_type": "MOVE_TO", "x": 640, "y": 300},
    {"action_type": "CLICK", "x": 640, "y": 300, "button": "left", "num_clicks": 1},
    {"action_type": "TYPING", "text": "<b> é 日本 ~@:'\\\n"},
    {"action_type": "PRESS", "key": "<"},
    {"action_type": "HOTKEY", "keys": ["shift", ","]},
    {"action_type": "KEY_DOWN", "key": "shift"},
    {"action_type": "PRESS", "key": "x"},
    {"action_type": "KEY_UP", "key": "shift"},
    {"action_type": "SCROLL", "dx": 1, "dy": -2},
    {"action_type": "RIGHT_CLICK", "x": 500, "y": 350},
    {"action_type": "PRESS", "key": "esc"},
    {"action_type": "MOUSE_DOWN"},
    {"action_type": "MOUSE_UP"},
    {"action_type": "DOUBLE_CLICK", "x": 900, "y": 500},
    {"action_type": "DRAG_TO", "x": 910, "y": 520},
    {"action_type": "HOTKEY", "keys": ["ctrl", "s"]},
    {"action_type": "MOVE_TO", "x": 77, "y": 99},
    "WAIT",
):
    controller.execute_action(action)
found["position"] = controller.execute_python_command("print(tuple(pyautogui.position()))")["output"]
found["window"] = controller.get_vm_window_size("mousepad")
found["tree"] = controller.get_accessibility_tree()
(directory / "screen.png").write_bytes(controller.get_screenshot())
controller.start_recording()
controller.end_recording(str(directory / "recording.mp4"))
found["listing"] = controller.get_vm_directory_tree("~/Documents")
found["file"] = controller.get_file("~/Documents/note.txt").decode()
print(json.dumps(found))
