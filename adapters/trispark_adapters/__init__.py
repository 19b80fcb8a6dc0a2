"""Adapters that run inside SGLang: one module an adapter, kernels in modules of their own."""
