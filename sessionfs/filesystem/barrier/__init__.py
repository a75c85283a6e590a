"""The cut of a commit: how changing files stand between two operations, and their bytes until the commit has them."""
