#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs $TOKENVIEW with $ARGUMENTS, one word a line, and reports what it found in $FOLDER. Ends as
# `tokenview report` does: 1 for what is not in $BASELINE, 2 where a run did not come to its end.
set -euo pipefail

mapfile -t words < <(printf '%s' "$ARGUMENTS" | sed '/^[[:space:]]*$/d')
mkdir -p "$FOLDER"
echo "folder=$FOLDER" >> "${GITHUB_OUTPUT:-/dev/null}"

code=0
"$TOKENVIEW" "${words[@]}" --format jsonl > "$FOLDER/result.jsonl" || code=$?
[[ -s "$FOLDER/result.jsonl" ]] || exit "$code"  # it has said why

options=(--html "$FOLDER/report.html" --junit "$FOLDER/junit.xml" --sarif "$FOLDER/report.sarif")
options+=(--github --step-summary "${GITHUB_STEP_SUMMARY:-/dev/null}")
[[ -z "${BASELINE:-}" ]] || options+=(--baseline "$BASELINE")
reported=0
"$TOKENVIEW" report "$FOLDER/result.jsonl" "${options[@]}" || reported=$?

# A match that nothing reports as news; all else is as told. What ended for another reason than what
# it found (77: skipped, 130: interrupted, 134: aborted) is no success either.
[[ "$reported" -ne 0 || "$code" -le 6 ]] || exit "$code"
exit "$reported"
