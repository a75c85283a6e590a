"""The replication process: ``python -m sessionfs.daemon.launch.replication --fd N``."""

import sys

if __name__ == "__main__":
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import of it fails from now on
    from sessionfs.daemon.replication.process import main

    sys.exit(main())
