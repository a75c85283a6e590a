"""``python -m sessionfs`` is the command ``sessionfs``."""

from sessionfs.cli.main import main

if __name__ == "__main__":
    main(prog_name="sessionfs")
