#!/bin/sh
# Entry point of a lab node: makes the cgroups writable, places the keys, starts sshd and dockerd, ends when one of them does.
set -eu

say() { echo "lab-node: $*" >&2; }

# runc mounts these read-only without --privileged; the engine inside must write them. The node has its own mount namespace.
mount -o remount,rw /proc/sys
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  # cgroup v2: a cgroup with member processes cannot hand its controllers down, so the processes move into a leaf first.
  mount -o remount,bind,rw /sys/fs/cgroup
  mkdir -p /sys/fs/cgroup/lab-node
  while read -r pid; do
    echo "$pid" >/sys/fs/cgroup/lab-node/cgroup.procs 2>/dev/null || say "process $pid stays in the root cgroup"
  done </sys/fs/cgroup/cgroup.procs
  read -r controllers </sys/fs/cgroup/cgroup.controllers
  for controller in $controllers; do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || say "controller $controller is not handed down"
  done
else
  # cgroup v1 or hybrid: the tmpfs and every hierarchy below it.
  mount -o remount,bind,rw /sys/fs/cgroup
  for hierarchy in /sys/fs/cgroup/*; do
    if [ -d "$hierarchy" ] && [ ! -L "$hierarchy" ]; then
      mount -o remount,bind,rw "$hierarchy" 2>/dev/null || say "$hierarchy stays read-only"
    fi
  done
fi

# sshd wants its keys owned by root; the mounted files belong to the controller's user.
install -d -m 0755 /run/sshd /run/lab-ssh
install -m 0600 -o root -g root /etc/trispark-lab/ssh_host_ed25519_key /run/lab-ssh/ssh_host_ed25519_key
install -m 0644 -o root -g root /etc/trispark-lab/authorized_keys /run/lab-ssh/authorized_keys

# A lab whose checkpoint is shared over FUSE: the head lets the workers' key read, the workers know the head.
for name in share_authorized_keys share_known_hosts; do
  if [ -e "/etc/trispark-lab/$name" ]; then
    install -m 0644 -o root -g root "/etc/trispark-lab/$name" "/run/lab-ssh/$name"
  fi
done
if [ -e /etc/trispark-lab/share_key ]; then
  install -m 0600 -o root -g root /etc/trispark-lab/share_key /run/lab-ssh/share_key
  [ -e /dev/fuse ] || mknod -m 0666 /dev/fuse c 10 229
fi

# Whatever the controller's engine passes on for its own downloads, the lab's registry is reached directly.
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY

children=
finish() {
  trap - TERM INT
  # shellcheck disable=SC2086 # a list of process ids
  kill -TERM $children 2>/dev/null || true
  wait
  exit "$1"
}
trap 'finish 0' INT TERM
trap 'finish 1' USR1

# Each child tells this shell when it ends: a node without its engine or its sshd is no node.
run() {
  (
    trap - TERM INT USR1
    "$@" &
    child=$!
    trap 'kill -TERM "$child" 2>/dev/null || true' TERM
    status=0
    wait "$child" || status=$?
    wait "$child" 2>/dev/null || true
    say "$1 ended with status $status"
    kill -USR1 $$ 2>/dev/null || true
  ) &
  children="$children $!"
}

# In place of the boot unit that a node with systemd has: the agent waits for the engine, at most a minute, and cleans up what
# the node's last end left. A node without the agent, as at its first start, has nothing to clean up.
agent=/var/lib/trispark/bin/trispark-node
at_boot() {
  [ -x "$agent" ] || return 0
  timeout -k 10 900 "$agent" at-boot --lines </dev/null >&2 || say "at-boot ended with status $?"
}

run /usr/sbin/dockerd
run /usr/sbin/sshd -D -e
(trap - TERM INT USR1; at_boot) &
children="$children $!"
wait
