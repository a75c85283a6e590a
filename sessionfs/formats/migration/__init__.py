"""What a migration writes at its destination: its record, the pages of its journal; and the checksum that two runs agree on.

Pure, as all of ``formats``; imported by ``migration`` and above.
"""
