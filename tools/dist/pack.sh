#!/usr/bin/env bash
# Packs files and folders: pack.sh ARCHIVE PARENT NAME…. The archive depends only on the content and SOURCE_DATE_EPOCH.
set -euo pipefail
archive=$1 parent=$2 compress=(gzip --best --no-name)
[[ $archive = *gz ]] || compress=(cat)
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX --mtime="@$SOURCE_DATE_EPOCH" --dereference --directory="$parent" "${@:3}" |
    "${compress[@]}" >"$archive"
