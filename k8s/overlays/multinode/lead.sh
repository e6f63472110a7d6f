#!/bin/bash
# Rank 0's pod: wait until every other pod's sshd answers, then start one rank on each GPU of the group.
set -euo pipefail
# inferwire-group-0.inferwire-group.inferwire: the others are called inferwire-group-0-1 and so on.
pod=${LWS_LEADER_ADDRESS%%.*}
domain=${LWS_LEADER_ADDRESS#*.}
: >/tmp/hosts
for ((index = 0; index < LWS_GROUP_SIZE; index++)); do
    host=$LWS_LEADER_ADDRESS
    ((index == 0)) || host=$pod-$index.$domain
    echo "$host slots=$GPUS_PER_POD" >>/tmp/hosts
    ((index == 0)) || until (exec 3<>"/dev/tcp/$host/2222") 2>/dev/null; do sleep 1; done
done
exec mpirun --hostfile /tmp/hosts -np "$((LWS_GROUP_SIZE * GPUS_PER_POD))" --map-by slot \
    -mca plm_rsh_args "-p 2222 -i /run/inferwire/mpi/id -o UserKnownHostsFile=/run/inferwire/mpi/known_hosts" \
    -x PATH -x LD_LIBRARY_PATH \
    trtllm-llmapi-launch /etc/inferwire/mpi/serve.sh
