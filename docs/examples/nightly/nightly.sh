#!/bin/bash
# nightly.sh NIGHT: one night's run, repeated while it is unfinished; ends with the run's exit code.
# BATCHPAGED_HOME is where rag.yaml is, METRICS_DIR node_exporter's --collector.textfile.directory.
cd "${BATCHPAGED_HOME:-/srv/rag}" || exit 2
metrics=${METRICS_DIR:-/var/lib/node_exporter}
night=$1
mkdir -p logs
for attempt in 1 2 3 4; do
  batchpaged run rag.yaml --run-dir "runs/$night" 2>> "logs/$night.log"
  code=$?
  [ "$code" -eq 3 ] || break
  [ "$attempt" -eq 4 ] || sleep "${RETRY_SECONDS:-60}"
done
if [ "$code" -le 1 ] && [ -d "$metrics" ]; then
  # another name first: the collector must never read half a file
  cp "runs/$night/metrics.prom" "$metrics/rag.prom.new" && mv "$metrics/rag.prom.new" "$metrics/rag.prom"
fi
if [ "$code" -le 1 ]; then
  batchpaged history runs --last 90 --html runs/history.html > /dev/null
  batchpaged clean runs --older-than 7d --keep-results --yes > /dev/null
  batchpaged clean runs --keep 30 --older-than 90d --yes > /dev/null
fi
exit "$code"
