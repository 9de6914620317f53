# A host of workers or of Spark: the project, installed from its wheel, and what can give its processes a wrong clock.
ARG DEPS
FROM ${DEPS}
LABEL crashproof=image
COPY wheel/ crashproof /tmp/wheel/
RUN python3.11 -m zipfile -e /tmp/wheel/*.whl /usr/local/lib/python3.11/dist-packages \
    && install -m 755 /tmp/wheel/crashproof /usr/local/bin/crashproof \
    && rm -r /tmp/wheel \
    && cd /usr/local/lib/python3.11/dist-packages \
    && tcc -nostdlib -shared -o /usr/local/lib/crashproof-clock.so harness/worlds/containers/clock.c \
    && python3.11 -m compileall -q --invalidation-mode unchecked-hash store harness scenarios reports
