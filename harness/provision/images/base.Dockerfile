# Debian with Java and Python, from a registry. Where none is in reach, debootstrap makes the same of the same packages.
ARG DEBIAN=debian:bookworm-slim@sha256:96e378d7e6531ac9a15ad505478fcc2e69f371b10f5cdf87857c4b8188404716
FROM ${DEBIAN}
ARG RECIPE
LABEL crashproof=image crashproof.recipe=${RECIPE}
ARG PACKAGES="ca-certificates openjdk-17-jre-headless procps python3.11 tcc"
COPY trim.sh /tmp/trim.sh
# Java's packages write links into the directory of manuals, which the slim image lacks.
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ${PACKAGES} \
    && sh /tmp/trim.sh / \
    && rm /tmp/trim.sh
