"""``session-store.json``: which store a user's sessions are in. Pure, as all of ``formats``; imported by ``migration`` and above."""

from sessionfs.formats.store_settings.store_file import FILE_NAME, StoreSettings, decode, encode, of_url

__all__ = ["FILE_NAME", "StoreSettings", "decode", "encode", "of_url"]
