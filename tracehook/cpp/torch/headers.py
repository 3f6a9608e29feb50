"""Print the package with the CUDA headers that the running torch was built with, as far as torch does not bring them.

Prints nothing for a torch without CUDA. Used by the Makefile: a CUDA toolkit of the system need not be the right one.
"""

from importlib.metadata import PackageNotFoundError, version

for runtime, headers in (
    ("nvidia-cuda-runtime", "nvidia-cuda-crt"),
    ("nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12"),
):
    try:
        major_minor = ".".join(version(runtime).split(".")[:2])
    except PackageNotFoundError:
        continue
    print(f"{headers}=={major_minor}.*")
