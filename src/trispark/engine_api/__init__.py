"""Which adapters bind to which builds of the engine: read from its sources or a description, compared with the matrix.

Nothing of the engine is imported here; `binding` does so in a process of its own.
"""
