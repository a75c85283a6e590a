"""The commands about a store and this machine, one module each; ``mount_commands`` has those about a mount."""
