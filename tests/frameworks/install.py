"""Install the frameworks of requirements.txt into a venv that sees the packages of this one, torch above all.

Argument: the folder of the venv.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

WANTED = Path(__file__).with_name("requirements.txt")


def install(folder: Path) -> None:
    """Make the venv, or bring an older one up to date. pip finds torch there, and so fetches none."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        # By addsitedir, because tracehook itself is there by a .pth file.
        (own / "below.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile", "-r", str(WANTED)]
    # DeepSpeed comes as sources, and would compile its operators at once. It needs none of them here.
    subprocess.run(pip, env=os.environ | {"DS_BUILD_OPS": "0"}, check=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
