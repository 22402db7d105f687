#!/bin/sh
# Runs a command with a container engine of its own, and leaves nothing of it behind.
#
#   scripts/with_docker.sh [--podman] COMMAND [ARGUMENT...]
#
# Starts dockerd (with --podman, or where only that is installed: podman's service) below a fresh folder in /tmp,
# exports DOCKER_HOST for COMMAND, and removes containers, daemon, mounts and the folder when COMMAND ends or this script
# is interrupted. Needs root, but neither systemd nor a network. The exit status is COMMAND's; 3 where no engine could be
# started.
set -u

say() { printf 'with_docker: %s\n' "$*" >&2; }
die() { say "$*"; exit 3; }

engine=""
if [ "${1:-}" = --podman ]; then engine=podman; shift; fi
[ $# -gt 0 ] || { say "usage: scripts/with_docker.sh [--podman] COMMAND [ARGUMENT...]"; exit 2; }

PATH=$PATH:/usr/sbin:/sbin
if [ -z "$engine" ]; then
    if command -v dockerd >/dev/null 2>&1; then engine=docker; else engine=podman; fi
fi
if [ "$engine" = docker ]; then program=dockerd; else program=podman; fi
command -v "$program" >/dev/null 2>&1 ||
    die "no container engine here; install one: apt install --no-install-recommends docker.io (or podman)"
[ "$(id -u)" = 0 ] || die "a private container engine needs root; set DOCKER_HOST to a running one instead"

folder=$(mktemp -d /tmp/kw-docker.XXXXXX) || die "cannot make a folder in /tmp"
socket=$folder/engine.sock
groups=$(basename "$folder" | tr -d .) # its control groups have a parent of their own, so that they can be removed
daemon=""
command=""
options="--root $folder/root --runroot $folder/run --tmpdir $folder/tmp --cgroup-manager cgroupfs --events-backend file"
if command -v runc >/dev/null 2>&1; then options="$options --runtime runc"; fi # crun refuses hybrid control groups
export CONTAINERS_CONF="$folder/containers.conf" # for podman: otherwise it keeps locks in /dev/shm and /etc

# Every process whose command line names the folder: the daemon's helpers, should it have died without ending them.
helpers() {
    for line in /proc/[0-9]*/cmdline; do
        pid=${line#/proc/}; pid=${pid%/cmdline}
        [ "$pid" = $$ ] && continue
        if { tr '\0' ' ' <"$line"; } 2>/dev/null | grep -qF -e "$folder/"; then echo "$pid"; fi
    done
}

clean() {
    trap '' EXIT HUP INT TERM
    if [ -n "$command" ] && kill -0 "$command" 2>/dev/null; then
        kill -TERM "$command" 2>/dev/null
        wait "$command" 2>/dev/null
    fi
    if [ "$engine" = podman ]; then
        # shellcheck disable=SC2086
        podman $options rm --all --force --time 0 >/dev/null 2>&1
    elif [ -n "$daemon" ] && command -v docker >/dev/null 2>&1; then
        left=$(docker -H "unix://$socket" ps --all --quiet 2>/dev/null)
        # shellcheck disable=SC2086
        [ -z "$left" ] || docker -H "unix://$socket" rm --force $left >/dev/null 2>&1
    fi
    if [ -n "$daemon" ]; then kill -TERM "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null; fi
    for pid in $(helpers); do kill -KILL "$pid" 2>/dev/null; done
    awk -v folder="$folder/" 'index($2, folder) == 1 { print $2 }' /proc/self/mounts | sort -r | while read -r mount; do
        umount -l "$mount" 2>/dev/null
    done
    find /sys/fs/cgroup -depth -type d \( -path "*/$groups*" -o -path "*/libpod_parent*" \) -exec rmdir {} + 2>/dev/null
    rm -rf "$folder" || say "could not remove $folder"
}
trap clean EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

start_docker() {
    dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" --host "unix://$socket" \
        --config-file "$folder/daemon.json" --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "$groups" \
        --containerd-namespace "$groups" --containerd-plugins-namespace "$groups-plugins" \
        --bridge none --iptables=false --ip6tables=false --ip-forward=false >"$folder/log" 2>&1 &
    daemon=$!
}

start_podman() {
    # shellcheck disable=SC2086
    podman $options system service --time 0 "unix://$socket" >"$folder/log" 2>&1 &
    daemon=$!
}

# gVisor, where it is installed: containers may then ask for the runtime "runsc".
if command -v runsc >/dev/null 2>&1; then
    printf '{"runtimes": {"runsc": {"path": "%s", "runtimeArgs": ["--network=none", "--host-uds=open"]}}}\n' "$(command -v runsc)"
else
    printf '{}\n'
fi >"$folder/daemon.json"

printf '[engine]\nlock_type = "file"\n[network]\nnetwork_config_dir = "%s"\n' "$folder/networks" >"$CONTAINERS_CONF"

"start_$engine"
tries=0
until [ -S "$socket" ]; do # requests wait there until it is ready
    tries=$((tries + 1))
    if ! kill -0 "$daemon" 2>/dev/null || [ "$tries" -gt 300 ]; then
        tail -n 5 "$folder/log" >&2
        die "$program did not start"
    fi
    sleep 0.1
done

export DOCKER_HOST="unix://$socket"
exec 3<&0 # a shell gives its background commands no standard input otherwise
"$@" <&3 3<&- &
command=$!
exec 3<&-
wait "$command"
status=$?
command=""
exit "$status"
