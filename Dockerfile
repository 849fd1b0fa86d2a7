# Builds Duralite and runs its demo: docker build -t duralite . && docker run --rm --shm-size=64m duralite
# The command is in the image too: docker run --rm -it --user "$(id -u):$(id -g)" -v "$PWD:/data" -w /data duralite duralite shell app.db

FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p duralite -p duralite-preload -p duralite-cli -p duralite-sidecar -p duralite-proof \
    && cargo build --release --locked -p duralite-demo \
    && strip --strip-unneeded target/release/libduralite.so target/release/libduralite_preload.so \
        target/release/duralite target/release/duralite-archive target/release/duralite-proof \
        target/release/duralite-demo

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y -q --no-install-recommends sqlite3 strace \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/libduralite.so /src/target/release/libduralite_preload.so \
    /src/target/release/duralite /src/target/release/duralite-archive /src/target/release/duralite-proof \
    /src/target/release/duralite-demo \
    /opt/duralite/target/release/
RUN useradd --create-home duralite && install -d -o duralite /opt/duralite/out
ENV PATH="/opt/duralite/target/release:$PATH"
USER duralite
WORKDIR /opt/duralite
CMD ["duralite-demo"]
