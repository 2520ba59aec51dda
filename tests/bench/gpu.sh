#!/usr/bin/env bash
# What a GPU has to show, in at most 8 minutes: the tests of what runs on it (their own models stay on the CPU), the lab from end to
# end in bfloat16, and the speed of sampling and PPO steps on a random-weight model of Qwen2.5-1.5B's shape. Where there is no GPU
# the same runs small, on the CPU, and takes the time it takes.
#
#     bash tests/bench/gpu.sh
#
# PYTHON (default: python3) is the interpreter, DEVICE (default: cuda where torch finds it) the device.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
device=${DEVICE:-$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')}
run="gpu-check-$device"
rm -rf "runs/$run"
trap 'rm -rf "runs/$run"' EXIT
small=()
if [ "$device" = cpu ]; then
    micro=$("$python" -c 'from dataclasses import asdict; from data.world import WorldConfig
print(*(f"--world.{name} {value}" for name, value in asdict(WorldConfig.micro()).items()))')
    small=($micro --seed 3 --ppo.steps 4 --ppo.batch 16 --reward.epochs 1 --reward.batch 8 --probe.k 4 --probe.repeats 3)
fi

within() {  # within SECONDS COMMAND ...: the limit is the GPU's
    if [ "$device" = cpu ]; then "${@:2}"; else timeout "$@"; fi
}

echo "== tests ($device)"
within 150 "$python" -m pytest -q -x tests/test_lm_*.py tests/test_forward.py tests/test_ppo_*.py tests/test_reward.py tests/test_dpo.py tests/test_critic.py
echo "== lab, bfloat16 ($device)"
within 200 "$python" rlkf.py --stage all --run "$run" --device "$device" --dtype bfloat16 ${small[@]+"${small[@]}"}
echo "== sampling and PPO ($device)"
within 120 "$python" tests/bench/bench_gpu.py --device "$device"
