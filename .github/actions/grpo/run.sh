#!/usr/bin/env bash
# Runs grpo check and grpo verify on $DUMP, writes a job summary, and exits with the worse answer.
set -uo pipefail
summary=${GITHUB_STEP_SUMMARY:-/dev/stdout}
export COLUMNS=120 NO_COLOR=1
worst=0
stop=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')

# What a dump contains is not for the runner: commands in it, or the end of a block of code.
harmless() { sed -e 's/##\[/# #[/g' -e "s/\`\`\`/\"\"\"/g"; }

section() {
  local output code
  output=$("$@" 2>&1 | harmless; exit "${PIPESTATUS[0]}")
  code=$?
  # a job summary has room for a megabyte
  printf '### %s\n\n```\n%s\n```\n\n' "$1 $2: exit code $code" "${output:0:200000}" >>"$summary"
  printf '::stop-commands::%s\n%s\n::%s::\n' "$stop" "$output" "$stop"
  if [ "$code" -gt "$worst" ]; then worst=$code; fi
}

# DUMP and OPTIONS are words of a command line: they are to be split, and patterns to be matched.
# shellcheck disable=SC2086
section grpo check $DUMP ${OPTIONS:-}
if [ "${VERIFY:-true}" = true ]; then
  # shellcheck disable=SC2086
  section grpo verify $DUMP ${OPTIONS:-} ${VARIANT:+-v "$VARIANT"}
fi
if [ -n "${GITHUB_OUTPUT:-}" ]; then echo "exit-code=$worst" >>"$GITHUB_OUTPUT"; fi
exit "$worst"
