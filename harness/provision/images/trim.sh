# Takes out of a Debian at $1 what no run reads, and what only the machine that made it could use.
set -eu
cd "$1"
rm -rf var/lib/apt/lists/* var/cache/apt/* var/cache/debconf/*-old var/cache/ldconfig/aux-cache var/log/*
rm -rf usr/share/doc/* usr/share/man/* usr/share/info/* usr/share/lintian/* usr/share/locale/*
rm -rf etc/apt/sources.list etc/apt/sources.list.d/* etc/machine-id tmp/hsperfdata_*
# A running container has these two from Docker and cannot remove them.
rm -f etc/hostname etc/resolv.conf 2>/dev/null || true
