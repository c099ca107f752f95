"""LibreOffice with a document that was never saved."""

from __future__ import annotations

import zipfile
from pathlib import Path

import uno
from com.sun.star.beans import PropertyValue

from application import HOME, alive, background, expect, log, main, wait_for

_FIRST = "Typed before the fork. "


def _desktop():
    local = uno.getComponentContext()
    resolver = local.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", local)
    context = resolver.resolve("uno:pipe,name=tclone;urp;StarOffice.ComponentContext")
    return context.ServiceManager.createInstanceWithContext("com.sun.star.frame.Desktop", context)


def _document():
    return _desktop().getCurrentComponent()


def start() -> None:
    HOME.mkdir(exist_ok=True)
    background("screen", "Xvfb", ":7", "-screen", "0", "1024x768x24", "-nolisten", "tcp")
    wait_for("the screen", Path("/tmp/.X11-unix/X7").exists)
    background(
        "office", "soffice", "--writer", "--norestore", "--nologo", "--nodefault", "--accept=pipe,name=tclone;urp;",
        f"-env:UserInstallation=file://{HOME}/profile", DISPLAY=":7", HOME=str(HOME), SAL_USE_VCLPLUGIN="gen",
    )  # fmt: skip
    wait_for("the office", _desktop, seconds=180)
    _desktop().loadComponentFromURL("private:factory/swriter", "_blank", 0, ())
    wait_for("the document", _document)
    text = _document().getText()
    text.insertString(text.getEnd(), _FIRST, False)


def check(side: str) -> None:
    document = wait_for("the document", _document)
    text = document.getText()
    expect(text.getString() == _FIRST, f"the document says {text.getString()!r}")
    text.insertString(text.getEnd(), side, False)
    expect(document.isModified() and not document.hasLocation(), "the document counts as saved")
    expect(alive("office") and alive("screen"), log("office") + log("screen"))


def verify(side: str) -> None:
    document = _document()
    expect(document.getText().getString() == _FIRST + side, f"the document says {document.getText().getString()!r}")
    document.getCurrentController().getFrame().getContainerWindow().setFocus()
    document.storeAsURL(f"file://{HOME}/saved.odt", (PropertyValue("Overwrite", 0, True, 0),))
    with zipfile.ZipFile(HOME / "saved.odt") as saved:
        expect(side in saved.read("content.xml").decode(), "the saved file lacks the text")


if __name__ == "__main__":
    main(start, check, verify)
