#!/bin/sh
# `google-chrome` where there is none: Chromium.
name=${0##*/}
[ -x "/usr/bin/$name" ] && exec "/usr/bin/$name" "$@"
# One that is being ended (end_chrome.sh) would take what this one is started for, and then be gone.
flock -w 6 "${XDG_RUNTIME_DIR:-$HOME}/.browser-ends" true
exec chromium "$@"
