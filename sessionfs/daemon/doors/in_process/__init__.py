"""The mirrored place of a program that has a state directory for itself: the Core is called in its process."""
