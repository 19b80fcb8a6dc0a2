#!/bin/sh
# mmdebstrap customize hook: bootstrap.sh ROOT BASE_TAR 'BASE PACKAGES' 'NODE PACKAGES'
# Installs the base packages, writes BASE_TAR from what is there, then installs the node packages; mmdebstrap packs the rest.
# Two separate bootstraps unpack the same base twice and take more than double the time.
set -eu

root=$1 base_tar=$2 base_packages=$3 node_packages=$4
APT_CONFIG=$MMDEBSTRAP_APT_CONFIG
export APT_CONFIG

install_packages() {
  set -f
  # shellcheck disable=SC2086 # a list of package names
  apt-get -qq --yes -o DPkg::Chroot-Directory="$root" -o DPkg::Use-Pty=0 \
    -o DPkg::Options::=--force-unsafe-io \
    -o DPkg::Options::=--path-exclude=/usr/share/doc/* \
    -o DPkg::Options::=--path-exclude=/usr/share/man/* \
    -o DPkg::Options::=--path-exclude=/usr/share/locale/* \
    -o DPkg::Options::=--path-exclude=/usr/share/docker.io/* \
    -o DPkg::Options::=--path-exclude=/usr/bin/ctr \
    -o DPkg::Options::=--path-exclude=/usr/bin/dnet \
    -o DPkg::Options::=--path-exclude=/usr/bin/containerd-shim \
    -o DPkg::Options::=--path-exclude=/usr/bin/containerd-shim-runc-v1 \
    -o DPkg::Options::=--path-exclude=/usr/sbin/ovrouter \
    install $1
  set +f
}

install_packages "$base_packages"
rm -rf "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/lib/*/gconv
tar -C "$root" --one-file-system --numeric-owner --sort=name \
  --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' --exclude='./tmp/*' \
  --exclude='./var/cache/*' --exclude='./var/lib/apt/lists/*' --exclude='./var/lib/dpkg/info/*' --exclude='./var/log/*' \
  --exclude='./usr/lib/*/perl-base' --exclude='./usr/bin/perl*' --exclude='./usr/lib/python3.*/pydoc_data' \
  --exclude='./usr/lib/python3.*/test' \
  -cf "$base_tar" .
install_packages "$node_packages"
# No key that a package made: it would be the same on every node, and another one in every build.
rm -rf "$root"/usr/lib/*/gconv "$root"/etc/ssh/ssh_host_*
