"""The mirrored place of a program that shares a state directory with a live mount: it goes through the mounted directory and the control socket."""
