"""The control socket: its protocol, the daemon's side, and the client that the command line uses."""
