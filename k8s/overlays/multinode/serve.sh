#!/bin/bash
# What the launcher runs on rank 0. Its process id is for drain.sh: mpirun itself gives a job no time to drain.
echo $$ >/tmp/server.pid
exec inferwire serve
