"""Records of the archive: pure, as all of ``formats``. May import ``formats`` and ``model``; imported by ``sessions.archive``."""
