"""Run by the Python of the client cua: what it makes of the portal's answers. Arguments: `loopback`, or `token HOST TOKEN WORKSPACE`."""

import asyncio
import io
import sys

from computer import Computer
from computer.interface.linux import LinuxComputerInterface
from PIL import Image


async def drive(one):
    size = await one.get_screen_size()
    picture = Image.open(io.BytesIO(await one.screenshot()))
    assert picture.size[0] <= size["width"] and size["width"] > 100, (picture.size, size)
    await one.left_click(10, 20)
    await one.double_click(11, 21)
    await one.move_cursor(30, 40)
    await one.drag_to(50, 60)
    await one.drag([(1, 2), (3, 4)])
    await one.scroll_down(3)
    await one.scroll(0, 2)
    await one.type_text("plain")
    await one.type_text("caf\u00e9")  # by the clipboard, and its Command+V
    await one.press("enter")
    await one.hotkey("ctrl", "shift", "t")
    result = await one.run_command("printf x")
    assert (result.stdout, result.returncode) == ("hello\n", 0), result.stdout
    await one.write_text("/home/user/cua.txt", "one\n")
    assert await one.read_text("/home/user/cua.txt") == "one\n"
    assert await one.file_exists("/home/user/cua.txt") and await one.directory_exists("/home/user") and not await one.file_exists("/home/user")
    assert "cua.txt" in await one.list_dir("/home/user")
    await one.delete_file("/home/user/cua.txt")
    assert not await one.file_exists("/home/user/cua.txt")
    try:
        await one.read_bytes("/home/user/cua.txt")
        raise SystemExit("it was removed")
    except RuntimeError as error:
        assert "there is no" in str(error), error


async def main():
    if sys.argv[1] == "loopback":
        async with Computer(os_type="linux", use_host_computer_server=True, telemetry_enabled=False) as computer:
            await drive(computer.interface)
    else:
        host, token, workspace = sys.argv[2:]
        one = LinuxComputerInterface(host, api_key=token, vm_name=workspace)
        await one.wait_for_ready(timeout=10)
        await drive(one)
        one.close()
    print("ok")


asyncio.run(main())
