"""sessionfs mounts a bucket so that every agent session is an ordinary directory.

Layers (imports go only downwards, checked by import-linter):

``cli`` > ``daemon`` > ``filesystem`` > ``replication`` > ``working_copy`` | ``stores`` > ``formats`` > ``model``

``testing`` is the shipped test kit; nothing in the product imports it.
"""

__version__ = "0.1.0"
