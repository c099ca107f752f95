"""Runs inside the desktop: appends a number a second to ~/count and shows it. A number in ~/jump is added once."""

import pathlib
import time

HOME = pathlib.Path.home()
number = 0
while True:
    jump = HOME / "jump"
    if jump.exists():
        number += int(jump.read_text())
        jump.unlink()
    number += 1
    with open(HOME / "count", "a", encoding="utf-8") as file:
        print(number, file=file)
    print(f"counter {number}", flush=True)
    time.sleep(1)
