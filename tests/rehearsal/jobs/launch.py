"""Start a command once per rank and wait: a launcher that ends nobody, so that each rank ends by itself."""

import os
import subprocess
import sys
import tempfile


def main() -> int:
    ranks, command = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as scratch:
        common = os.environ | {"WORLD_SIZE": str(ranks), "TEST_STORE": f"{scratch}/store"}
        processes = [
            subprocess.Popen(command, env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]
        statuses = [process.wait() for process in processes]
    print(f"statuses {statuses}", flush=True)
    return next((status if status > 0 else 128 - status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main())
