#!/bin/bash
# Before the pod is stopped: let the server drain, and wait for it.
pid=$(cat /tmp/server.pid) && kill -TERM "$pid" || exit 0
while kill -0 "$pid" 2>/dev/null; do sleep 1; done
