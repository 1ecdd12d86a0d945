# Starts a service for shell scripts: on a free port, over a separate directory. Sourced; sets $url and $log.
# The sourcing script sets $program, and $data to a folder that it removes.

service=

# serve NAME [SETTING…]: starts a service with these settings, and waits until it is ready.
serve() {
    log=$data/$1.log
    env CUCKOOD__SERVER__LISTEN=127.0.0.1:0 CUCKOOD__STORAGE__PATH="$data/$1" CUCKOOD__STORAGE__DURABILITY=flush \
        CUCKOOD__LIMITS__MEMORY=256MiB CUCKOOD__LOG__FORMAT=json "${@:2}" "$program" serve 2>"$log" &
    service=$!
    until url=http://$(grep -m1 '"message":"listening"' "$log" | grep -o '"address":"[^"]*' | cut -d'"' -f4) &&
        "$program" healthcheck --url "$url" >/dev/null 2>&1; do
        kill -0 "$service" || { cat "$log"; exit 1; }
        sleep 0.1
    done
}

# As `serve`, with the key $key, which has all permissions.
serve_with_key() {
    local sha256
    sha256=$(printf %s "$key" | sha256sum | cut -d' ' -f1)
    serve "$@" CUCKOOD__AUTH__KEYS="[{name=\"admin\", sha256=\"$sha256\", scopes=[\"admin\"]}]"
}

# Stops it. A panic is a failure, whatever was answered.
stop() {
    [ -n "$service" ] || return 0
    kill "$service" 2>/dev/null || true
    wait "$service" || { cat "$log"; exit 1; }
    service=
    if grep -A3 panicked "$log"; then exit 1; fi
}
