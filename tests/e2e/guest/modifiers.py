"""Prints how many keys the X server holds down, and its modifier mask (4 is Ctrl)."""

import ctypes

x11 = ctypes.CDLL("libX11.so.6")
x11.XOpenDisplay.restype = ctypes.c_void_p
x11.XDefaultRootWindow.argtypes = x11.XQueryKeymap.argtypes = [ctypes.c_void_p]
x11.XDefaultRootWindow.restype = ctypes.c_ulong
x11.XQueryKeymap.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
x11.XQueryPointer.argtypes = [ctypes.c_void_p, ctypes.c_ulong] + [ctypes.c_void_p] * 7
display = x11.XOpenDisplay(None)
keys = ctypes.create_string_buffer(32)
x11.XQueryKeymap(display, keys)
words = [ctypes.c_ulong() for _ in range(7)]
x11.XQueryPointer(display, x11.XDefaultRootWindow(display), *(ctypes.byref(word) for word in words))
print(sum(byte.bit_count() for byte in keys.raw), words[6].value & 0xFF)
