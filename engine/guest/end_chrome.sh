#!/bin/sh
# `pkill chrome` and `pgrep chrome` find Chromium, too. Tasks end the browser so that it writes down what it knows, and start it anew without waiting:
# until it has ended, chrome.sh waits.
name=${0##*/}
named=
for word do
    shift
    case $word in
        chrome|google-chrome) named=1 word='chrom(e|ium)' ;;
    esac
    set -- "$@" "$word"
done
if [ -z "$named" ] || [ "$name" != pkill ] || [ $# -ne 1 ]; then
    exec "/usr/bin/$name" "$@"
fi
exec flock -w 6 "${XDG_RUNTIME_DIR:-$HOME}/.browser-ends" sh -c '
    /usr/bin/pkill "$0" || exit
    for look in $(seq 50); do
        /usr/bin/pgrep -x chromium >/dev/null || break
        sleep 0.1
    done
' "$1"
