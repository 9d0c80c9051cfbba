#!/usr/bin/env bash
# A SLURM of two nodes on this machine, each with two GPUs that do not exist. Needs slurmctld, slurmd,
# munged, and root.
#   local_slurm.sh start DIR   then: export SLURM_CONF=DIR/slurm.conf
#   local_slurm.sh stop DIR
set -euo pipefail
what=$1 dir=$(realpath -m "$2") here=$(hostname)
export SLURM_CONF=$dir/slurm.conf
if [ "$what" = stop ]; then
  scontrol shutdown || true
  sleep 1
  for file in "$dir"/*.pid; do kill "$(cat "$file")" 2>/dev/null || true; done
  exit
fi
mkdir -p "$dir/state" "$dir/log" "$dir/munge"
head -c 1024 /dev/urandom > "$dir/munge/key"
chown -R munge "$dir/munge"
chmod 755 "$dir" "$dir/munge"
chmod 400 "$dir/munge/key"
runuser -u munge -- munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
  --pid-file="$dir/munge/pid" --seed-file="$dir/munge/seed" --log-file="$dir/munge/log"
cp "$dir/munge/pid" "$dir/munged.pid"
cat > "$SLURM_CONF" <<CONF
ClusterName=local
SlurmctldHost=$here(127.0.0.1)
SlurmctldPort=${3:-26817}
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/ctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/log/ctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=5
GresTypes=gpu
NodeName=n1 NodeHostname=$here NodeAddr=127.0.0.1 Port=$((${3:-26817} + 1)) CPUs=1 Gres=gpu:2
NodeName=n2 NodeHostname=$here NodeAddr=127.0.0.1 Port=$((${3:-26817} + 2)) CPUs=1 Gres=gpu:2
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
CONF
for number in 0 1; do ln -s /dev/null "$dir/gpu$number"; done # SLURM wants some device
echo "NodeName=n[1-2] Name=gpu File=$dir/gpu[0-1]" > "$dir/gres.conf"
slurmctld -c
sleep 2
slurmd -N n1
slurmd -N n2
