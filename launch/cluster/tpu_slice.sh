#!/bin/bash
# One run on a TPU slice of Google Cloud. Change the lines marked EDIT, then:
#
#   bash tpu_slice.sh create    # costs money once it is allocated
#   bash tpu_slice.sh state     # continue when this prints ACTIVE
#   bash tpu_slice.sh install   # copies this commit to all hosts
#   bash tpu_slice.sh run       # starts the run; later, resumes it
#   bash tpu_slice.sh log
#   bash tpu_slice.sh delete    # what is only on the slice's disks is lost
set -euo pipefail

NAME=isojax                     # EDIT
ZONE=us-west4-a                 # EDIT
TYPE=v5litepod-16               # EDIT: v5p types count cores, two a chip
RUNTIME=v2-alpha-tpuv5-lite     # EDIT: v2-alpha-tpuv5 or v2-alpha-tpuv6e
WORKDIR=gs://BUCKET/runs/first  # EDIT: a bucket, or a disk that all hosts share

tpus=(gcloud compute tpus)
on_all() {
  "${tpus[@]}" tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="$1"
}

case "${1:-}" in
  create)
    "${tpus[@]}" queued-resources create "$NAME" --node-id="$NAME" \
      --zone="$ZONE" --accelerator-type="$TYPE" --runtime-version="$RUNTIME" ;;
  state)
    "${tpus[@]}" queued-resources describe "$NAME" --zone="$ZONE" \
      --format='value(state.state)' ;;
  install)
    git archive --format=tar.gz --output=isojax.tar.gz HEAD
    "${tpus[@]}" tpu-vm scp isojax.tar.gz "$NAME:" --zone="$ZONE" --worker=all
    on_all "mkdir -p isojax && tar xzf isojax.tar.gz -C isojax && cd isojax &&
      python3 -m venv .venv && .venv/bin/pip install -q -e '.[tpu,math,gcs]'" ;;
  run)  # EDIT: the mesh has as many devices as the slice has chips
    on_all "cd isojax && { nohup \
      .venv/bin/python -m isojax.main --config=configs/hard.py \
      --config.mesh.data=1 --config.mesh.fsdp=16 --workdir=$WORKDIR \
      > run.log 2>&1 < /dev/null & }" ;;
  log)
    on_all "tail -n 20 isojax/run.log" ;;
  delete)
    "${tpus[@]}" queued-resources delete "$NAME" --zone="$ZONE" --force ;;
  *)
    sed -n 's/^#   //p' "$0"  # the usage, from the lines above
    exit 2 ;;
esac
