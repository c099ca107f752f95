"""Print which modifiers are locked, as a number: bits as X has them."""

import ctypes


class State(ctypes.Structure):
    _fields_ = [
        ("group", ctypes.c_ubyte), ("locked_group", ctypes.c_ubyte), ("base_group", ctypes.c_ushort), ("latched_group", ctypes.c_ushort),
        ("mods", ctypes.c_ubyte), ("base_mods", ctypes.c_ubyte), ("latched_mods", ctypes.c_ubyte), ("locked_mods", ctypes.c_ubyte),
        ("rest", ctypes.c_ubyte * 16),
    ]  # fmt: skip


x11 = ctypes.CDLL("libX11.so.6")
x11.XOpenDisplay.restype = ctypes.c_void_p
x11.XOpenDisplay.argtypes = [ctypes.c_char_p]
x11.XkbGetState.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.POINTER(State)]
display = x11.XOpenDisplay(None)
state = State()
x11.XkbGetState(display, 0x100, ctypes.byref(state))
print(state.locked_mods)
