"""Import hooks of the engine: after a registered module ran, its installers patch it.

`registry.py` says which module gets which installers and under which switch; `finder.py` does the work.
"""
