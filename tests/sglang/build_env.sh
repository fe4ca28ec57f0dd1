#!/usr/bin/env bash
# Builds the environment in which the real SGLang server runs on a CPU (about 7 GB, minutes), for tests and for
# `sao serve conf=smoke_sglang_cpu`. Does nothing when it is there already; starts over when this recipe has changed.
#
#   tests/sglang/build_env.sh [FOLDER]      default: $SAO_SGLANG_ENV, else ~/.cache/sao/sglang-env
#
# PYTHON names the interpreter it is made from (default: python3.11, else python3).
# On a machine with GPUs a plain `pip install sglang==0.5.23` is the way instead.
set -euo pipefail

target=${1:-${SAO_SGLANG_ENV:-$HOME/.cache/sao/sglang-env}}
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
stamp=$target/recipe.sha256
mkdir -p "$(dirname "$target")"

# One build at a time: a second caller waits, then finds it built.
exec 9>"$target.lock"
flock 9

recipe=$({ cat "${BASH_SOURCE[0]}"; "$python" --version; } | sha256sum | cut -d' ' -f1)
here() {
  "$target/bin/python" -c 'from importlib.metadata import version as v; v("sglang"), v("sglang-router"), v("torch")'
}
if [[ -f $stamp && $(<"$stamp") == "$recipe" ]] && here 2>/dev/null; then
  echo "the SGLang environment is up to date"
  exit 0
fi

echo "building the SGLang environment"
rm -rf "$target"
"$python" -m venv "$target"
install=("$target/bin/python" -m pip install -qq --no-cache-dir --disable-pip-version-check)
"${install[@]}" torch==2.14.1 torchvision==0.29.1
# What the server imports on a CPU. SGLang itself comes without its dependencies, most of which are CUDA kernels.
"${install[@]}" aiohttp apache-tvm-ffi==0.1.11 compressed-tensors==0.18.0 dill distro einops fastapi gguf IPython \
  'mistral_common>=1.11.5' msgspec numpy nvidia-ml-py openai==2.8.0 orjson packaging partial_json_parser pillow \
  psutil pybase64 pydantic python-multipart 'pyzmq>=25.1.2' regex requests scipy sentencepiece==0.2.1 setproctitle \
  soundfile==0.13.1 tiktoken timm==1.0.25 tokenizers==0.23.2 tqdm transformers==5.19.0 'uvicorn>=0.51' uvloop \
  watchfiles xgrammar==0.2.7 zstandard prometheus-client
"${install[@]}" --no-deps sglang==0.5.23 sglang-router==0.3.2
echo "$recipe" >"$stamp"
echo "the SGLang environment is built"
