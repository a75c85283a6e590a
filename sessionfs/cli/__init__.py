"""The command line: one module per command below ``commands``, what they share beside it. Imported by nobody.

Commands import what they need when they run, so that ``sessionfs --help`` answers at once.
"""
