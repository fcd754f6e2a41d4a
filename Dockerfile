# Image of the server: one binary on a glibc base without a shell.
#
#     docker build --tag n5-server .
#     docker run --rm --read-only -p 8080:8080 -v /path/to/my.n5:/data:ro n5-server /data
#
# Both base images must have the same Debian release, because the binary links against glibc. docs/DEPLOYMENT.md
# explains how to run the image, and how to build it without a container engine.
ARG BUILD_IMAGE=docker.io/library/rust:1.95-bookworm
ARG RUNTIME_IMAGE=gcr.io/distroless/cc-debian12:nonroot
# Builds Neuroglancer, which becomes part of the binary. With `--build-arg VIEWER=viewer-none`, neither Neuroglancer nor
# this image is needed.
ARG VIEWER_IMAGE=docker.io/library/node:22-bookworm-slim
ARG VIEWER=viewer-built

FROM ${VIEWER_IMAGE} AS viewer-built
WORKDIR /viewer
COPY viewer .
RUN --mount=type=cache,id=n5-server-npm,target=/root/.npm,sharing=locked \
    ./build

# An empty directory: the binary is built without a viewer.
FROM ${BUILD_IMAGE} AS viewer-none
RUN install -d -m 0755 /viewer/dist

FROM ${VIEWER} AS viewer

FROM ${BUILD_IMAGE} AS build
# If unset, cargo runs one job per core.
ARG CARGO_BUILD_JOBS
ENV CARGO_HOME=/usr/local/cargo CARGO_INCREMENTAL=0 CARGO_TERM_COLOR=never
WORKDIR /src
COPY . .
COPY --from=viewer /viewer/dist viewer/dist
# The cache mounts keep dependencies and their objects on the build machine, so that a change of a source file
# recompiles only the crates of this repository.
RUN --mount=type=cache,id=n5-server-registry,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,id=n5-server-target,target=/src/target,sharing=locked \
    if [ -e viewer/dist/index.html ]; then features=embed-viewer; fi \
 && cargo build --release --locked --bin n5-server --features "${features-}" \
 && install -D -m 0755 target/release/n5-server /out/usr/local/bin/n5-server \
 && install -D -m 0644 LICENSE /out/usr/share/doc/n5-server/LICENSE \
 && install -d -m 0755 /out/data \
 && install -d -m 0700 /cache

FROM ${RUNTIME_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="n5-server" \
      org.opencontainers.image.description="Serves N5 containers over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/ /
# A new volume for `cache.disk.path` gets the owner of this directory.
COPY --from=build --chown=65532:65532 /cache/ /var/cache/n5-server/
# The default address, loopback, is not reachable from outside the container.
ENV N5_SERVER__LISTEN=0.0.0.0:8080
EXPOSE 8080
# A numeric id, so that Kubernetes can check `runAsNonRoot` without reading /etc/passwd.
USER 65532:65532
# The image has neither a shell nor curl, so the binary sends the request itself, to its configured address.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/n5-server", "--healthcheck"]
# Without arguments, the server serves its embedded demo container.
ENTRYPOINT ["/usr/local/bin/n5-server"]
