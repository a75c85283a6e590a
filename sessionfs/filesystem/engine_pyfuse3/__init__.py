"""The portable engine: pyfuse3 asks, the Core answers. The only place that imports pyfuse3; imports ``filesystem``'s Core and nothing above."""

from sessionfs.filesystem.engine_pyfuse3.engine import Pyfuse3Engine

__all__ = ["Pyfuse3Engine"]
