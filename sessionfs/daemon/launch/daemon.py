"""The daemon process: ``python -m sessionfs.daemon.launch.daemon --fd N``."""

import sys

if __name__ == "__main__":
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import of it fails from now on
    from sessionfs.daemon.daemon_process import main

    sys.exit(main())
