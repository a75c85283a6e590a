"""What programs tell sessionfs through the mount itself: the hidden ``.sessionfs`` of each session, and the end-of-turn rule."""
