#!/bin/sh
# The namespace with llmgw's retention: how long closed runs, and with them the reasons of past decisions, are kept.
set -eu

tries=0
until temporal operator cluster health >/dev/null 2>&1; do
  tries=$((tries + 1))
  if [ "$tries" -ge 60 ]; then
    echo "Temporal at $TEMPORAL_ADDRESS is not healthy after $tries tries" >&2
    exit 1
  fi
  sleep 2
done

if temporal operator namespace describe -n "$NAMESPACE" >/dev/null 2>&1; then
  temporal operator namespace update -n "$NAMESPACE" --retention "$RETENTION"
else
  temporal operator namespace create -n "$NAMESPACE" --retention "$RETENTION"
fi
echo "namespace $NAMESPACE keeps closed runs for $RETENTION"
