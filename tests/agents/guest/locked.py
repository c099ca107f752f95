"""locked.py MODIFIERS GROUP: lock just these modifiers (bits as X has them) and this layout of the keyboard, counted from 0, as a person can."""

import ctypes
import sys

x11 = ctypes.CDLL("libX11.so.6")
x11.XOpenDisplay.restype = ctypes.c_void_p
x11.XOpenDisplay.argtypes = [ctypes.c_char_p]
x11.XkbLockModifiers.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint]
x11.XkbLockGroup.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
x11.XCloseDisplay.argtypes = [ctypes.c_void_p]
display = x11.XOpenDisplay(None)
x11.XkbLockModifiers(display, 0x100, 0xFF, int(sys.argv[1]))
x11.XkbLockGroup(display, 0x100, int(sys.argv[2]))
x11.XCloseDisplay(display)
