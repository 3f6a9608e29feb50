#!/usr/bin/env bash
# pack.sh TREE OUT NAME: archive TREE into pieces OUT/NAME-00/part.00, ... of at most 54 MiB
set -euo pipefail
tree=$1; out=$2; name=$3; tmp=$(mktemp -d)
tar --sort=name --owner=0 --group=0 -C "$tree" -cf - . | zstd -T2 -12 -q | split -b 54m -d -a 2 - "$tmp/part."
mkdir -p "$out"; rm -rf "$out/$name"-*
for p in "$tmp"/part.*; do n=${p##*.}; mkdir -p "$out/$name-$n"; mv "$p" "$out/$name-$n/$name.$n"; done
rmdir "$tmp"; ls -la "$out"/"$name"-*
