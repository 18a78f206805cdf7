#!/usr/bin/env bash
# install.sh PYTHON LOCK...: install pinned packages, hashes checked, nothing resolved, with a line of progress.
set -euo pipefail
python=$1
shift

show_progress() { # counts packages as pip names them; one line on a terminal, one line per 20 packages elsewhere
    awk -v total="$1" -v name="$2" -v tty="$([ -t 2 ] && echo 1 || echo 0)" '
        /^Collecting |^Requirement already satisfied: |is not required|^Ignoring / { n++ }
        /^Collecting / {
            if (tty) printf "\r  %s: %d of %d  %-48s", name, n, total, $2 > "/dev/stderr"
            else if (n % 20 == 0) printf "  %s: %d of %d\n", name, n, total > "/dev/stderr"
        }
        /^Installing collected/ {
            printf "%s  %s: unpacking %-48s%s", (tty ? "\r" : ""), name, "", (tty ? "" : "\n") > "/dev/stderr"
        }
        END { if (tty) printf "\r  %s: done %-60s\n", name, "" > "/dev/stderr"; else printf "  %s: done\n", name > "/dev/stderr" }'
}

for lock in "$@"; do
    total=$(grep -c '^[A-Za-z0-9].*==' "$lock")
    "$python" -m pip --disable-pip-version-check install --no-deps --require-hashes --progress-bar off -r "$lock" |
        show_progress "$total" "$(basename "$lock" .lock)"
done
