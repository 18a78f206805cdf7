#!/bin/sh
# A streamed chat answer and a plain completion with curl: sh curl.sh [URL]
set -eu
url="${1:-${TANDEM_URL:-http://127.0.0.1:8080}}"

# -N shows events as they come, -i shows the headers x-tandem-path and x-tandem-decision.
curl -sSNi "$url/v1/chat/completions" -H 'content-type: application/json' -d '{
  "model": "tandem",
  "messages": [{"role": "user", "content": "Translate to French: good morning"}],
  "max_tokens": 32, "temperature": 0, "stream": true, "stream_options": {"include_usage": true}
}'

curl -sS "$url/v1/completions" -H 'content-type: application/json' -d '{
  "model": "tandem-fast", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0
}'
echo
