#!/bin/sh
# Prints monitoring/rules as a PrometheusRule for a Prometheus operator:
#   deploy/kubernetes/monitoring/prometheus-rule.sh | kubectl apply -f -
set -e
cd "$(dirname "$0")/../../../monitoring/rules"
cat <<'HEAD'
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: kvtier
  namespace: kvtier
  labels:
    app.kubernetes.io/name: kvtier
spec:
  groups:
HEAD
for file in recording.yml alerts.yml; do
  sed -e '1,/^groups:$/d' -e 's/^./  &/' "$file"
done
