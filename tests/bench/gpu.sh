#!/usr/bin/env bash
# What a GPU has to show, in at most 8 minutes: the tests that take a device, the lab from end to end in bfloat16, and the speed
# of sampling and PPO steps on a random-weight model of Qwen2.5-1.5B's shape. Where there is no GPU the same runs small, on the CPU.
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
small=()
if [ "$device" = cpu ]; then
    small=(--ppo.steps 2 --ppo.batch 16 --reward.epochs 1 --probe.k 4 --probe.repeats 3 --world.train_people 24 --world.valid_people 8
           --world.test_people 8 --world.stranger_profiles 200 --world.stranger_questions 200 --world.stranger_heard 50 --world.profile_repeats 4
           --world.question_repeats 4 --world.skill_examples 100 --world.hidden 32 --world.heads 2 --world.mlp 64 --world.layers 2)
fi
echo "== tests ($device)"
timeout 150 "$python" -m pytest -q -x tests/test_lm.py tests/test_ppo.py tests/test_reward.py tests/test_dpo.py tests/test_critic.py
echo "== lab, bfloat16 ($device)"
timeout 200 "$python" rlkf.py --stage all --run "$run" --device "$device" --dtype bfloat16 ${small[@]+"${small[@]}"}
rm -rf "runs/$run"
echo "== sampling and PPO ($device)"
timeout 120 "$python" tests/bench/bench_gpu.py --device "$device"
