#!/bin/sh
# Does another Python give the same run, bit for bit? Builds an environment for it with constraints.txt, makes a short
# private run in both, and compares what they wrote: ledger, weights and generations.
#   sh scripts/smoke_python.sh PYTHON [FOLDER]     e.g. python3.13; FOLDER keeps the environment (default: a new one)
# The interpreter to compare with is $REFERENCE, by default .venv/bin/python, or python where that is not there.
# Exit status: 0 the same, 1 something differs. Without a GPU see constraints.txt for torch's smaller build.
set -eu
python=${1:?type sh scripts/smoke_python.sh PYTHON, for instance python3.13}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
folder=${2:-$(mktemp -d)}
reference=${REFERENCE:-$root/.venv/bin/python}
[ -x "$reference" ] || reference=$(command -v python)

if [ ! -x "$folder/venv/bin/dpft" ]; then
    "$python" -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install --disable-pip-version-check --quiet -c "$root/constraints.txt" -e "$root"
fi

# make_run INTERPRETER NAME: sixteen steps, a minute; one thread, since rounding depends on their number.
make_run() {
    echo "== $("$1" -VV | head -n 1)"
    PYTHONPATH=$root OMP_NUM_THREADS=1 "$1" -P -m dpft.cli.app train +experiment=demo optim.batch_size=64 \
        optim.steps=16 decode.beams=1 task.limit_eval=16 threads=1 device=cpu force=true \
        runs_dir="$folder" name="$2" >"$folder/$2.log" 2>&1 || { cat "$folder/$2.log"; exit 1; }
}
make_run "$reference" reference
make_run "$folder/venv/bin/python" other

status=0
for file in ledger.jsonl model/model.safetensors generations/test.jsonl; do
    digests=$(cd "$folder" && sha256sum "reference/$file" "other/$file")
    if [ "$(echo "$digests" | cut -d ' ' -f 1 | sort -u | wc -l)" = 1 ]; then
        echo "same       $(echo "$digests" | head -n 1 | cut -c 1-16)  $file"
    else
        echo "DIFFERENT  $file"
        status=1
    fi
done
exit $status
