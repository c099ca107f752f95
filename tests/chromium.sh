#!/bin/sh
# Chromium for the tests. It heeds the last --disable-features alone, and Playwright gives one of its own, so what the tests want is added to that:
# without them each window loads two pages of the browser's own, for suggestions below an address line that nobody sees, at 0.7 s of a processor.
for word; do
    shift
    case $word in
        --disable-features=*) word=$word,WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup ;;
    esac
    set -- "$@" "$word"
done
exec /usr/bin/chromium "$@"
