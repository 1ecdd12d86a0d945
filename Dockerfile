# Three stages: an image without the program, to which releases add theirs; a builder with the toolchain; the image.
FROM debian:bookworm-slim AS base
RUN groupadd --gid 10001 cuckood \
    && useradd --no-create-home --uid 10001 --gid 10001 --home-dir /data --shell /usr/sbin/nologin cuckood \
    && install --directory --owner=cuckood --group=cuckood --mode=750 /data
USER 10001:10001
WORKDIR /data
VOLUME /data
# The service is reachable from other hosts, so it needs CUCKOOD__AUTH__KEYS, or a file with keys in CUCKOOD_CONFIG, which the health
# check also reads (for TLS).
# Probes and Prometheus use the second listener, whose connections other clients can't take.
ENV CUCKOOD__SERVER__LISTEN=0.0.0.0:8080 \
    CUCKOOD__SERVER__PROBE_LISTEN=0.0.0.0:8081 \
    CUCKOOD__STORAGE__PATH=/data/cuckood \
    CUCKOOD__SERVER__DRAIN_DELAY=5s
EXPOSE 8080 8081
# SIGTERM drains; give it longer than server.drain_delay, server.drain_timeout and a snapshot: docker stop --time 60.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["cuckood", "healthcheck"]
ENTRYPOINT ["cuckood"]

FROM rust:1.95-slim-bookworm AS builder
WORKDIR /src
# The dependencies: this layer remains valid until Cargo.lock or a package in `crates` changes. (The slim image has gcc, which ring,
# zstd and mimalloc need.)
COPY Cargo.toml Cargo.lock rust-toolchain.toml ./
COPY benches benches
COPY crates crates
COPY fuzz fuzz
COPY migrations migrations
COPY tools tools
RUN mkdir src \
    && touch src/lib.rs \
    && echo 'fn main() {}' >src/main.rs \
    && cargo build --profile dist --locked --bin cuckood \
    && rm -r src
COPY assets assets
COPY config.toml ./
COPY src src
RUN touch src/lib.rs src/main.rs \
    && cargo build --profile dist --locked --bin cuckood

FROM base
# Certificates for `cuckood import`, `backup` and `healthcheck --url`. The slim image has none.
COPY --from=builder /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=builder /src/target/dist/cuckood /usr/local/bin/cuckood
