"""One rank of a test with ``@pytest.mark.rehearse``: imports the test's file, and calls its function.

Arguments: the file, the function's name, and its arguments as the plug-in pickled them. The default group is there when
the function is called, on ``cuda:LOCAL_RANK``, and ends after it.
"""

from __future__ import annotations

import ast
import os
import pickle
import sys
import traceback
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


class _TestLoader(SourceFileLoader):
    """Loads a test's file with the asserts of pytest, which say what they compared."""

    def source_to_code(self, data: Any, path: Any) -> CodeType:  # type: ignore[override]
        """Compile the file; with Python's own asserts if this pytest rewrites them by other means."""
        tree = ast.parse(data)
        try:
            from _pytest.assertion.rewrite import rewrite_asserts

            rewrite_asserts(tree, data, str(path))
        except (ImportError, TypeError):
            tree = ast.parse(data)
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code

    def path_stats(self, path: str) -> Any:
        """Raise OSError, so that Python compiles the file each time: a .pyc file of it has Python's own asserts."""
        raise OSError(f"{path} is compiled each time")


def _imported(file: Path) -> ModuleType:
    loader = _TestLoader(file.stem, str(file))
    spec = ModuleSpec(file.stem, loader, origin=str(file))
    spec.has_location = True
    module = sys.modules[file.stem] = module_from_spec(spec)
    loader.exec_module(module)
    return module


def main(file: str, name: str, pickled: str) -> None:
    """Run the test's body on this rank; the exit status is 1 if it raised."""
    import pytest
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    sys.path.insert(0, str(Path(file).parent))
    function = getattr(_imported(Path(file)), name)
    arguments = {key: pickle.loads(value) for key, value in pickle.loads(bytes.fromhex(pickled)).items()}
    dist.init_process_group("nccl", device_id=device)
    try:
        function(**arguments)
        torch.cuda.synchronize()
    except (pytest.skip.Exception, pytest.xfail.Exception) as outcome:
        # The plug-in says the same of the test, if all ranks do.
        sys.stderr.write(f"rank {os.environ['RANK']}: {type(outcome).__name__}: {outcome.msg}\n")
    except BaseException as error:
        begin = error.__traceback__ and error.__traceback__.tb_next  # the first frame of the test
        lines = "".join(traceback.format_exception(type(error), error, begin)).splitlines()
        # One write: ranks share a stderr.
        sys.stderr.write("".join(f"rank {os.environ['RANK']}: {line}\n" for line in lines))
        sys.stderr.flush()
        os._exit(1)  # the group's end would wait for the other ranks
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
