"""The commands about a mount, one module each; all but ``mount`` ask its daemon over the control socket."""
