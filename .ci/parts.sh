# Sourced by scripts that run parts one after the other, with the time that each takes and a table at the end.

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
names=() results=() seconds=() failed=0

# Runs a part for at most so many minutes, shows its output as it comes, and keeps it for the summary. What hangs is ended, so that
# the other parts and the summary still come; the limits are several times what a part takes.
part() {
    local name=$1 minutes=$2 start=$SECONDS status
    shift 2
    printf '\n=== %s\n' "$name"
    timeout --kill-after=10 "${minutes}m" "$@" 2>&1 | tee "$logs/${#names[@]}"
    status=$?
    names+=("$name") seconds+=($((SECONDS - start)))
    case $status in
        0) results+=(ok) ;;
        124 | 137) results+=("FAILED: not ended after $minutes minutes") failed=1 ;;
        *) results+=("FAILED ($status)") failed=1 ;;
    esac
}

# A line for each part, with what `counted` says of its output.
table() {
    local i
    printf '\n%-10s %8s  %s\n' part seconds result
    for i in "${!names[@]}"; do
        printf '%-10s %8d  %s%s\n' "${names[i]}" "${seconds[i]}" "${results[i]}" "$(counted "$logs/$i")"
    done
    printf '%-10s %8d\n\n' all "$SECONDS"
}
