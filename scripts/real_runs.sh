#!/bin/sh
# The runs on real data whose records are in results/. Each can be killed and continues when this is
# run again; finished ones are skipped. Needs DPFT_DATA (see results/README.md for what lies there).
#   DPFT_DATA=FOLDER SUBSETS=FOLDER sh scripts/real_runs.sh [NAME...]   all, or those that begin so
# SUBSETS holds qnli/, qqp/ and mnli/ with 8,999 training and 1,000 dev records each.
set -u
: "${DPFT_DATA:?set DPFT_DATA to the folder that holds sst2/, dart/ and so on}"
only="$*"
data=$DPFT_DATA

run() {
    name=$1
    shift
    for prefix in ${only:-$name}; do
        case $name in "$prefix"*)
            echo "== $name: dpft train $* name=$name"
            DPFT_DATA=$data dpft train "$@" name="$name" || echo "== $name failed"
            ;;
        esac
    done
}

# Times are of one core of an AMD EPYC: set OMP_NUM_THREADS=1 and let two of them run at once.

# DART, trained on its dev file (no train file here); the bundled tiny model. 20 to 30 minutes each.
dart="task=dart task.train_split=dev model=tiny optim.batch_size=1024 optim.epochs=30 optim.lr=2e-3"
run dart-tiny-eps8 $dart clip=bk eps=8
run dart-tiny-eps3 $dart clip=bk eps=3
run dart-tiny-none $dart clip=none optim.batch_size=256

# Mixed precision, where products are the cost: a core with AVX512-BF16 multiplies four times as fast in bfloat16.
mixed="precision=bfloat16"

# SST-2, all of it, MiniLM's encoder; Li et al. 2022: three epochs, threshold 0.1.
sst2="task=sst2 model=minilm $mixed optim.batch_size=1024 optim.epochs=3 optim.lr=1e-3 optim.schedule=linear"
run sst2-minilm-eps8 $sst2 clip=bk eps=8
run sst2-minilm-eps3 $sst2 clip=bk eps=3
run sst2-minilm-none task=sst2 model=minilm $mixed clip=none optim.batch_size=128 optim.epochs=2 optim.lr=5e-5

# Subsets of 8,999 records: all weights at the settings of Li et al. 2022 but for the sizes, and LoRA, which adds less noise.
data=${SUBSETS:-$DPFT_DATA}
for task in qnli qqp mnli; do
    glue="task=$task model=minilm $mixed"
    private="clip=bk eps=8 optim.batch_size=1024 optim.schedule=linear"
    run "$task-subset-minilm-eps8" $glue $private optim.epochs=5 optim.lr=1e-3
    run "$task-subset-minilm-lora-eps8" $glue $private adapt=lora adapt.rank=16 optim.epochs=10 optim.lr=1e-3
    run "$task-subset-minilm-none" $glue clip=none optim.batch_size=64 optim.epochs=2 optim.lr=5e-5
done
data=$DPFT_DATA

# Persona-Chat: the validation file, split by persona; the bundled tiny model.
persona="task=personachat task.split_by_persona=0.8 model=tiny optim.batch_size=512 optim.epochs=10 optim.lr=2e-3"
run personachat-tiny-none $persona clip=none
run personachat-tiny-eps8 $persona clip=ghost eps=8

# SmolLM2-135M with LoRA: as many steps as two hours of CPU take, scoring included.
lora="model=smollm2-135m $mixed adapt=lora clip=bk optim.lr=1e-3 checkpoint_every=1"
run samsum-smollm2-lora-eps8 task=samsum $lora eps=8 optim.batch_size=128 optim.steps=24 task.max_length=256 task.limit_eval=100 decode.max_new_tokens=40
run e2e-smollm2-lora-eps8 task=e2e $lora eps=8 optim.batch_size=256 optim.steps=40 task.limit_eval=100 decode.max_new_tokens=60
run personachat-smollm2-lora-eps8 task=personachat task.split_by_persona=0.8 $lora eps=8 optim.batch_size=128 optim.steps=24 task.limit_eval=100 decode.max_new_tokens=30
# What the model does before it is trained.
untrained="model=smollm2-135m clip=none optim.steps=0 task.limit_eval=100"
run samsum-smollm2-untrained task=samsum $untrained task.max_length=256 decode.max_new_tokens=40
run e2e-smollm2-untrained task=e2e $untrained decode.max_new_tokens=60

# CIFAR-10 with the wide residual network: two epochs of the papers' 300.
run cifar10-wrn16-4-eps8 task=cifar10 model=wrn16-4 $mixed clip=bk eps=8 optim=sgd optim.lr=4 optim.batch_size=4096 optim.epochs=2

# Train on synthetic, test on real: a private model of E2E writes records, another one learns from them alone.
e2e="task=e2e model=tiny"
run e2e-tiny-synthetic-source $e2e clip=bk eps=8 optim.batch_size=1024 optim.epochs=5 optim.lr=2e-3
if [ -e runs/e2e-tiny-synthetic-source/DONE ]; then
    synthetic=runs/e2e-tiny-synthetic-source/synthetic/trainset.csv
    [ -e $synthetic ] || DPFT_DATA=$data dpft generate runs/e2e-tiny-synthetic-source n=8000 sources=dev
    run e2e-tiny-synthetic-learner $e2e clip=none optim.batch_size=64 optim.epochs=3 optim.lr=1e-3 task.synthetic=$synthetic
fi
# What the bundled model does before it is trained.
run e2e-tiny-untrained $e2e clip=none optim.steps=0
