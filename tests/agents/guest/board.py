"""A window over the whole screen, above the panel and without a frame, that paints each pixel that is clicked. It follows the screen's size.

Its colours are one for the ground and one for what was clicked, so that a picture of the screen tells where clicks landed.
"""

import ctypes

GROUND, CLICKED = 0x204060, 0xFFFFFF
_BACK_PIXEL, _OVERRIDE_REDIRECT, _EVENT_MASK = 1 << 1, 1 << 9, 1 << 11
_PRESS, _STRUCTURE = 1 << 2, 1 << 17
_BUTTON_PRESS, _CONFIGURE = 4, 22
_Handle = ctypes.c_ulong


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("background_pixmap", _Handle), ("background_pixel", _Handle), ("border_pixmap", _Handle), ("border_pixel", _Handle),
        ("bit_gravity", ctypes.c_int), ("win_gravity", ctypes.c_int), ("backing_store", ctypes.c_int), ("backing_planes", _Handle),
        ("backing_pixel", _Handle), ("save_under", ctypes.c_int), ("event_mask", ctypes.c_long), ("do_not_propagate", ctypes.c_long),
        ("override_redirect", ctypes.c_int), ("colormap", _Handle), ("cursor", _Handle),
    ]  # fmt: skip


class _Event(ctypes.Union):
    class _Button(ctypes.Structure):
        _fields_ = [
            ("type", ctypes.c_int), ("serial", _Handle), ("sent", ctypes.c_int), ("display", ctypes.c_void_p), ("window", _Handle),
            ("root", _Handle), ("child", _Handle), ("time", _Handle), ("x", ctypes.c_int), ("y", ctypes.c_int),
        ]  # fmt: skip

    class _Configure(ctypes.Structure):
        _fields_ = [
            ("type", ctypes.c_int), ("serial", _Handle), ("sent", ctypes.c_int), ("display", ctypes.c_void_p), ("event", _Handle),
            ("window", _Handle), ("x", ctypes.c_int), ("y", ctypes.c_int), ("width", ctypes.c_int), ("height", ctypes.c_int),
        ]  # fmt: skip

    _fields_ = [("type", ctypes.c_int), ("button", _Button), ("configure", _Configure), ("room", ctypes.c_long * 24)]


def _library() -> ctypes.CDLL:
    x = ctypes.CDLL("libX11.so.6")
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("XOpenDisplay", pointer, [ctypes.c_char_p]), ("XDefaultRootWindow", _Handle, [pointer]), ("XDisplayWidth", number, [pointer, number]),
        ("XDisplayHeight", number, [pointer, number]), ("XMapRaised", number, [pointer, _Handle]), ("XNextEvent", number, [pointer, pointer]),
        ("XCreateWindow", _Handle, [pointer, _Handle, number, number, number, number, number, number, number, pointer, _Handle, pointer]),
        ("XSelectInput", number, [pointer, _Handle, ctypes.c_long]), ("XCreateGC", pointer, [pointer, _Handle, _Handle, pointer]),
        ("XSetForeground", number, [pointer, pointer, _Handle]), ("XDrawPoint", number, [pointer, _Handle, pointer, number, number]),
        ("XResizeWindow", number, [pointer, _Handle, number, number]), ("XFlush", number, [pointer]),
    ):  # fmt: skip
        function = getattr(x, name)
        function.restype, function.argtypes = result, arguments
    return x


def main() -> None:
    x = _library()
    display = x.XOpenDisplay(None)
    root = x.XDefaultRootWindow(display)
    attributes = _Attributes(background_pixel=GROUND, event_mask=_PRESS, override_redirect=1)
    wide, high = x.XDisplayWidth(display, 0), x.XDisplayHeight(display, 0)
    window = x.XCreateWindow(display, root, 0, 0, wide, high, 0, 0, 0, None, _BACK_PIXEL | _OVERRIDE_REDIRECT | _EVENT_MASK, ctypes.byref(attributes))
    x.XSelectInput(display, root, _STRUCTURE)
    pen = x.XCreateGC(display, window, 0, None)
    x.XSetForeground(display, pen, CLICKED)
    x.XMapRaised(display, window)
    event = _Event()
    while True:
        x.XNextEvent(display, ctypes.byref(event))
        if event.type == _BUTTON_PRESS:
            x.XDrawPoint(display, window, pen, event.button.x, event.button.y)
        elif event.type == _CONFIGURE and event.configure.window == root:
            x.XResizeWindow(display, window, event.configure.width, event.configure.height)
        x.XFlush(display)


main()
