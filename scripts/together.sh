#!/bin/sh
# Runs a command in a session of its own, which ends with this script: when make is ended it tells this script alone, and
# a shell heeds a signal only where it waits for what it started in the background.
set -u

child=""
end() {
    trap '' INT TERM HUP
    if [ -n "$child" ]; then
        kill -TERM "-$child" 2>/dev/null || kill -TERM "$child" 2>/dev/null
        wait "$child"
    fi
    exit "$1"
}
trap 'end 130' INT
trap 'end 143' TERM
trap 'end 129' HUP

setsid "$@" &
child=$!
wait "$child"
