# The server's image: one binary on a glibc base without a shell.
#
#     docker build --tag n5-server .
#     docker run --rm --read-only -p 8080:8080 -v /path/to/my.n5:/data:ro n5-server /data
#
# Both bases must have the same Debian release, because the binary links against glibc.
# docs/DEPLOYMENT.md: how to run it, and how to build it without a container engine.
ARG BUILD_IMAGE=docker.io/library/rust:1.95-bookworm
ARG RUNTIME_IMAGE=gcr.io/distroless/cc-debian12:nonroot
# Builds Neuroglancer for /viewer/. `--build-arg VIEWER=viewer-none` leaves it out, and needs no such image.
ARG VIEWER_IMAGE=docker.io/library/node:22-bookworm-slim
ARG VIEWER=viewer-built

FROM ${BUILD_IMAGE} AS build
# Unset: as many jobs as there are cores.
ARG CARGO_BUILD_JOBS
ENV CARGO_HOME=/usr/local/cargo CARGO_INCREMENTAL=0 CARGO_TERM_COLOR=never
WORKDIR /src
COPY . .
# Dependencies and their objects stay in caches of the build machine, so that a changed source
# file compiles this crate alone.
RUN --mount=type=cache,id=n5-server-registry,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,id=n5-server-target,target=/src/target,sharing=locked \
    cargo build --release --locked --bin n5-server \
 && install -D -m 0755 target/release/n5-server /out/usr/local/bin/n5-server \
 && install -D -m 0644 LICENSE /out/usr/share/doc/n5-server/LICENSE \
 && install -d -m 0755 /out/data

FROM ${VIEWER_IMAGE} AS viewer-built
WORKDIR /viewer
COPY viewer .
RUN --mount=type=cache,id=n5-server-npm,target=/root/.npm,sharing=locked \
    ./build \
 && install -d -m 0755 /out/usr/share/n5-server \
 && mv dist /out/usr/share/n5-server/viewer

# Nothing: the server finds no index.html, and does without.
FROM ${BUILD_IMAGE} AS viewer-none
RUN install -d -m 0755 /out/usr/share/n5-server/viewer

FROM ${VIEWER} AS viewer

FROM ${RUNTIME_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="n5-server" \
      org.opencontainers.image.description="Serves N5 containers over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/ /
COPY --from=viewer /out/ /
# Loopback, the default elsewhere, could not be reached from outside the container.
ENV N5_SERVER__LISTEN=0.0.0.0:8080 \
    N5_SERVER__VIEWER=/usr/share/n5-server/viewer
EXPOSE 8080
# A number, so that Kubernetes can check `runAsNonRoot` without looking into /etc/passwd.
USER 65532:65532
# No shell and no curl here: the binary asks itself at the address it is configured with.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/n5-server", "--healthcheck"]
# Without arguments the server shows the demonstration container that is built into it.
ENTRYPOINT ["/usr/local/bin/n5-server"]
