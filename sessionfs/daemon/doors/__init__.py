"""The mirrored place of the Python doors: a working copy with its upload journal, in this process or in a live mount; imported by programs."""
