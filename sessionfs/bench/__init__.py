"""``sessionfs bench``: the project's own workloads, each beside what a program would do without us.

Imported by ``cli`` alone. May read clocks: measuring is its job.
"""
