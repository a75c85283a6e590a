"""Names, keys, errors, settings and clocks: pure, imported by every layer, importing none of ours."""
