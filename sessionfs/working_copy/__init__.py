"""This host's disk: files, the intent log, the upload journal, staging. May import ``formats`` and ``model``, never a store."""
